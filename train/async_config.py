"""Settings of asynchronous training: TRL's `AsyncGRPOConfig` plus a few fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from trl import ModelConfig
from trl.experimental.async_grpo import AsyncGRPOConfig

from atommem.config import check_least, setting
from atommem.train.train_config import (
    DISTRIBUTION,
    EPISODES_REFUSED,
    EpisodeConfig,
    Refused,
    check_refused,
)

_UNSUPPORTED = "TRL's asynchronous trainer does not support it"

ASYNC_REFUSED: Refused = {
    **EPISODES_REFUSED,
    "auto_find_batch_size": (False, "it would restart the run; token_budget bounds the memory"),
    "use_liger_kernel": (False, _UNSUPPORTED),
    "max_tool_calling_iterations": (None, "the environment bounds an episode"),
    "fork_threshold_tokens": (1024, "every step is a row; nothing is reconciled"),
    "queue_maxsize": (1024, "max_staleness bounds the rollouts in advance"),
    "eval_strategy": ("no", "`atommem eval` evaluates checkpoints"),
    "num_completions_to_print": (None, "log_episodes shows whole episodes"),
}
_MODEL_REFUSED: Refused = {
    "attn_implementation": (None, "tree packing has its own attention"),
    "load_in_4bit": (False, _UNSUPPORTED),
    "load_in_8bit": (False, _UNSUPPORTED),
    "lora_dropout": (0.0, DISTRIBUTION),
}


@dataclass
class AsyncTrainConfig(EpisodeConfig, AsyncGRPOConfig):
    """GRPO over whole episodes, sampled while the trainer steps.

    `per_device_train_batch_size` counts episodes per process and update; over all processes it is a
    multiple of `num_generations`.
    """

    refused: ClassVar = ASYNC_REFUSED

    use_vllm: bool = setting(
        False,
        "Sample from vLLM servers (vllm_server_base_url, several with commas); otherwise from a "
        "second copy of the model in this process.",
    )
    beta: float = setting(
        0.0,
        "KL coefficient, to the model without its adapter; 0 is none.",
    )
    shuffle_dataset: bool = setting(True, "Take the tasks in random order.")

    # AsyncGRPOConfig's own, with the defaults of arXiv 2601.08323 where it gives one.
    output_dir: str = setting("runs/async", "Folder of checkpoints and logs.")
    token_budget: int | None = setting(
        16_384,
        "Most unique tokens in one forward and backward pass per process. Bounds memory, not the "
        "update. A longer step gets a pass of its own.",
    )
    max_inflight_tasks: int = setting(
        -1, "Most episodes at the same time; -1: all that max_staleness allows."
    )
    max_staleness: int = setting(
        2,
        "Versions of the weights that a group may be older than those in training. 0 waits for "
        "every update: on-policy.",
    )

    @property
    def vllm_server_urls(self) -> list[str]:
        """The addresses in `vllm_server_base_url`."""
        return [url.strip() for url in self.vllm_server_base_url.split(",") if url.strip()]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, max_staleness=0, beta=0, token_budget=1, weight_sync_steps=1)


@dataclass
class AsyncModelConfig(ModelConfig):
    """TRL's `ModelConfig` without the fields of `AsyncTrainConfig` and those that do not fit."""

    dtype: str | None = field(default=None, init=False)
    trust_remote_code: bool = field(default=False, init=False)
    # The ratio compares with the log-probabilities of a server, which has no dropout.
    lora_dropout: float = setting(0.0, "LoRA dropout; only 0 is supported.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_refused(self, _MODEL_REFUSED)

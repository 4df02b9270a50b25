"""Settings of asynchronous training: TRL's `AsyncGRPOConfig` plus a few fields, so its names are the known ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl import ModelConfig
from trl.experimental.async_grpo import AsyncGRPOConfig

from atommem.errors import ConfigError
from atommem.train.episode_config import EpisodeConfig
from atommem.train.stage_config import DISTRIBUTION, check_fixed

# Fields of AsyncGRPOConfig that cannot be honoured, with the only value that is accepted and the reason.
ASYNC_REFUSED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (
        1,
        "one trainer step is one update; token_budget bounds the memory",
    ),
    "torch_empty_cache_steps": (
        None,
        "one trainer step is one update; token_budget bounds the memory",
    ),
    "auto_find_batch_size": (False, "it would begin the run again; token_budget bounds the memory"),
    "neftune_noise_alpha": (None, DISTRIBUTION),
    "fp16": (False, "an update without variance has no gradients to unscale: use bf16"),
    "use_liger_kernel": (False, "TRL's asynchronous trainer does not support it"),
    "top_p": (1.0, DISTRIBUTION),
    "top_k": (0, DISTRIBUTION),
    "min_p": (None, DISTRIBUTION),
    "repetition_penalty": (1.0, DISTRIBUTION),
    "max_tool_calling_iterations": (None, "the environment bounds an episode"),
    "fork_threshold_tokens": (1024, "every step is a row of its own: nothing is reconciled"),
    "queue_maxsize": (1024, "max_staleness bounds what is sampled ahead"),
    "log_completions": (False, "log_episodes shows whole episodes, and save_traces keeps them"),
    "num_completions_to_print": (
        None,
        "log_episodes shows whole episodes, and save_traces keeps them",
    ),
}


@dataclass
class AsyncTrainConfig(EpisodeConfig, AsyncGRPOConfig):
    """GRPO over whole episodes, sampled while the trainer steps.

    `per_device_train_batch_size` counts episodes per process and update; over all processes it has to
    be a multiple of `num_generations`. A field of `AsyncGRPOConfig` that cannot be honoured here is
    refused, never ignored. `beta` is ours: TRL's asynchronous
    trainer has no reference model.

    Raises:
        ConfigError: A field has a value that cannot be honoured, or is out of range.
        ValueError: `AsyncGRPOConfig` refuses a value.
    """

    fixed = ASYNC_REFUSED

    use_vllm: bool = field(
        default=False,
        metadata={
            "help": "Sample from vLLM servers (vllm_server_base_url, several separated by commas); otherwise from a "
            "second copy of the model in this process."
        },
    )
    beta: float = field(
        default=0.0,
        metadata={
            "help": "KL coefficient, to the model without its adapter or as it was before training; 0 is none."
        },
    )
    shuffle_dataset: bool = field(
        default=True, metadata={"help": "Take the tasks in random order."}
    )

    # AsyncGRPOConfig's own, with the defaults of arXiv 2601.08323 where it gives one.
    output_dir: str = field(
        default="runs/async", metadata={"help": "Where checkpoints and logs go."}
    )
    token_budget: int | None = field(
        default=16_384,
        metadata={
            "help": "Most unique tokens in one forward and backward pass per process. Bounds memory, not the update. "
            "A longer step gets a pass of its own."
        },
    )
    max_inflight_tasks: int = field(
        default=-1,
        metadata={"help": "Most episodes at the same time; -1: all that max_staleness allows."},
    )
    max_staleness: int = field(
        default=2,
        metadata={
            "help": "How many versions of the weights a group may be older than those it is trained on. 0 waits for "
            "every update: on-policy."
        },
    )

    @property
    def vllm_server_urls(self) -> list[str]:
        """The addresses in `vllm_server_base_url`."""
        return [url.strip() for url in self.vllm_server_base_url.split(",") if url.strip()]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness is {self.max_staleness}: give 0 (on-policy) or more.")
        if self.max_inflight_tasks == 0 or self.max_inflight_tasks < -1:
            raise ConfigError(
                f"max_inflight_tasks is {self.max_inflight_tasks}: give at least 1, or -1 for no limit."
            )
        if self.beta < 0:
            raise ConfigError(f"beta is {self.beta}: give 0 (no KL term) or more.")
        for name in ("token_budget", "weight_sync_steps"):
            if (getattr(self, name) or 0) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1.")
        if self.use_vllm and not self.vllm_server_urls:
            raise ConfigError(
                "use_vllm is set but vllm_server_base_url is empty: give the servers' URLs."
            )


@dataclass
class AsyncModelConfig(ModelConfig):
    """TRL's `ModelConfig` without what `AsyncTrainConfig` has as well, and without what does not fit."""

    dtype: str | None = field(default=None, init=False)
    trust_remote_code: bool = field(default=False, init=False)
    # The ratio compares with the log-probabilities of a server, which knows no dropout.
    lora_dropout: float = field(
        default=0.0, metadata={"help": "LoRA dropout; only 0 is supported."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fixed(
            self,
            {
                "attn_implementation": (
                    None,
                    "the trainer packs steps as a tree, which has its own attention",
                ),
                "load_in_4bit": (False, "TRL's asynchronous trainer does not support it"),
                "load_in_8bit": (False, "TRL's asynchronous trainer does not support it"),
                "lora_dropout": (0.0, DISTRIBUTION),
            },
        )

"""Settings of asynchronous training: transformers' `TrainingArguments` plus ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import TrainingArguments
from trl import ModelConfig

from atommem.config import check_least, setting
from atommem.errors import ConfigError
from atommem.train.train_config import (
    DISTRIBUTION,
    EPISODES_REFUSED,
    EpisodeConfig,
    Refused,
    check_refused,
)

_PUBLISHED = "quantized weights cannot be published"

ASYNC_REFUSED: Refused = {
    **EPISODES_REFUSED,
    "auto_find_batch_size": (False, "it would restart the run; token_budget bounds the memory"),
}
_MODEL_REFUSED: Refused = {
    "load_in_4bit": (False, _PUBLISHED),
    "load_in_8bit": (False, _PUBLISHED),
    "lora_dropout": (0.0, DISTRIBUTION),
}


@dataclass
class AsyncTrainConfig(EpisodeConfig, TrainingArguments):
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

    model_init_kwargs: dict[str, Any] | None = setting(
        None, "Further arguments of `from_pretrained`, a JSON object."
    )
    trust_remote_code: bool = setting(False, "Run code that a model on the hub brings.")
    cast_lm_head_to_fp32: bool = setting(
        False, "Compute logits in float32, as servers with head_dtype do (docs/vllm.md)."
    )
    temperature: float = setting(1.0, "Sampling temperature.")
    epsilon: float = setting(0.2, "PPO clip below: ratio >= 1 - epsilon.")
    learning_rate: float = setting(1e-6, "The initial learning rate.")
    lr_scheduler_type: str = setting("constant", "Schedule of the learning rate.")
    logging_steps: float = setting(1, "Updates between two log entries.")
    vllm_server_base_url: str = setting(
        "http://localhost:8000", "URLs of vLLM servers, with commas."
    )
    vllm_server_timeout: float = setting(240.0, "Seconds to wait while no server answers.")
    request_timeout: int = setting(600, "Seconds that a request may take.")
    weight_sync_steps: int = setting(1, "Updates between two publications of the weights.")
    heartbeat_stale_after_s: float = setting(
        300.0, "Seconds without a completion after which the run ends."
    )
    # Defaults of arXiv 2601.08323 where it gives one.
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
        return [url.strip() for url in self.vllm_server_base_url.split(",") if url.strip()]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, max_staleness=0, beta=0, token_budget=1, weight_sync_steps=1)
        if self.eval_data and self.weight_sync_steps > 1:
            raise ConfigError(
                f"weight_sync_steps={self.weight_sync_steps}: must be 1 with eval_data, because an "
                "evaluation publishes the weights."
            )


@dataclass
class AsyncModelConfig(ModelConfig):
    """TRL's `ModelConfig` without what does not fit."""

    # The ratio compares with the log-probabilities of a server, which has no dropout.
    lora_dropout: float = setting(0.0, "LoRA dropout; only 0 is supported.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_refused(self, _MODEL_REFUSED)

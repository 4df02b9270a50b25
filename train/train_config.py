"""Settings of training. `TrainConfig` is TRL's `GRPOConfig` plus a few fields, so its names are the known ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig, SFTConfig

from atommem.config import check_choice
from atommem.envs.checkpoint_settings import json_object
from atommem.errors import ConfigError
from atommem.train.episode_config import EpisodeConfig
from atommem.train.objective.advantages import CREDIT
from atommem.train.stage_config import DISTRIBUTION, StageConfig

_OBJECTIVE = "it is no part of the loss in train/objective/loss.py"
_ONE_REWARD = "an episode has one terminal reward"
_ONE_UPDATE = "one trainer step is one update; micro_batch_tokens bounds the memory"

# Fields of GRPOConfig that cannot be honoured, with the only value that is accepted and the reason.
REFUSED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (1, _ONE_UPDATE),
    "torch_empty_cache_steps": (None, _ONE_UPDATE),
    "neftune_noise_alpha": (None, DISTRIBUTION),
    "off_policy_mask_threshold": (None, _OBJECTIVE),
    "top_entropy_quantile": (1.0, _OBJECTIVE),
    "entropy_coef": (0.0, _OBJECTIVE),
    "use_adaptive_entropy": (False, _OBJECTIVE),
    "mask_truncated_completions": (False, "a completion that was cut is a step like any other"),
    "pad_to_multiple_of": (None, "micro-batches are packed, or padded to their longest row"),
    "fp16": (False, "a batch without variance has no gradients to unscale: use bf16"),
    "top_p": (1.0, DISTRIBUTION),
    "top_k": (0, DISTRIBUTION),
    "min_p": (None, DISTRIBUTION),
    "repetition_penalty": (1.0, DISTRIBUTION),
    "vllm_structured_outputs_regex": (None, DISTRIBUTION),
    "vllm_group_port": (
        51216,
        "servers are plain `vllm serve`, which agree on a port by themselves",
    ),
    "use_transformers_continuous_batching": (False, "episodes are sampled by the local policy"),
    "generation_kwargs": (None, "episodes are sampled by the local policy"),
    "reward_weights": (None, _ONE_REWARD),
    "multi_objective_aggregation": ("sum_then_normalize", _ONE_REWARD),
    "log_completions": (False, "log_episodes shows whole episodes, and save_traces keeps them"),
}

COLD_START_REFUSED = {
    "packing": (False, "rows are whole steps, padded per batch"),
    "padding_free": (False, "rows are whole steps, padded per batch"),
    "assistant_only_loss": (False, "rows are token ids; the loss is on the completion"),
    "eval_strategy": ("no", "evaluate checkpoints with `atommem eval`"),
}

# Settings of a colocated engine that are not for its user, with the reason.
ENGINE_FIXED = {
    "model": "which is what is trained",
    "revision": "whose name here is model_revision",
    "dtype": "which is that of what is trained",
    "logprobs_mode": "which has to be that of what is trained",
    "distributed_executor_backend": "which has to be this process",
    "enable_lora": "which follows from use_peft",
    "max_lora_rank": "which follows from lora_r",
    "enable_sleep_mode": "whose name here is vllm_enable_sleep_mode",
    "gpu_memory_utilization": "whose name here is vllm_gpu_memory_utilization",
    "max_model_len": "whose name here is vllm_max_model_length",
    "model_impl": "whose name here is vllm_model_impl",
}


@dataclass
class TrainConfig(EpisodeConfig, GRPOConfig):
    """GRPO over whole episodes.

    `per_device_train_batch_size` counts episodes per process and update; over all processes and updates of a rollout it
    has to be a multiple of `num_generations`, the size of a group. A field of `GRPOConfig` that cannot be honoured
    here is refused, never ignored.

    Raises:
        ConfigError: A field has a value that cannot be honoured, or is out of range.
        ValueError: `GRPOConfig` refuses a value.
    """

    fixed = REFUSED

    micro_batch_tokens: int = field(
        default=16_384,
        metadata={
            "help": "Most tokens in one forward and backward pass: distinct ones with prefix_sharing, padded ones "
            "without. Bounds memory, not the update."
        },
    )
    prefix_sharing: bool = field(
        default=True,
        metadata={
            "help": "Compute a prefix that rows share once (prefix-tree training); exact, for most models."
        },
    )
    dynamic_sampling: int = field(
        default=0,
        metadata={
            "help": "By how many groups of other tasks, one after the other, a group without variance is replaced as "
            "soon as it has ended (DAPO's dynamic sampling, bounded)."
        },
    )
    carried_groups: int = field(
        default=0,
        metadata={
            "help": "So many more groups than an update needs are in flight on each process; those that have not ended "
            "go on in the next update, under its weights (partial rollouts), and have to end there."
        },
    )
    credit: str = field(
        default="trajectory",
        metadata={
            "help": "What a step is credited with: its episode's advantage (trajectory), or also how its episode ended "
            "beside those of the group that came to the same prompt (steps; GiGPO's)."
        },
    )
    rerolls: int = field(
        default=0,
        metadata={
            "help": "From a random step of one episode of each group so many more episodes go on, which are compared "
            "among themselves (Memory-R2's local rerolls); 1 or more."
        },
    )
    compression_reward: float = field(
        default=0.0,
        metadata={
            "help": "Added to the reward, times the part of what was read that the store does not hold at last."
        },
    )
    max_in_flight: int | None = field(
        default=None,
        metadata={"help": "Most episodes at the same time per process; unset runs all at once."},
    )

    # GRPOConfig's own, with the defaults of arXiv 2601.08323 where it gives one.
    output_dir: str = field(
        default="runs/train", metadata={"help": "Where checkpoints and logs go."}
    )
    save_steps: float = field(default=20, metadata={"help": "Updates between two checkpoints."})
    save_total_limit: int | None = field(
        default=2,
        metadata={"help": "Checkpoints that are kept; the last one and the best one always are."},
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "The initial learning rate."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature in training."})
    epsilon: float = field(default=0.2, metadata={"help": "PPO clip below: ratio >= 1 - epsilon."})
    vllm_server_base_url: str | None = field(
        default=None,
        metadata={
            "help": "The vLLM server, or several, with commas; unset: vllm_server_host and vllm_server_port."
        },
    )
    vllm_engine_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Further settings of a colocated engine (vLLM's EngineArgs), a JSON object: "
            '\'{"kv_cache_dtype": "fp8", "max_num_batched_tokens": 16384}\'.'
        },
    )
    logging_steps: float = field(default=1, metadata={"help": "Updates between two log entries."})
    steps_per_generation: int | None = field(
        default=1,
        metadata={
            "help": "Updates that share a rollout, each on its own per_device_train_batch_size episodes; 1 (and "
            "num_iterations 1) is fully on-policy."
        },
    )

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "vllm_engine_kwargs"]  # noqa: RUF012  # as TRL does

    @property
    def updates_per_rollout(self) -> int:
        """How many updates are made on the episodes of a rollout."""
        return (self.steps_per_generation or 1) * self.num_iterations

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        """`vllm_engine_kwargs` as an object."""
        return json_object("vllm_engine_kwargs", self.vllm_engine_kwargs)

    @property
    def vllm_server_urls(self) -> list[str]:
        """The servers of ``vllm_mode: server``."""
        given = (
            self.vllm_server_base_url or f"http://{self.vllm_server_host}:{self.vllm_server_port}"
        )
        return [url.strip() for url in given.split(",") if url.strip()]

    def __post_init__(self) -> None:
        check_choice("credit", self.credit, CREDIT)
        for name in ("dynamic_sampling", "carried_groups", "rerolls", "credit"):
            value = self.credit == "steps" if name == "credit" else getattr(self, name)
            if value < 0:
                raise ConfigError(f"{name} is {value}: give 0 or more.")
            on_each = self.per_device_train_batch_size * (self.steps_per_generation or 1)
            if value and on_each % (self.num_generations or 1):
                raise ConfigError(
                    f"per_device_train_batch_size is {self.per_device_train_batch_size}, and num_generations "
                    f"{self.num_generations}: with {name} make it a multiple, for each group has to be on one process."
                )
        if self.num_generations_eval is None:
            self.num_generations_eval = 1
        # Held-out episodes run all at once; TRL only wants the two to fit.
        self.per_device_eval_batch_size = self.num_generations_eval
        super().__post_init__()
        check_choice("vllm_mode", self.vllm_mode, ("server", "colocate"))
        self._check_engine()
        if self.rerolls and ((self.steps_per_generation or 1) > 1 or self.carried_groups):
            raise ConfigError(
                f"rerolls is {self.rerolls}: give steps_per_generation 1 and carried_groups 0, because a group's are "
                "made when it has ended, and trained on with it."
            )
        if self.credit == "steps" and self.scale_rewards != "none":
            raise ConfigError(
                f"scale_rewards is {self.scale_rewards!r}: credit steps needs 'none', because the part of a step is in "
                "units of the reward."
            )
        if self.updates_per_rollout < 1:
            given = f"steps_per_generation is {self.steps_per_generation} and num_iterations {self.num_iterations}"
            raise ConfigError(f"{given}: give at least 1 of each.")
        if self.micro_batch_tokens < 1:
            raise ConfigError(f"micro_batch_tokens is {self.micro_batch_tokens}: give at least 1.")

    def _check_engine(self) -> None:
        """Raise ConfigError for settings that a colocated engine cannot have."""
        given = self.engine_kwargs
        if given and not (self.use_vllm and self.vllm_mode == "colocate"):
            raise ConfigError(
                "vllm_engine_kwargs are of a colocated engine: give a server its own flags where it is started."
            )
        parallel = given.get("tensor_parallel_size", self.vllm_tensor_parallel_size)
        if self.use_vllm and self.vllm_mode == "colocate" and parallel != 1:
            raise ConfigError(
                f"tensor parallel size is {parallel}: a colocated engine is of one process, because ranks ask for "
                "different numbers of completions. Use vllm_mode: server for a larger one."
            )
        if fixed := sorted(given.keys() & ENGINE_FIXED.keys()):
            raise ConfigError(
                f"vllm_engine_kwargs has {fixed[0]}, {ENGINE_FIXED[fixed[0]]}: leave it out."
            )


@dataclass
class ColdStartConfig(StageConfig, SFTConfig):
    """Supervised fine-tuning on demonstrations, before GRPO. Fields are those of TRL's `SFTConfig`."""

    fixed = COLD_START_REFUSED

    data: str = field(
        default="",
        metadata={
            "help": "Trace file, or folder of traces (an output folder of `atommem eval` will do)."
        },
    )
    min_reward: float = field(
        default=1.0, metadata={"help": "Lowest reward of an episode to learn from (traces)."}
    )
    output_dir: str = field(default="runs/sft", metadata={"help": "Where checkpoints and logs go."})
    logging_steps: float = field(default=10, metadata={"help": "Updates between two log entries."})
    max_length: int | None = field(
        default=None,
        metadata={"help": "Longest prompt plus completion; a longer row is refused, not cut."},
    )
    max_completion_length: int = field(
        default=1024,
        metadata={"help": "Longest completion of a step when the model is used, tokens."},
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of the chat template, a JSON object: '{\"enable_thinking\": false}'."
        },
    )

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "chat_template_kwargs"]  # noqa: RUF012  # as TRL does

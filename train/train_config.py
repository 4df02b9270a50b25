"""Settings of training: TRL's, and ours; what cannot be honoured is refused with its reason."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig, SFTConfig

from atommem.config import check_choice, check_least, check_probabilities, setting
from atommem.errors import ConfigError
from atommem.train.objective.rows import LOSS_TYPES, NORMALIZATIONS

CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))


def refused_names(*parts: str) -> set[str]:
    """Return the fields that cannot be honoured, of these parts of ``refused.yaml``."""
    return {name for part in parts for name in REFUSED.get(part, ())}


def check_refused(config: Any, *parts: str) -> None:
    """Raise ConfigError for a field that cannot be honoured, of these parts of ``refused.yaml``."""
    for name, (only, reason) in (line for part in parts for line in REFUSED.get(part, {}).items()):
        value = getattr(config, name, only)
        if str(getattr(value, "value", value)) != str(only):
            problem = f"only {only} is supported, because {reason}. Drop it."
            raise ConfigError(f"{name}={value}: {problem}")


def check_parallelism(launcher: Mapping[str, Any]) -> None:
    """Raise ConfigError for tensor, context or sequence parallelism of the launcher."""
    for name in ("tp", "cp", "sp"):
        field = f"parallelism_config_{name}_size"
        if (size := int(launcher.get(field) or 1)) > 1:
            raise ConfigError(
                f"{field}={size}: only 1 is supported, because every process trains on rows of its "
                "own. Shard with dp_shard_size (FSDP2); vLLM servers may be tensor-parallel."
            )


@dataclass
class StageConfig:
    """Settings of all stages, mixed into a TRL configuration, before it."""

    refused: ClassVar[tuple[str, ...]] = ()

    project: str = setting("atommem", "Project of the run in wandb and trackio.")
    bf16: bool | None = setting(None, "Mixed precision in bfloat16; unset: on if a GPU has it.")
    gradient_checkpointing: bool | None = setting(
        None, "Trade compute for memory in the backward pass; unset: on with a GPU, off on CPU."
    )
    hub_strategy: str = setting("end", "When the model is pushed to the hub; only `end`.")
    resume_from_checkpoint: str | None = setting(
        None, "A checkpoint to continue from; auto (--resume): the last one, if there is one."
    )
    chat_template_kwargs: dict[str, Any] | None = setting(
        None, "Arguments of the chat template, a JSON object: '{\"enable_thinking\": false}'."
    )

    @property
    def n_gpu(self) -> int:
        """GPUs of this process: more would make transformers use `nn.DataParallel`."""
        return min(1, super().n_gpu)  # type: ignore[misc]  # TRL's

    def __post_init__(self) -> None:
        # TRL turns both on; without a GPU they only make training slower.
        gpu = torch.cuda.is_available()
        if self.bf16 is None:
            self.bf16 = not self.fp16 and gpu and torch.cuda.is_bf16_supported()  # type: ignore[attr-defined]  # TRL's
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = gpu
        # Their buffers never change, and a rank that ran out of memory would not take part.
        self.ddp_broadcast_buffers = False
        self.dataloader_pin_memory &= gpu  # type: ignore[attr-defined]  # TRL's; else torch warns
        super().__post_init__()  # type: ignore[misc]  # TRL's
        check_refused(self, *self.refused)
        # As `accelerate launch` hands it on.
        check_parallelism({name.lower(): value for name, value in os.environ.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as transformers' callbacks report them, and the run's `facts`."""
        return super().to_dict() | getattr(self, "facts", {})  # type: ignore[misc]


@dataclass
class EpisodeConfig(StageConfig):
    """Settings of on-policy and asynchronous training; defaults are arXiv 2601.08323's."""

    data: str = setting("", "File of training tasks (`atommem data build`).")
    loss_type: str = setting(
        "dapo",
        "Loss by TRL's name: dapo, grpo, dr_grpo (PPO's clipped loss, normalized by tokens, steps, "
        "or a constant) or cispo (by tokens; epsilon_high is the largest ratio itself).",
    )
    importance_sampling_level: str = setting(
        "token", "One importance ratio per token, or per sequence, which is one step (GSPO)."
    )
    normalization: str = setting(
        "",
        "Equal weight in the loss for every completion token of the update (token), every step "
        "(step), every episode (trajectory), or every token of a step of max_completion_length "
        "(constant). Unset: as loss_type has it.",
    )
    scale_rewards: str = setting(
        "none", "Divide advantages by the standard deviation of the group or the batch, or none."
    )
    overlong_filtering: bool = setting(False, "Do not train on episodes that a limit cut (DAPO's).")
    eval_data: str | None = setting(
        None, "File of held-out tasks, evaluated during training (eval_strategy, eval_steps)."
    )
    eval_temperature: float | None = setting(None, "Of evaluation: 0 is greedy; unset: training's.")
    num_generations_eval: int | None = setting(None, "Episodes per held-out task; unset is 1.")
    rollout_batch_size: int = setting(256, "Most prompts in one sampling batch, without vLLM.")
    max_batch_tokens: int = setting(
        65_536, "Most tokens in one sampling batch, without vLLM. Bounds the key-value cache."
    )
    token_budget: int = setting(
        16_384,
        "Most tokens in one forward and backward pass: unique ones, or padded ones without "
        "prefix_sharing. Bounds memory, not the update; a longer step gets a pass of its own.",
    )
    max_inflight_tasks: int = setting(
        -1, "Most episodes at once per process; -1: all, or (async) as max_staleness allows."
    )
    episode_max_tokens: int | None = setting(None, "Most sampled tokens; it ends there, scored.")
    episode_max_seconds: float | None = setting(None, "Longest time; it ends there, scored.")
    max_failed_fraction: float = setting(0.5, "Stop above this fraction of failed episodes.")
    log_episodes: int = setting(2, "Whole episodes to show in output_dir/samples, wandb, trackio.")
    log_episodes_steps: int = setting(10, "Updates between two times of log_episodes.")
    save_traces: bool = setting(False, "Write every episode to output_dir/traces/step-N/.")
    num_generations: int = setting(16, "Episodes per task: the group size G.")
    per_device_train_batch_size: int = setting(64, "Episodes (not steps) per process and update.")
    max_completion_length: int = setting(1024, "Longest completion of a step, tokens.")
    epsilon_high: float | None = setting(0.28, "PPO clip above: ratio <= 1 + epsilon_high.")
    router_aux_loss_coef: float | None = setting(0.0, "Balances the load of experts; only 0.")
    learning_rate: float = setting(1e-6, "The initial learning rate.")
    logging_steps: float = setting(1, "Updates between two log entries.")
    ddp_timeout: int = setting(4 * 3600, "Seconds to wait for other processes' episodes.")

    @property
    def vllm_server_urls(self) -> list[str]:
        urls: str = self.vllm_server_base_url or (  # type: ignore[attr-defined]
            f"http://{self.vllm_server_host}:{self.vllm_server_port}"  # type: ignore[attr-defined]  # TRL's
        )
        return [url.strip() for url in urls.split(",") if url.strip()]

    def __post_init__(self) -> None:
        check_least(self, per_device_train_batch_size=1, num_generations=2)
        self.num_generations_eval = self.num_generations_eval or 1
        # Held-out episodes run all at once; TRL only checks that the two fit.
        self.per_device_eval_batch_size = self.num_generations_eval
        super().__post_init__()
        strategy = self.eval_strategy  # type: ignore[attr-defined]  # TRL's
        strategy = str(getattr(strategy, "value", strategy))
        if (strategy != "no") != bool(self.eval_data):
            raise ConfigError(
                f"eval_strategy={strategy}, eval_data={self.eval_data}: evaluation needs both. "
                "Give a file of held-out tasks, eval_strategy=steps and eval_steps."
            )
        if self.temperature <= 0:  # type: ignore[attr-defined]  # TRL's
            raise ConfigError(
                f"temperature={self.temperature}: must be above 0, because greedy sampling makes "  # type: ignore[attr-defined]
                "all episodes of a group identical. Use eval_temperature for greedy evaluation."
            )
        check_choice("loss_type", self.loss_type, tuple(LOSS_TYPES))
        levels = ("token", "sequence")
        check_choice("importance_sampling_level", self.importance_sampling_level, levels)
        self.normalization = self.normalization or LOSS_TYPES[self.loss_type]
        check_choice("normalization", self.normalization, NORMALIZATIONS)
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ConfigError(
                f"epsilon_high={self.epsilon_high}: with loss_type=cispo it is the largest ratio "
                "itself. Give at least 1 (ScaleRL, arXiv 2510.13786, uses 5)."
            )
        check_choice("scale_rewards", str(self.scale_rewards), ("none", "group", "batch"))
        check_probabilities(self, "max_failed_fraction")
        check_least(self, log_episodes=0, log_episodes_steps=1)
        check_least(self, rollout_batch_size=1, max_batch_tokens=1, token_budget=1)


@dataclass
class TrainConfig(EpisodeConfig, GRPOConfig):
    """GRPO over whole episodes.

    `per_device_train_batch_size` counts episodes per process and update. Over all processes and
    updates of a rollout it is a multiple of `num_generations`.
    """

    refused: ClassVar[tuple[str, ...]] = ("episodes", "grpo")

    prefix_sharing: bool = setting(True, "Compute a prefix that rows share once; exact.")
    dynamic_sampling: int = setting(
        0,
        "Most replacements of a group without variance by groups of other tasks, each as soon as "
        "the one before ended (DAPO's dynamic sampling, bounded).",
    )

    # GRPOConfig's own, with the defaults of arXiv 2601.08323 where it gives one.
    output_dir: str = setting("runs/train", "Folder of checkpoints and logs.")
    save_steps: float = setting(20, "Updates between two checkpoints.")
    save_total_limit: int | None = setting(2, "Checkpoints to keep, beside the last and the best.")
    vllm_importance_sampling_mode: str = setting(
        "token_truncate",
        "How the loss is corrected for vLLM's slightly different probabilities: a ratio of every "
        "token or the product over a step (sequence_...), clamped (..._truncate) or set to 0 "
        "(..._mask) beyond clip_min and clip_max. Products shrink the gradient of long steps.",
    )
    vllm_server_base_url: str | None = setting(None, "URLs, with commas; unset: vllm_server_host.")
    vllm_engine_kwargs: dict[str, Any] | None = setting(
        None,
        "Further settings of a colocated engine (vLLM's EngineArgs), a JSON object: "
        '\'{"kv_cache_dtype": "fp8", "max_num_batched_tokens": 16384}\'.',
    )
    steps_per_generation: int | None = setting(1, "Updates that share out a rollout; 1: on-policy.")
    disable_dropout: bool = setting(True, "Train the policy that was sampled; only true.")

    @property
    def updates_per_rollout(self) -> int:
        return (self.steps_per_generation or 1) * self.num_iterations

    def __post_init__(self) -> None:
        if self.generation_batch_size is not None:
            fix = "per_device_train_batch_size and steps_per_generation make it"
            raise ConfigError(f"generation_batch_size: {fix}. Give these.")
        try:
            super().__post_init__()
        except ValueError as error:
            if "divisible by num_generations" not in str(error):
                raise
            raise ConfigError(
                f"per_device_train_batch_size={self.per_device_train_batch_size}, "
                f"num_generations={self.num_generations}: an update's episodes, of all processes, "
                "must make whole groups. Give a multiple of the second, or a smaller group."
            ) from error
        check_choice("vllm_mode", self.vllm_mode, ("server", "colocate"))
        mode = self.vllm_importance_sampling_mode
        check_choice("vllm_importance_sampling_mode", mode, CORRECTIONS)
        check_least(self, dynamic_sampling=0)
        check_least(self, steps_per_generation=1, num_iterations=1)
        episodes = self.per_device_train_batch_size * (self.steps_per_generation or 1)
        if self.dynamic_sampling and episodes % self.num_generations:
            raise ConfigError(
                f"per_device_train_batch_size={self.per_device_train_batch_size}, "
                f"num_generations={self.num_generations}: dynamic_sampling needs each group on one "
                "process. Make the first a multiple of the second."
            )
        kwargs = self.vllm_engine_kwargs or {}
        colocated = self.use_vllm and self.vllm_mode == "colocate"
        if kwargs and not colocated:
            raise ConfigError("vllm_engine_kwargs: a server has its own flags. Drop it.")
        parallel = kwargs.get("tensor_parallel_size", self.vllm_tensor_parallel_size)
        if colocated and parallel != 1:
            raise ConfigError(
                f"vllm_tensor_parallel_size={parallel}: colocated vLLM runs with 1, because ranks "
                "request different numbers of completions. Use vllm_mode=server for a larger one."
            )


@dataclass
class AsyncTrainConfig(EpisodeConfig, TrainingArguments):
    """GRPO over whole episodes, sampled while the trainer steps; counts are as in `TrainConfig`."""

    refused: ClassVar = ("episodes", "async")

    use_vllm: bool = setting(
        False,
        "Sample from vLLM servers (vllm_server_base_url, several with commas); otherwise from a "
        "second copy of the model in this process.",
    )
    beta: float = setting(0.0, "KL coefficient, to the model without its adapter; 0 is none.")
    shuffle_dataset: bool = setting(True, "Take the tasks in random order.")

    model_init_kwargs: dict[str, Any] | None = setting(None, "Of `from_pretrained`, a JSON object.")
    trust_remote_code: bool = setting(False, "Run code that a model on the hub brings.")
    cast_lm_head_to_fp32: bool = setting(False, "Compute logits in float32 (docs/vllm.md).")
    temperature: float = setting(1.0, "Sampling temperature.")
    epsilon: float = setting(0.2, "PPO clip below: ratio >= 1 - epsilon.")
    lr_scheduler_type: str = setting("constant", "Schedule of the learning rate.")
    vllm_server_base_url: str = setting("http://localhost:8000", "URLs of servers, with commas.")
    vllm_server_timeout: float = setting(240.0, "Seconds to wait while no server answers.")
    request_timeout: int = setting(600, "Seconds that a request may take.")
    weight_sync_steps: int = setting(1, "Updates between two publications of the weights.")
    heartbeat_stale_after_s: float = setting(300.0, "Seconds without a completion that end a run.")
    # Defaults of arXiv 2601.08323 where it gives one.
    output_dir: str = setting("runs/async", "Folder of checkpoints and logs.")
    max_staleness: int = setting(
        2,
        "Versions of the weights that a group may be older than those in training. 0 waits for "
        "every update: on-policy.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, max_staleness=0, beta=0, weight_sync_steps=1)
        if self.eval_data and self.weight_sync_steps > 1:
            raise ConfigError(
                f"weight_sync_steps={self.weight_sync_steps}: must be 1 with eval_data, because an "
                "evaluation publishes the weights."
            )


@dataclass
class PolicyModelConfig(ModelConfig):
    """TRL's `ModelConfig`, and the model under an adapter that is trained further."""

    base_model: str | None = setting(
        None, "Folder or hub name of the model under an adapter; unset: the one that it names."
    )


@dataclass
class SampledModelConfig(PolicyModelConfig):
    """The model of a stage that samples what it trains on."""

    lora_dropout: float = setting(0.0, "LoRA dropout; only 0 is supported.")


@dataclass
class ColdStartConfig(StageConfig, SFTConfig):
    """Supervised fine-tuning on demonstrations, before GRPO."""

    refused: ClassVar = ("sft",)

    data: str = setting("", "Trace file, or folder of traces, such as of `atommem eval`.")
    min_reward: float = setting(1.0, "Lowest reward of an episode to learn from.")
    output_dir: str = setting("runs/sft", "Folder of checkpoints and logs.")
    logging_steps: float = setting(10, "Updates between two log entries.")
    max_length: int | None = setting(None, "Longest prompt plus completion; longer: refused.")
    max_completion_length: int = setting(1024, "Longest completion of a step when it is used.")

"""Settings that on-policy and asynchronous training share: what an update is made of, and what is written of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from atommem.config import check_choice
from atommem.errors import ConfigError
from atommem.train.objective.rows import LOSS_TYPES, NORMALIZATIONS
from atommem.train.stage_config import StageConfig


@dataclass
class EpisodeConfig(StageConfig):
    """Mixed into a configuration of TRL. Defaults are those of arXiv 2601.08323 where it gives one."""

    data: str = field(
        default="", metadata={"help": "File of training tasks (`atommem data build`)."}
    )
    eval_data: str | None = field(
        default=None,
        metadata={
            "help": "File of held-out tasks, for evaluation during training (eval_strategy, eval_steps)."
        },
    )
    eval_temperature: float | None = field(
        default=None,
        metadata={
            "help": "Sampling temperature of evaluation: 0 is greedy, unset is that of training."
        },
    )
    num_generations_eval: int | None = field(
        default=None, metadata={"help": "Episodes per held-out task in evaluation; unset is 1."}
    )
    loss_type: str = field(
        default="dapo",
        metadata={
            "help": "TRL's name of the loss: dapo, grpo, dr_grpo (PPO's clipped one, normalised by tokens, steps, or a "
            "constant), or cispo (by tokens; epsilon_high is the largest ratio itself)."
        },
    )
    importance_sampling_level: str = field(
        default="token",
        metadata={
            "help": "What has one importance ratio: a token, or a sequence, which is one step (GSPO)."
        },
    )
    normalization: str = field(
        default="",
        metadata={
            "help": "What counts the same in the loss: every completion token of the update (token), every step "
            "(step), every episode (trajectory), or every token of a step of max_completion_length (constant). Unset: "
            "as loss_type says."
        },
    )
    scale_rewards: str = field(
        default="none",
        metadata={
            "help": "Divide advantages by the standard deviation of the group, of the batch, or not: none."
        },
    )
    overlong_filtering: bool = field(
        default=False,
        metadata={
            "help": "Do not train on episodes that a limit of tokens, time or context cut short (DAPO's)."
        },
    )
    rollout_batch_size: int = field(
        default=256, metadata={"help": "Most prompts that are sampled as one batch, without vLLM."}
    )
    rollout_batch_tokens: int = field(
        default=65_536,
        metadata={
            "help": "Most tokens in one sampling batch, without vLLM: bounds the key-value cache."
        },
    )
    episode_max_tokens: int | None = field(
        default=None,
        metadata={"help": "Most sampled tokens of an episode; it ends there and is scored."},
    )
    episode_max_seconds: float | None = field(
        default=None,
        metadata={"help": "Longest wall-clock time of an episode; it ends there and is scored."},
    )
    max_failed_fraction: float = field(
        default=0.5,
        metadata={
            "help": "Stop when more than this fraction of an update's episodes failed (servers gone, time-outs)."
        },
    )
    log_episodes: int = field(
        default=2,
        metadata={
            "help": "Whole episodes to show in output_dir/samples (and as a table in wandb, trackio)."
        },
    )
    log_episodes_steps: int = field(
        default=10, metadata={"help": "Updates between two times of log_episodes."}
    )
    save_traces: bool = field(
        default=False,
        metadata={"help": "Write every training episode to output_dir/traces/step-N/."},
    )
    num_generations: int = field(
        default=16, metadata={"help": "Episodes per task: the group size G."}
    )
    per_device_train_batch_size: int = field(
        default=64,
        metadata={"help": "Episodes per process and update (not rows: an episode has many steps)."},
    )
    max_completion_length: int = field(
        default=1024, metadata={"help": "Longest completion of a step, tokens."}
    )
    epsilon_high: float | None = field(
        default=0.28, metadata={"help": "PPO clip above: ratio <= 1 + epsilon_high."}
    )
    router_aux_loss_coef: float | None = field(
        default=0.0,
        metadata={"help": "Load-balancing loss of mixture-of-experts models; only 0 is supported."},
    )
    ddp_timeout: int = field(
        default=4 * 3600,
        metadata={
            "help": "Seconds that a process may wait for the others; those with short episodes wait for the longest."
        },
    )

    def __post_init__(self) -> None:
        if not self.num_generations or self.num_generations < 2:
            raise ConfigError(
                f"num_generations is {self.num_generations}: a group needs at least 2 episodes to compare."
            )
        if self.per_device_train_batch_size < 1:
            raise ConfigError(
                f"per_device_train_batch_size is {self.per_device_train_batch_size}: give at least 1 episode."
            )
        super().__post_init__()
        strategy = str(getattr(self.eval_strategy, "value", self.eval_strategy))  # type: ignore[attr-defined]  # TRL's
        if (strategy != "no") != bool(self.eval_data):
            raise ConfigError(
                f"eval_strategy is {strategy!r} and eval_data is {self.eval_data!r}: evaluation needs both, a file of "
                "held-out tasks and eval_strategy: steps with eval_steps."
            )
        if self.temperature <= 0:  # type: ignore[attr-defined]  # TRL's
            raise ConfigError(
                "temperature is 0 or less: log-probabilities are divided by it, and the episodes of a group would be "
                "alike. Give more (eval_temperature: 0 evaluates greedily)."
            )
        check_choice("loss_type", self.loss_type, tuple(LOSS_TYPES))
        check_choice(
            "importance_sampling_level", self.importance_sampling_level, ("token", "sequence")
        )
        self.normalization = self.normalization or LOSS_TYPES[self.loss_type]
        check_choice("normalization", self.normalization, NORMALIZATIONS)
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ConfigError(
                f"epsilon_high is {self.epsilon_high}: with loss_type cispo it is the largest importance ratio itself, "
                "so give at least 1 (ScaleRL, arXiv 2510.13786, takes 5)."
            )
        check_choice("scale_rewards", str(self.scale_rewards), ("none", "group", "batch"))
        if self.router_aux_loss_coef:
            raise ConfigError(
                f"router_aux_loss_coef is {self.router_aux_loss_coef}: only 0 is supported, because the term is a "
                "mean over a micro-batch and would depend on the token budget."
            )
        for name in ("episode_max_tokens", "episode_max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}: give a positive number, or leave it unset.")
        if not 0 <= self.max_failed_fraction <= 1:
            raise ConfigError(
                f"max_failed_fraction is {self.max_failed_fraction}: give a number from 0 to 1."
            )
        if self.log_episodes < 0 or self.log_episodes_steps < 1:
            raise ConfigError(
                f"log_episodes is {self.log_episodes} every {self.log_episodes_steps} updates: give 0 or more, and at "
                "least 1 for log_episodes_steps."
            )
        for name in ("rollout_batch_size", "rollout_batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1.")

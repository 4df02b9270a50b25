"""Settings of the long-document environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from atommem.config import check_choice
from atommem.environment import EnvironmentConfig
from atommem.envs.scoring.answers import check_reward
from atommem.envs.scoring.judge_config import JudgeConfig
from atommem.errors import ConfigError


@dataclass
class LongDocConfig(JudgeConfig, EnvironmentConfig):
    """How a document is cut, and how an episode is asked and scored."""

    chunking: str = field(
        default="tokens", metadata={"help": "tokens: cut the joined text; documents: one chunk a document."}
    )
    chunk_tokens: int = field(default=4000, metadata={"help": "Tokens a chunk."})
    whole_sentences: bool = field(default=False, metadata={"help": "End chunks where sentences end."})
    max_reads: int = field(
        default=3, metadata={"help": "Steps that a question may use before the step that must answer it."}
    )
    at_once: int = field(
        default=1,
        metadata={"help": "Questions asked at one step, at most (the templates memagent are worded for several)."},
    )
    reward: str = field(default="em", metadata={"help": "em, f1 or judge: the mean over a task's questions."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("chunking", self.chunking, ("tokens", "documents"))
        check_reward(self.reward)
        if self.reward == "judge" and self.judge_url is None:
            raise ConfigError("reward is judge: give judge_url and judge_model as well.")
        for name in ("chunk_tokens", "at_once"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1.")
        if self.max_reads < 0:
            raise ConfigError(f"max_reads is {self.max_reads}: give 0 or more.")

"""Settings of the web environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from atommem.config import check_choice
from atommem.environment import EnvironmentConfig
from atommem.envs.scoring.answers import check_reward
from atommem.envs.scoring.judge_config import JudgeConfig
from atommem.errors import ConfigError


@dataclass
class WebConfig(JudgeConfig, EnvironmentConfig):
    """Which tools there are, how often they may be called, and how an episode is scored."""

    tools: list[str] = field(
        default_factory=lambda: ["task"],
        metadata={
            "help": "Where tools come from: task (the documents of each task are its web), mcp (mcp_servers), or "
            "package.module:name of a typed function or a ToolSource; several with spaces."
        },
    )
    mcp_servers: list[str] = field(
        default_factory=list,
        metadata={"help": "URLs or command lines of MCP servers, whose tools are all offered (tools: mcp)."},
    )
    tool_seconds: float = field(default=120.0, metadata={"help": "Longest time of a call, seconds."})
    calls: str = field(
        default="json",
        metadata={
            "help": 'How a call is written: json (<tool_call>{"name": ..., "arguments": ...}</tool_call>) or compact '
            "(<tool_call>visit 3</tool_call>)."
        },
    )
    max_calls: int = field(default=40, metadata={"help": "Calls in an episode; then it must answer."})
    chunk_tokens: int = field(default=4000, metadata={"help": "Tokens of a page that a step shows; the rest follows."})
    search_results: int = field(default=5, metadata={"help": "Pages that a search shows."})
    max_reads: int = field(
        default=0, metadata={"help": "Where several questions are asked: steps before one must be answered."}
    )
    reward: str = field(default="em", metadata={"help": "em, f1 or judge: the mean over a task's questions."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("calls", self.calls, ("json", "compact"))
        check_reward(self.reward)
        if self.reward == "judge" and self.judge_url is None:
            raise ConfigError("reward is judge: give judge_url and judge_model as well.")
        if self.tool_seconds <= 0:
            raise ConfigError(f"tool_seconds is {self.tool_seconds}: give more than 0.")
        for name, least in (("max_calls", 1), ("chunk_tokens", 1), ("search_results", 1), ("max_reads", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least {least}.")
        if not self.tools:
            raise ConfigError("tools is empty: name at least one source (task).")

"""Settings of the web environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from atommem.config import check_choice
from atommem.envs.web.net.net_config import NetConfig
from atommem.errors import ConfigError


@dataclass
class WebConfig(NetConfig):
    """Which tools there are, how often they may be called, and how an episode is scored."""

    least: ClassVar = {**NetConfig.least, "max_calls": 1, "search_results": 1}

    tools: list[str] = field(
        default_factory=lambda: ["task"],
        metadata={
            "help": "Where tools come from: task (the documents of each task are its web); corpus (a folder of "
            "`atommem corpus build`); search engines serper, searxng, retrieve (search_url); readers direct, jina, "
            "access (reader_url); mcp (mcp_servers); or package.module:name of a typed function or a ToolSource. "
            "Several with spaces."
        },
    )
    mcp_servers: list[str] = field(
        default_factory=list,
        metadata={
            "help": "URLs or command lines of MCP servers, whose tools are all offered (tools: mcp); ${NAME} in them "
            "is a variable of the environment, for keys."
        },
    )
    corpus: str | None = field(default=None, metadata={"help": "Folder of the corpus (tools: corpus)."})
    corpus_search: str | None = field(
        default=None, metadata={"help": "lexical, dense or hybrid; unset is hybrid for a corpus with vectors."}
    )
    corpus_embedder: str | None = field(
        default=None, metadata={"help": "Where the model of the corpus's vectors lies here, if not where it was built."}
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
    search_results: int = field(default=5, metadata={"help": "Pages that a search shows."})
    max_reads: int = field(
        default=0, metadata={"help": "Where several questions are asked: steps before one must be answered."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("calls", self.calls, ("json", "compact"))
        if self.tool_seconds <= 0:
            raise ConfigError(f"tool_seconds is {self.tool_seconds}: give more than 0.")
        if not self.tools:
            raise ConfigError("tools is empty: name at least one source (task).")

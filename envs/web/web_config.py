"""Settings of the web environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from atommem.config import check_choice, check_least
from atommem.envs.question_answering import QAConfig
from atommem.errors import ConfigError


@dataclass
class WebConfig(QAConfig):
    """Which tools there are, where they ask, what may be asked of the live web, and how an episode is scored."""

    operational = frozenset(
        {"search_url", "reader_url", "tool_retries", "tool_requests", "parse_workers", "private_hosts"}
        | {"cassette", "call_budget", "cost_budget", "call_prices"}
    )

    search_url: str | None = field(
        default=None, metadata={"help": "The server of tools searxng or retrieve (serper has its own)."}
    )
    reader_url: str | None = field(
        default=None, metadata={"help": "The server of tools access (unset: search_url) or jina (unset: Jina's own)."}
    )
    tool_retries: int = field(default=3, metadata={"help": "How often a search engine or reader is asked again."})
    tool_requests: int = field(default=32, metadata={"help": "Most requests in flight at a search engine or reader."})
    allow_hosts: list[str] = field(
        default_factory=list,
        metadata={"help": "The only hosts (or host/path) that may be visited or found; unset: all but deny_hosts."},
    )
    deny_hosts: list[str] = field(
        default_factory=list,
        metadata={"help": "Hosts (or host/path) that may not, beside those that publish benchmarks' answers."},
    )
    private_hosts: list[str] = field(
        default_factory=list,
        metadata={"help": "host:port of servers on private addresses that direct may visit all the same."},
    )
    obey_robots: bool = field(default=True, metadata={"help": "Whether direct holds to robots.txt."})
    user_agent: str = field(default="atommem", metadata={"help": "What direct calls itself."})
    page_megabytes: float = field(
        default=10.0, metadata={"help": "Largest page that direct reads, as sent or unpacked."}
    )
    page_seconds: float = field(default=30.0, metadata={"help": "Longest time to fetch a page, redirects included."})
    parse_seconds: float = field(default=10.0, metadata={"help": "Longest time to read the text of a page."})
    parse_megabytes: int = field(default=1024, metadata={"help": "Address space of a process that reads pages."})
    parse_workers: int = field(default=2, metadata={"help": "Processes that read pages."})

    cassette: str | None = field(
        default=None, metadata={"help": "A file that calls of tools are recorded on and answered from (unset: none)."}
    )
    cassette_mode: str = field(
        default="live",
        metadata={
            "help": "live (what is not on the cassette is asked and recorded), replay (it is an outage) or frozen "
            "(it does not exist)."
        },
    )
    call_budget: int | None = field(
        default=None, metadata={"help": "Most calls that the cassette may ever record; then the run stops."}
    )
    cost_budget: float | None = field(
        default=None, metadata={"help": "Most money for them (call_prices); then the run stops."}
    )
    call_prices: list[str] = field(
        default_factory=list, metadata={"help": "What a call costs: search=0.001, several with spaces."}
    )

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
        check_least(self, tool_retries=0, tool_requests=1, max_calls=1, search_results=1)
        check_least(self, parse_workers=1, parse_megabytes=256)  # its libraries need that much
        check_choice("calls", self.calls, ("json", "compact"))
        if not self.tools:
            raise ConfigError("tools is empty: name at least one source (task).")
        check_choice("cassette_mode", self.cassette_mode, ("live", "replay", "frozen"))
        limited = self.call_budget is not None or self.cost_budget is not None
        if self.cassette is None and (limited or self.cassette_mode != "live"):
            raise ConfigError("cassette_mode, call_budget and cost_budget are of a cassette, and cassette is unset.")
        if not all(re.fullmatch(r"\w+=\d*\.?\d+", price) for price in self.call_prices):
            raise ConfigError(f"call_prices is {self.call_prices}: write a tool and its price, as search=0.001.")
        if self.cost_budget is not None and not self.call_prices:
            raise ConfigError(f"cost_budget is {self.cost_budget:g} and no price is known: give call_prices.")
        if not all(re.fullmatch(r".+:\d+", place) for place in self.private_hosts):
            raise ConfigError(f"private_hosts is {self.private_hosts}: write host:port.")
        if not (self.user_agent.isascii() and self.user_agent.isprintable() and self.user_agent.strip()):
            raise ConfigError(f"user_agent is {self.user_agent!r}: give printable ASCII.")
        for name in ("tool_seconds", "page_megabytes", "page_seconds", "parse_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give more than 0.")

"""Settings of the web environment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from atommem.config import check_choice, check_least, setting
from atommem.envs.question_answering import QAConfig
from atommem.errors import ConfigError


@dataclass
class WebConfig(QAConfig):
    """Which tools there are, where they ask, what may be asked of the live web, and how an episode is scored."""

    operational = frozenset(
        {
            "search_url",
            "reader_url",
            "tool_retries",
            "tool_requests",
            "parse_workers",
            "private_hosts",
        }
        | {"cassette", "call_budget", "cost_budget", "call_prices"}
    )

    search_url: str | None = setting(
        None, "The server of tools searxng or retrieve (serper has its own)."
    )
    reader_url: str | None = setting(
        None, "The server of tools access (unset: search_url) or jina (unset: Jina's own)."
    )
    tool_retries: int = setting(3, "How often a search engine or reader is asked again.")
    tool_requests: int = setting(32, "Most requests in flight at a search engine or reader.")
    allow_hosts: list[str] = setting(
        [], "The only hosts (or host/path) that may be visited or found; unset: all but deny_hosts."
    )
    deny_hosts: list[str] = setting(
        [], "Hosts (or host/path) that may not, beside those that publish benchmarks' answers."
    )
    private_hosts: list[str] = setting(
        [], "host:port of servers on private addresses that direct may visit all the same."
    )
    obey_robots: bool = setting(True, "Whether direct holds to robots.txt.")
    user_agent: str = setting("atommem", "What direct calls itself.")
    page_megabytes: float = setting(10.0, "Largest page that direct reads, as sent or unpacked.")
    page_seconds: float = setting(30.0, "Longest time to fetch a page, redirects included.")
    parse_seconds: float = setting(10.0, "Longest time to read the text of a page.")
    parse_megabytes: int = setting(1024, "Address space of a process that reads pages.")
    parse_workers: int = setting(2, "Processes that read pages.")

    cassette: str | None = setting(
        None, "A file that calls of tools are recorded on and answered from (unset: none)."
    )
    cassette_mode: str = setting(
        "live",
        "live (what is not on the cassette is asked and recorded), replay (it is an outage) or frozen "
        "(it does not exist).",
    )
    call_budget: int | None = setting(
        None, "Most calls that the cassette may ever record; then the run stops."
    )
    cost_budget: float | None = setting(
        None, "Most money for them (call_prices); then the run stops."
    )
    call_prices: list[str] = setting([], "What a call costs: search=0.001, several with spaces.")

    tools: list[str] = setting(
        ["task"],
        "Where tools come from: task (the documents of each task are its web); corpus (a folder of "
        "`atommem corpus build`); search engines serper, searxng, retrieve (search_url); readers direct, jina, "
        "access (reader_url); mcp (mcp_servers); or package.module:name of a typed function or a ToolSource. "
        "Several with spaces.",
    )
    mcp_servers: list[str] = setting(
        [],
        "URLs or command lines of MCP servers, whose tools are all offered (tools: mcp); ${NAME} in them "
        "is a variable of the environment, for keys.",
    )
    corpus: str | None = setting(None, "Folder of the corpus (tools: corpus).")
    corpus_search: str | None = setting(
        None, "lexical, dense or hybrid; unset is hybrid for a corpus with vectors."
    )
    corpus_embedder: str | None = setting(
        None, "Where the model of the corpus's vectors lies here, if not where it was built."
    )
    tool_seconds: float = setting(120.0, "Longest time of a call, seconds.")
    calls: str = setting(
        "json",
        'How a call is written: json (<tool_call>{"name": ..., "arguments": ...}</tool_call>) or compact '
        "(<tool_call>visit 3</tool_call>).",
    )
    max_calls: int = setting(40, "Calls in an episode; then it must answer.")
    search_results: int = setting(5, "Pages that a search shows.")
    max_reads: int = setting(
        0, "Where several questions are asked: steps before one must be answered."
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
            raise ConfigError(
                "cassette_mode, call_budget and cost_budget are of a cassette, and cassette is unset."
            )
        if not all(re.fullmatch(r"\w+=\d*\.?\d+", price) for price in self.call_prices):
            raise ConfigError(
                f"call_prices is {self.call_prices}: write a tool and its price, as search=0.001."
            )
        if self.cost_budget is not None and not self.call_prices:
            raise ConfigError(
                f"cost_budget is {self.cost_budget:g} and no price is known: give call_prices."
            )
        if not all(re.fullmatch(r".+:\d+", place) for place in self.private_hosts):
            raise ConfigError(f"private_hosts is {self.private_hosts}: write host:port.")
        if not (
            self.user_agent.isascii() and self.user_agent.isprintable() and self.user_agent.strip()
        ):
            raise ConfigError(f"user_agent is {self.user_agent!r}: give printable ASCII.")
        for name in ("tool_seconds", "page_megabytes", "page_seconds", "parse_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give more than 0.")

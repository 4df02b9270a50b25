"""Settings of the web environment."""

from dataclasses import dataclass

from atommem.config import check_choice, check_least, setting
from atommem.envs.question_answering import QAConfig
from atommem.errors import ConfigError


@dataclass
class WebConfig(QAConfig):
    """Tools and their servers, limits of the live web, recordings, and a budget."""

    operational = frozenset(
        {"search_url", "reader_url", "tool_retries", "tool_requests", "recording", "call_budget"}
    )

    search_url: str | None = setting(None, "Server of the tools searxng, retrieve, serper.")
    reader_url: str | None = setting(
        None, "Server of the tools access (unset: search_url) and jina (unset: Jina's own)."
    )
    tool_retries: int = setting(3, "Retries of a request to a search engine or reader.")
    tool_requests: int = setting(32, "Requests in flight at a search engine or reader.")
    allow_hosts: list[str] = setting(
        [], "The only hosts (or host/path) that may be visited or found; unset: all but deny_hosts."
    )
    deny_hosts: list[str] = setting(
        [], "Hosts (or host/path) that may not, beside those that publish benchmark answers."
    )
    obey_robots: bool = setting(True, "Whether direct obeys robots.txt.")
    user_agent: str = setting("atommem", "User agent of direct.")
    page_megabytes: float = setting(
        10.0, "Largest page of direct or answer of a search engine or reader, unpacked."
    )
    page_seconds: float = setting(30.0, "Longest request of direct.")
    parse_seconds: float = setting(10.0, "Longest time to extract the text of a page.")
    parse_megabytes: int = setting(1024, "Address space of a process that extracts text.")

    recording: str | None = setting(
        None, "File that tool calls are recorded in and answered from (unset: none)."
    )
    recording_mode: str = setting(
        "record",
        "record (make and record calls that are not recorded), replay (they are outages) or frozen "
        "(their pages do not exist).",
    )
    call_budget: int | None = setting(None, "Most calls that the recording may ever make.")

    tools: list[str] = setting(
        ["task"],
        "Tool sources: task (the documents of each task are its web); corpus (a folder of "
        "`atommem corpus build`); search engines serper, searxng, retrieve (search_url); readers "
        "direct, jina, access (reader_url); mcp (mcp_servers); or package.module:name of a typed "
        "function or a ToolSource. Several with spaces.",
    )
    mcp_servers: list[str] = setting(
        [], "URLs or command lines of MCP servers (tools: mcp); ${NAME} is an environment variable."
    )
    corpus: str | None = setting(None, "Folder of the corpus (tools: corpus).")
    corpus_search: str | None = setting(
        None, "lexical, dense or hybrid; unset: hybrid if the corpus has vectors."
    )
    corpus_embedder: str | None = setting(
        None, "Location of the corpus's embedder here, if it differs from where it was built."
    )
    tool_seconds: float = setting(120.0, "Longest call, seconds.")
    calls: str = setting(
        "json",
        'Syntax of a call: json (<tool_call>{"name": ..., "arguments": ...}</tool_call>) or '
        "compact (<tool_call>visit 3</tool_call>).",
    )
    max_calls: int = setting(40, "Calls of an episode; then it must answer.")
    search_results: int = setting(5, "Pages that a search shows.")
    max_reads: int = setting(
        0, "If several questions are asked: steps before one must be answered."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, tool_retries=0, tool_requests=1, max_calls=1, search_results=1)
        check_least(self, parse_megabytes=256)  # the libraries need that much
        check_choice("calls", self.calls, ("json", "compact"))
        check_choice("recording_mode", self.recording_mode, ("record", "replay", "frozen"))
        if not self.tools:
            raise ConfigError("tools is empty. Name at least one source (task).")
        if self.recording is None and (self.call_budget or self.recording_mode != "record"):
            raise ConfigError("recording_mode and call_budget need recording=FILE.")
        if not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ConfigError(f"user_agent={self.user_agent!r}: use printable ASCII.")
        for name in ("tool_seconds", "page_megabytes", "page_seconds", "parse_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be above 0.")

"""Tools as in the Model Context Protocol: name, description, schema, and a call.

A failure's cause decides its effect:

- the page (missing, without text, too slow): `PageError`, an observation like any other;
- the policy (no such tool, wrong arguments): a problem of its completion, and an observation;
- the provider (key refused, gone, overloaded): `OutageError`; the episode fails, not scored."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.errors import AtomMemError
from atommem.words import TOKEN, fold_case


class PageError(AtomMemError):
    """A page cannot be read, maybe as a server's `status` says. The policy sees the message."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Link:
    """A link: its title, and the argument of `visit` that follows it."""

    title: str
    target: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; entries record its `origin`, the address of a page."""

    text: str
    is_error: bool = False
    title: str = ""
    links: tuple[Link, ...] = ()
    origin: str = ""


Run = Callable[[Mapping[str, Any], Any], Awaitable[ToolResult]]
"""Carries out a call with arguments that fit the schema, on a task; raises `OutageError`."""
RunText = Callable[[str, Any], Awaitable[ToolResult]]


@dataclass(frozen=True)
class Tool:
    """A tool; the argument `follows` may be the number of a link."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Run = field(repr=False)
    follows: str | None = None

    @property
    def argument(self) -> str:
        """The argument of a compact call: the first required one, or the first of all."""
        names = [*self.schema.get("required", ()), *self.schema.get("properties", ())]
        return names[0] if names else ""


def text_tool(name: str, description: str, argument: str, about: str, run: RunText) -> Tool:
    """Return a tool of one string, for ``visit`` maybe a link's number; `PageError` is a result."""

    async def run_or_explain(arguments: Mapping[str, Any], task: Any) -> ToolResult:
        try:
            return await run(str(arguments[argument]), task)
        except PageError as error:
            return ToolResult(str(error), is_error=True)

    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": about}},
        "required": [argument],
        "additionalProperties": False,
    }
    return Tool(name, description, schema, run_or_explain, argument if name == "visit" else None)


def visit_tool(read: Callable[[str], Awaitable[ToolResult]]) -> Tool:
    async def visit(page: str, task: Any) -> ToolResult:
        result = await read(page.strip())
        if not result.text.strip():
            raise PageError(f"{result.origin} has no text.")
        return result

    page = "A page's address (https://...), or the number of a link shown now."
    return text_tool("visit", "Shows a page.", "page", page, visit)


def search_result(query: str, lines: Sequence[str], links: Sequence[Link]) -> ToolResult:
    """Return the result of a search; raises `PageError` if nothing was found."""
    if not lines:
        raise PageError(f"No page was found for: {query}")
    return ToolResult("\n".join(lines), links=tuple(links))


class ToolSource:
    """A source of tools: an entry point of the group ``atommem.tools``, made with a `WebConfig`."""

    backend: str | None = None  # what answers, as a key of recordings; None: this machine
    tools: Sequence[Tool]

    def __init__(self, config: Any) -> None:
        self.config = config

    def identity(self) -> Mapping[str, Any]:
        """Return values for manifests in place of settings that are only a location."""
        return {}

    async def close(self) -> None:
        return


_SNIPPET_WORDS = 40
_MAX_TITLE_WORDS = 10


def fold(title: str) -> str:
    """Return a title with normalized case and white space."""
    return " ".join(fold_case(title).split())


def core(title: str) -> str:
    """Return a folded title from its first word to its last, without punctuation around them."""
    found = list(TOKEN.finditer(title))
    return fold(title[found[0].start() : found[-1].end()]) if found else fold(title)


def snippet(text: str, query: str) -> str:
    """Return the forty words of `text` with the most words of `query`."""
    wanted = {fold_case(word) for word in TOKEN.findall(query)}
    found = list(TOKEN.finditer(text))
    hits = [at for at, word in enumerate(found) if fold_case(word[0]) in wanted]

    def hits_after(at: int) -> int:
        return bisect_left(hits, at + _SNIPPET_WORDS * 3 // 4) - bisect_left(hits, at)

    best = max(hits, key=hits_after, default=0)
    part = found[max(0, best - _SNIPPET_WORDS // 4) :][:_SNIPPET_WORDS]
    return " ".join(text[part[0].start() : part[-1].end()].split()) if part else ""


def named_titles(text: str, find_titles: Callable[[Iterable[str]], Mapping[str, str]]) -> list[str]:
    """Return the titles that `text` names, in the order of their mention.

    The longest title at a place counts. Names do not start with a small letter. `find_titles` maps
    those of some strings that are the `core` of a title to the title.
    """
    found = list(TOKEN.finditer(text))
    spans: dict[int, dict[str, int]] = {}
    for at, word in enumerate(found):
        if not word[0][0].islower():
            ends = range(min(at + _MAX_TITLE_WORDS, len(found)) - 1, at - 1, -1)
            spans[at] = {fold(text[word.start() : found[end].end()]): end for end in ends}
    titles = find_titles({span for candidates in spans.values() for span in candidates})
    named: dict[str, None] = {}
    after = 0
    for at, candidates in spans.items():
        title = next((span for span in candidates if span in titles), None) if at >= after else None
        if title is not None:
            after = candidates[title] + 1
            named[titles[title]] = None
    return list(named)

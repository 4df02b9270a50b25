"""Tools as the Model Context Protocol has them: a name, a description, a JSON schema, and a call that gives text.

Whose fault a failure is decides what becomes of it:

- the page's (not found, no text, too slow): `PageError`, an observation like any other;
- the policy's (no such tool, arguments that do not fit): a problem of its completion, and an observation;
- the provider's (key refused, gone, overloaded after retries): `OutageError`; the episode has failed and is not scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem.errors import AtomMemError

LONGEST_TEXT = 500_000
"""Characters of a page, or of another result from outside: some thirty steps of 4,000 tokens."""


class PageError(AtomMemError):
    """A page cannot be had or read (404, not allowed, too large, no text). Its message is what the policy is shown.

    Attributes:
        status: Of the answer, where the page's server gave one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Link:
    """Something that can be visited: how it is called, and what `visit` is given for it."""

    title: str
    target: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave.

    Attributes:
        text: For the policy.
        is_error: Whether it says why there is nothing else.
        title: Of a page.
        links: What can be visited from here.
        origin: Where it comes from (an address), for the entries that are written while it is shown.
    """

    text: str
    is_error: bool = False
    title: str = ""
    links: tuple[Link, ...] = ()
    origin: str = ""


Run = Callable[[Mapping[str, Any], Any], Awaitable[ToolResult]]
"""Carries out a call: its arguments, which fit the schema, and the task.

Raises:
    OutageError: The provider is out of reach.
"""


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name, description: For the policy.
        schema: JSON schema of the arguments.
        run: Carries out a call.
        follows: The argument that may be the number of a link that is shown.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Run = field(repr=False)
    follows: str | None = None

    @property
    def argument(self) -> str:
        """The argument that a call in the compact form gives: the first required one, or the first of all."""
        names = [*self.schema.get("required", ()), *self.schema.get("properties", ())]
        return names[0] if names else ""


def text_tool(
    name: str,
    description: str,
    argument: str,
    told: str,
    run: Callable[[str, Any], Awaitable[ToolResult]],
) -> Tool:
    """A tool that takes one text, and shows the faults of pages.

    Args:
        name, description: The tool's, for the policy; that of ``visit`` may be given the number of a link.
        argument, told: Of its argument, the name and the description.
        run: Carries out a call with this text, on a task.
    """

    async def observed(arguments: Mapping[str, Any], task: Any) -> ToolResult:
        try:
            return await run(str(arguments[argument]), task)
        except PageError as error:
            return ToolResult(str(error), is_error=True)

    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": told}},
        "required": [argument],
        "additionalProperties": False,
    }
    return Tool(name, description, schema, observed, argument if name == "visit" else None)


class ToolSource(ABC):
    """Where tools come from: an entry point of the group ``atommem.tools``, made with the environment's settings.

    Attributes:
        config: These settings.
        backend: What answers, with its version and what else changes its answers, where calls are worth recording on a
            cassette; None where they are free and always the same.
    """

    backend: str | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """Settings that only say where something lies, as what lies there."""
        return {}

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """What can be called."""

    async def close(self) -> None:
        """Free what it holds."""
        return

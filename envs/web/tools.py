"""Tools as the Model Context Protocol has them: a name, a description, a JSON schema, and a call that gives text.

Whose fault a failure is decides what becomes of it:

- the page's (not found, no text, too slow): `ToolResult.is_error`, an observation like any other;
- the policy's (no such tool, arguments that do not fit): a problem of its completion, and an observation;
- the provider's (key refused, gone, overloaded after retries): `OutageError`; the episode has failed and is not scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LONGEST_TEXT = 500_000
"""Characters of a page, or of another result from outside: some thirty steps of 4,000 tokens."""


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

"""Tools as the Model Context Protocol has them: a name, a description, a JSON schema, and a call that gives text.

Whose fault a failure is decides what becomes of it:

- the page's (not found, no text, too slow): `ToolResult.is_error`, an observation like any other;
- the policy's (no such tool, arguments that do not fit): a problem of its completion, and an observation;
- the provider's (key refused, gone, overloaded after retries): `OutageError`; the episode has failed and is not scored.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atommem import plugins
from atommem.errors import ConfigError

GROUP = "atommem.tools"
"""The group of entry points that sources of tools are found in."""
_OURS = {"task": "atommem.envs.web.task_pages:TaskPages"}


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
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """What can be called."""

    async def close(self) -> None:
        """Free what it holds."""
        return


class FunctionSource(ToolSource):
    """A typed Python function, plain or async, as a tool: its docstring describes it, its annotations are the schema.

    Raises:
        ConfigError: The function lacks a docstring or annotations.
    """

    def __init__(self, config: Any, function: Callable[..., Any]) -> None:
        super().__init__(config)
        from transformers.utils import chat_template_utils as schemas

        try:
            described = schemas.get_json_schema(function)["function"]
        except (schemas.TypeHintParsingException, schemas.DocstringParsingException) as error:
            raise ConfigError(f"{function.__name__} is no tool: {error}") from error

        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            result = function(**arguments)
            text = await result if inspect.isawaitable(result) else result
            return text if isinstance(text, ToolResult) else ToolResult(str(text))

        schema = {**described["parameters"], "additionalProperties": False}
        self._tool = Tool(described["name"], described["description"], schema, run)

    @property
    def tools(self) -> Sequence[Tool]:
        """The one."""
        return (self._tool,)


def make_sources(names: Sequence[str], config: Any) -> list[ToolSource]:
    """The sources called `names`: of the group ``atommem.tools``, or dotted paths of a source or a function.

    Raises:
        ConfigError: There is none of a name, it is none, or two tools share a name.
    """
    sources: list[ToolSource] = []
    for name in names:
        found = plugins.find(GROUP, name, _OURS)
        if isinstance(found, type) and issubclass(found, ToolSource):
            sources.append(found(config))
        elif inspect.isfunction(found):
            sources.append(FunctionSource(config, found))
        else:
            raise ConfigError(f"tools name {name!r}, which is {found!r}: give a ToolSource or a function.")
    called = [tool.name for source in sources for tool in source.tools]
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        raise ConfigError(f"several tools are called {', '.join(twice)}: leave out one of the sources {list(names)}.")
    return sources

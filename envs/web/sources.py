"""Tool sources by name, and typed Python functions as tools."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from anyio import to_thread

from atommem import plugins
from atommem.envs.web.net.guard import HostRules
from atommem.envs.web.tools import Tool, ToolResult, ToolSource
from atommem.errors import AtomMemError, ConfigError, OutageError

GROUP = "atommem.tools"  # entry-point group of tool sources


def make_sources(names: Sequence[str], config: Any) -> list[ToolSource]:
    """Return sources by name: entry points, or dotted paths of sources or functions."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    sources: list[ToolSource] = []
    for name in names:
        found = plugins.find(GROUP, name)
        if isinstance(found, type) and issubclass(found, ToolSource):
            sources.append(found(config))
        elif inspect.isfunction(found):
            sources.append(FunctionSource(config, found))
        else:
            raise ConfigError(f"tools={name}: not a ToolSource or a function. Got {found!r}.")
    for tool in chain.from_iterable(source.tools for source in sources):
        try:
            validator_for(tool.schema).check_schema(dict(tool.schema))
        except (SchemaError, RecursionError) as error:
            why = f"invalid JSON schema. {str(error)[:300]}"
            raise ConfigError(f"tool {tool.name}: {why}") from error
    if config.recording is None:
        return sources
    if all(source.backend is None for source in sources):
        unrecorded = f"tools={list(names)} are never recorded. Unset it."
        raise ConfigError(f"recording={config.recording}: {unrecorded}")
    from atommem.envs.web.recording import RecordedSource

    return [source if source.backend is None else RecordedSource(source) for source in sources]


def make_tools(sources: Sequence[ToolSource], config: Any) -> dict[str, Tool]:
    """Return the tools by name; those with a backend obey the lists of hosts."""
    hosts = HostRules.of(config)
    tools: dict[str, Tool] = {}
    for source in sources:
        for tool in source.tools:
            if tool.name in tools:
                raise ConfigError(
                    f"tools={config.tools}: several are called {tool.name}. Drop one."
                )
            tools[tool.name] = tool if source.backend is None else _obey_hosts(tool, hosts)
    return tools


def _obey_hosts(tool: Tool, hosts: HostRules) -> Tool:
    """Return the tool without pages that may not be visited, whoever reads them."""

    async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
        page = str(arguments.get(tool.follows or "", ""))
        if hosts.allows(page):
            result = await tool.run(arguments, task)
            page = result.origin
            if hosts.allows(page):
                return result
        return ToolResult(f"{page} may not be visited.", is_error=True)

    return replace(tool, run=run)


class FunctionSource(ToolSource):
    """A typed Python function, plain or async, as a tool described by docstring and annotations.

    The policy sees the exceptions of the function, except AtomMem's own: `OutageError` fails the
    episode, as does a call that exceeds ``tool_seconds``. Plain functions run in threads.
    """

    def __init__(self, config: Any, function: Callable[..., Any]) -> None:
        super().__init__(config)
        self.backend = f"function {function.__module__}:{function.__qualname__}"
        from transformers.utils import chat_template_utils as schemas

        try:
            described = schemas.get_json_schema(function)["function"]
        except (schemas.TypeHintParsingException, schemas.DocstringParsingException) as error:
            raise ConfigError(f"tools={function.__name__}: not a tool. {error}") from error
        self._function = function
        schema = {**described["parameters"], "additionalProperties": False}
        self.tools = [Tool(described["name"], described["description"], schema, self._run)]

    async def _run(self, arguments: Mapping[str, Any], task: Any) -> ToolResult:
        limit = asyncio.timeout(self.config.tool_seconds)
        try:
            async with limit:
                if inspect.iscoroutinefunction(self._function):
                    result = await self._function(**arguments)
                else:
                    call = partial(self._function, **arguments)
                    result = await to_thread.run_sync(call, abandon_on_cancel=True)
        except AtomMemError:
            raise
        except Exception as error:
            if limit.expired():
                seconds = self.config.tool_seconds
                raise OutageError(f"{self.backend} exceeds tool_seconds={seconds:g}.") from error
            return ToolResult(f"{type(error).__name__}: {error}", is_error=True)
        return result if isinstance(result, ToolResult) else ToolResult(str(result))

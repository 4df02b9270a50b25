"""Tool sources by name, and typed Python functions as tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from atommem import plugins
from atommem.envs.web.tools import LONGEST_TEXT, Tool, ToolResult, ToolSource
from atommem.errors import AtomMemError, ConfigError, OutageError

GROUP = "atommem.tools"
"""Entry-point group of tool sources."""


def make_sources(names: Sequence[str], config: Any) -> list[ToolSource]:
    """Return sources by name: entry points, or dotted paths of sources or functions.

    Raises:
        ConfigError: A name is unknown, two tools share a name, or a tool's schema is invalid.
    """
    sources: list[ToolSource] = []
    for name in names:
        found = plugins.find(GROUP, name)
        if isinstance(found, type) and issubclass(found, ToolSource):
            sources.append(found(config))
        elif inspect.isfunction(found):
            sources.append(FunctionSource(config, found))
        else:
            raise ConfigError(f"tools={name}: not a ToolSource or a function. Got {found!r}.")
    if config.recording is not None:
        if all(source.backend is None for source in sources):
            raise ConfigError(
                f"recording={config.recording}: tools={list(names)} are never recorded. Unset it."
            )
        from atommem.envs.web.recording import RecordedSource

        sources = [
            source if source.backend is None else RecordedSource(source) for source in sources
        ]
    tools: set[str] = set()
    for tool in (tool for source in sources for tool in source.tools):
        _check_schema(tool)
        if tool.name in tools:
            raise ConfigError(
                f"tools={list(names)}: several tools are called {tool.name}. Remove a source."
            )
        tools.add(tool.name)
    return sources


def _check_schema(tool: Tool) -> None:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(tool.schema).check_schema(dict(tool.schema))
    except (SchemaError, RecursionError) as error:
        raise ConfigError(f"tool {tool.name}: invalid JSON schema. {str(error)[:300]}") from error


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
        self._threads = ThreadPoolExecutor(config.tool_requests, "atommem-function")
        self._function = function
        schema = {**described["parameters"], "additionalProperties": False}
        self._tool = Tool(described["name"], described["description"], schema, self._run)

    @property
    def tools(self) -> Sequence[Tool]:
        """The function."""
        return (self._tool,)

    async def close(self) -> None:
        """Stop without waiting for running calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, arguments: Mapping[str, Any], task: Any) -> ToolResult:
        work = partial(self._function, **arguments)
        limit = asyncio.timeout(self.config.tool_seconds)
        try:
            async with limit:
                if inspect.iscoroutinefunction(self._function):
                    result = await work()
                else:
                    loop = asyncio.get_running_loop()
                    result = await loop.run_in_executor(self._threads, work)
        except AtomMemError:
            raise
        except Exception as error:
            if limit.expired():
                seconds = self.config.tool_seconds
                raise OutageError(f"{self.backend} exceeds tool_seconds={seconds:g}.") from error
            return ToolResult(f"{type(error).__name__}: {error}"[:LONGEST_TEXT], is_error=True)
        return result if isinstance(result, ToolResult) else ToolResult(str(result)[:LONGEST_TEXT])

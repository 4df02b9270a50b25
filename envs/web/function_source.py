"""A typed Python function as a tool."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from atommem.envs.web.tools import LONGEST_TEXT, Tool, ToolResult, ToolSource
from atommem.errors import AtomMemError, ConfigError, OutageError


class FunctionSource(ToolSource):
    """A typed Python function, plain or async, as a tool: its docstring describes it, its annotations are the schema.

    As at an MCP server, what it raises is what the policy is shown, but for our own errors: `OutageError` where its
    provider is out of reach; one that is silent for ``tool_seconds`` has an outage too. A plain one runs in a thread,
    and several calls of it may run at a time. With a cassette its calls are recorded as a server's are: whether it asks
    one, or the clock, only its author knows.

    Raises:
        ConfigError: The function lacks a docstring or annotations.
    """

    def __init__(self, config: Any, function: Callable[..., Any]) -> None:
        super().__init__(config)
        self.backend = f"function {function.__module__}:{function.__qualname__}"
        from transformers.utils import chat_template_utils as schemas

        try:
            described = schemas.get_json_schema(function)["function"]
        except (schemas.TypeHintParsingException, schemas.DocstringParsingException) as error:
            raise ConfigError(f"{function.__name__} is no tool: {error}") from error

        # Not the loop's, which cut pages: they are few, and strangers' code may wait in these.
        self._threads = ThreadPoolExecutor(
            config.tool_requests, thread_name_prefix="atommem-function"
        )
        is_async = inspect.iscoroutinefunction(function)

        async def run(arguments: Mapping[str, Any], task: Any) -> ToolResult:
            limit, loop = asyncio.timeout(config.tool_seconds), asyncio.get_running_loop()
            try:
                async with limit:
                    work = partial(function, **arguments)
                    result = work() if is_async else await loop.run_in_executor(self._threads, work)
                    text = await result if inspect.isawaitable(result) else result
            except AtomMemError:
                raise
            except Exception as error:
                if limit.expired():
                    raise OutageError(
                        f"{self.backend} is silent for {config.tool_seconds:g} seconds."
                    ) from error
                return ToolResult(f"{type(error).__name__}: {error}"[:LONGEST_TEXT], is_error=True)
            return text if isinstance(text, ToolResult) else ToolResult(str(text)[:LONGEST_TEXT])

        schema = {**described["parameters"], "additionalProperties": False}
        self._tool = Tool(described["name"], described["description"], schema, run)

    @property
    def tools(self) -> Sequence[Tool]:
        """The one."""
        return (self._tool,)

    async def close(self) -> None:
        """Wait for no call."""
        self._threads.shutdown(wait=False, cancel_futures=True)

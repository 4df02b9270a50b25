"""A typed Python function as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atommem.envs.web.tools import Tool, ToolResult, ToolSource
from atommem.errors import ConfigError


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

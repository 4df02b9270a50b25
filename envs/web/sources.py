"""Sources of tools by their names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atommem import plugins
from atommem.envs.web.function_source import FunctionSource
from atommem.envs.web.tools import Tool, ToolSource
from atommem.errors import ConfigError

GROUP = "atommem.tools"
"""The group of entry points that sources of tools are found in."""
_OURS = {
    "task": "atommem.envs.web.task_pages:TaskPages",
    "corpus": "atommem.envs.web.corpus.corpus_source:CorpusSource",
    "mcp": "atommem.envs.web.mcp_source:McpSource",
    "serper": "atommem.envs.web.net.search_tools:Serper",
    "searxng": "atommem.envs.web.net.search_tools:Searxng",
    "retrieve": "atommem.envs.web.net.search_tools:Retrieve",
    "direct": "atommem.envs.web.net.reader_tools:Direct",
    "jina": "atommem.envs.web.net.reader_tools:Jina",
    "access": "atommem.envs.web.net.reader_tools:Access",
}


def make_sources(names: Sequence[str], config: Any) -> list[ToolSource]:
    """The sources called `names`: of the group ``atommem.tools``, or dotted paths of a source or a function.

    Raises:
        ConfigError: There is none of a name, it is none, two tools share a name, or a tool's schema cannot be used.
    """
    sources: list[ToolSource] = []
    for name in names:
        found = plugins.find(GROUP, name, _OURS)
        if isinstance(found, type) and issubclass(found, ToolSource):
            sources.append(found(config))
        elif inspect.isfunction(found):
            sources.append(FunctionSource(config, found))
        else:
            raise ConfigError(
                f"tools name {name!r}, which is {found!r}: give a ToolSource or a function."
            )
    if config.cassette is not None:
        recorded = [source for source in sources if source.backend is not None]
        if not recorded:
            raise ConfigError(
                f"cassette is {config.cassette}, and none of the tools {list(names)} is ever recorded."
            )
        from atommem.envs.web.net.recording import RecordedSource, Recorder

        recorder = Recorder(config)
        sources = [
            RecordedSource(source, recorder) if source in recorded else source for source in sources
        ]
    for tool in (tool for source in sources for tool in source.tools):
        _check_schema(tool)
    called = [tool.name for source in sources for tool in source.tools]
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        raise ConfigError(
            f"several tools are called {', '.join(twice)}: leave out one of the sources {list(names)}."
        )
    return sources


def _check_schema(tool: Tool) -> None:
    """A server may say anything of its tools; what no arguments could be held to would end every episode."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        validator_for(tool.schema).check_schema(dict(tool.schema))
        within = Registry().with_resource("", DRAFT202012.create_resource(tool.schema)).resolver()
        for reference in _references(tool.schema):
            within.lookup(reference)
    except (SchemaError, Unresolvable, RecursionError) as error:
        raise ConfigError(
            f"the tool {tool.name} has a schema that cannot be used: {str(error)[:300]}"
        ) from error


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from (
            schema[name] for name in ("$ref", "$dynamicRef") if isinstance(schema.get(name), str)
        )
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)

"""Tool calls out of what a model wrote: a JSON object of arguments that fits a schema, or why it is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from atommem.actions import Action, ActionSpec, Problem, ProblemReason
from atommem.text_safety import read_json

_MOST_CHECKS = 10_000
"""Keywords of a schema that the arguments of one call are held to: a third of a second."""
_DEEPEST = 64
"""How deeply the arguments of a call may be nested."""


def arguments_action(
    spec: ActionSpec, tag: str, body: str, start: int, end: int
) -> Action | Problem:
    """The action whose body is its arguments."""
    loaded, wrong = _json_object(body)
    if wrong:
        return Problem(ProblemReason.NOT_JSON, tag, start, end, wrong)
    return _with_arguments(spec, tag, loaded, body, start, end)


def tool_call(
    tools: Mapping[str, ActionSpec], tag: str, body: str, start: int, end: int
) -> Action | Problem:
    """The action of a call ``{"name": ..., "arguments": {...}}`` of one of `tools`, by their names."""
    loaded, wrong = _json_object(body)
    if wrong:
        return Problem(ProblemReason.NOT_JSON, tag, start, end, wrong)
    name, arguments = loaded.get("name"), loaded.get("arguments", {})
    if not isinstance(name, str) or name not in tools:
        return Problem(
            ProblemReason.UNKNOWN_TOOL,
            tag,
            start,
            end,
            f"no tool {name!r}; there are {', '.join(tools)}",
        )
    if isinstance(arguments, str):  # some models write them as JSON in a string
        arguments, wrong = _json_object(arguments)
    if wrong or not isinstance(arguments, dict):
        return Problem(
            ProblemReason.BAD_ARGUMENTS, tag, start, end, f"{name}: arguments must be a JSON object"
        )
    return _with_arguments(tools[name], tag, arguments, body, start, end)


def _with_arguments(
    spec: ActionSpec, tag: str, arguments: dict[str, Any], body: str, start: int, end: int
) -> Action | Problem:
    if spec.schema is not None:
        from jsonschema import ValidationError
        from referencing.exceptions import Unresolvable

        try:
            _validator(json.dumps(spec.schema, sort_keys=True))(arguments)
        except ValidationError as error:
            detail = f"{spec.name}: {error.message[:200]}"
            return Problem(ProblemReason.BAD_ARGUMENTS, tag, start, end, detail)
        except (
            RecursionError,
            OverflowError,
            Unresolvable,
        ) as error:  # a number of hundreds of digits is no float
            return Problem(ProblemReason.BAD_ARGUMENTS, tag, start, end, f"{spec.name}: {error}")
    return Action(spec.name, body, arguments=arguments, start=start, end=end)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Callable[[Any], None]:
    """What raises where arguments do not fit the schema.

    A schema may be a stranger's. Without a registry of its own, what a "$ref" names would be fetched, wherever it
    points; and a few dozen alternatives that name each other take for ever to be tried.
    """
    from jsonschema.validators import extend, validator_for
    from referencing import Registry

    loaded = json.loads(schema)
    known = validator_for(loaded)
    left = 0

    def counted(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def keyword(*arguments: Any) -> Iterator[Any]:
            nonlocal left
            left -= 1
            if left < 0:
                raise RecursionError("its schema has too much to be held against them")
            yield from check(*arguments) or ()

        return keyword

    made = extend(known, {name: counted(check) for name, check in known.VALIDATORS.items()})(
        loaded, registry=Registry()
    )

    def validate(arguments: Any) -> None:
        nonlocal left
        left = _MOST_CHECKS
        made.validate(arguments)

    return validate


def _json_object(body: str) -> tuple[dict[str, Any], str]:
    """A JSON object, or what is wrong with it."""
    try:
        loaded = read_json(body, _DEEPEST)
    except (ValueError, RecursionError) as error:
        return {}, f"not a JSON object: {str(error)[:100]}"
    return (loaded, "") if isinstance(loaded, dict) else ({}, "not a JSON object")

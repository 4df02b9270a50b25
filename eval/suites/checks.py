"""Checks of what a suite's file holds: names of fields and kinds of values."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from atommem.errors import ConfigError
from atommem.eval.eval_config import eval_parser

# What the suite itself says.
_OWN = ("data", "out", "method", "seed")
# All rows of a suite are compared on the same tasks, and run side by side.
_NOT_OF_A_ROW = (
    "environment",
    *("limit", "max_in_flight", "max_failed_fraction"),
    *("budget_tokens", "budget_money", "prompt_price", "completion_price"),
)


def check_fields(
    where: str, values: Any, kinds: Mapping[str, Any], required: Sequence[str] = ()
) -> None:
    """Check that `values` is a mapping with these fields only, each of its kind, the `required` ones among them.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}: give a mapping.")
    if unknown := [str(name) for name in values if name not in kinds]:
        raise ConfigError(
            f"{where}: unknown field {', '.join(unknown)}; known are {', '.join(kinds)}."
        )
    if missing := [name for name in required if name not in values]:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing.")
    for name, value in values.items():
        if not fits(value, kinds[name]):
            kind = kinds[name] if typing.get_origin(kinds[name]) else kinds[name].__name__
            raise ConfigError(f"{where}: {name} is {value!r}, expected {kind}.")


def check_settings(where: str, settings: Any, environment: str, *, row: bool = False) -> None:
    """Check settings of ``atommem eval`` in a suite, of a `row` (or column) or of the whole suite.

    Raises:
        ConfigError: A setting is unknown, has a wrong value, or cannot be set there.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: settings={settings!r}: not a mapping. Give NAME: VALUE.")
    if wrong := [name for name in settings if name in (*_OWN, *(_NOT_OF_A_ROW if row else ()))]:
        raise ConfigError(f"{where}: {wrong[0]} cannot be set here. Drop it.")
    try:
        eval_parser(environment).check(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def fits(value: Any, kind: Any) -> bool:
    """Whether `value`, as it comes from YAML, is of `kind` (a type hint of our settings)."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            all(map(fits, item, parts)) for item in value.items()
        )
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is Any or isinstance(value, origin or kind)

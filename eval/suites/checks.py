"""Checks of what a suite's file holds: names of fields and kinds of values."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import find_environment
from atommem.errors import ConfigError
from atommem.eval.eval_config import EvalConfig

# What the suite itself says.
_OWN = ("data", "out", "method", "seed")


def check_fields(where: str, values: Any, known: Sequence[str], required: Sequence[str] = ()) -> None:
    """Check that `values` is a mapping with these fields only, the `required` ones among them.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r}: give a mapping.")
    if unknown := [str(name) for name in values if name not in known]:
        raise ConfigError(f"{where}: unknown field {', '.join(unknown)}; known are {', '.join(known)}.")
    if missing := [name for name in required if name not in values]:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing.")


def check_settings(where: str, values: Any, environment: str, forbidden: Sequence[str] = ()) -> None:
    """Check that `values` are settings of ``atommem eval`` that a suite in `environment` may hold, of the right kinds.

    Raises:
        ConfigError: They are not.
    """
    kinds = setting_kinds(environment)
    check_fields(where, values, tuple(name for name in kinds if name not in forbidden))
    for name, value in values.items():
        # One policy may stand without a list around it.
        if not fits(value, kinds[name]) and not (name == "policy" and isinstance(value, str)):
            raise ConfigError(f"{where}: {name} is {value!r}, expected {_described(kinds[name])}.")


@cache
def setting_kinds(environment: str) -> Mapping[str, Any]:
    """The settings that a suite may hold, with the kinds of their values."""
    kinds: dict[str, Any] = {}
    for config in (EvalConfig, MemoryConfig, EmbedderConfig, find_environment(environment).config_class):
        hints = typing.get_type_hints(config)
        kinds |= {item.name: hints[item.name] for item in fields(config) if item.name not in _OWN}
    return kinds


def fits(value: Any, kind: Any) -> bool:
    """Whether `value`, as it comes from YAML, is of `kind` (a type hint of our settings)."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(kind))
    if origin is list:
        return isinstance(value, list) and all(fits(item, typing.get_args(kind)[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or kind)


def _described(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)) if typing.get_origin(kind) is None else str(kind)

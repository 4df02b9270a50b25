"""Finding what a setting names: an entry point of a group, or ``package.module:Attribute``.

Environments, methods, rules, dialects of ours are found in the same way as a user's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from atommem.command_line import close_match
from atommem.errors import ConfigError


def find(group: str, name: str, ours: Mapping[str, str] | None = None) -> Any:
    """The object that `name` stands for in `group` (``atommem.environments``, ...).

    Args:
        group: The entry points' group.
        name: An entry point's name, or a dotted path ``package.module:Attribute``.
        ours: What we bring, name -> dotted path: found also where the package's metadata is not installed or is old.

    Raises:
        ConfigError: There is no such name, or what it names cannot be imported.
    """
    path = (ours or {}).get(name) or _registered(group).get(name) or name
    if ":" not in path:
        _search.cache_clear()  # a notebook may have installed it meanwhile
        path = _registered(group).get(name) or name
    module, separator, attribute = path.partition(":")
    if not separator:
        known = names(group, ours)
        raise ConfigError(
            f"{group.removeprefix('atommem.')}: there is no {name!r}{close_match(name, known)}; known are "
            f"{', '.join(known)}, or give package.module:Name."
        )
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not _is_part(module, error.name):
            raise  # a package that the module itself needs: the caller's business
        raise ConfigError(f"{name}: {path} cannot be loaded ({error}): check the path.") from error
    return found


def names(group: str, ours: Mapping[str, str] | None = None) -> list[str]:
    """Everything that can be named in `group`."""
    return sorted({*(ours or {}), *_registered(group)})


def registered(group: str) -> EntryPoints:
    """The entry points of `group`, as this process found them first: a search reads every package's files."""
    found: EntryPoints = _search(tuple(sys.path)).select(group=group)
    return found


@cache
def _search(path: tuple[str, ...]) -> Any:
    return entry_points()


def _registered(group: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in registered(group)}


def _is_part(module: str, missing: str | None) -> bool:
    return missing is not None and (module == missing or module.startswith(missing + "."))

"""Find what a setting names: an entry point, ``package.module:Attribute``, or a shipped YAML file.

Our own environments, methods, rules and dialects are found like a user's.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from atommem.errors import ConfigError, suggest

CONFIGS = Path(__file__).with_name("configs")


def find(group: str, name: str) -> Any:
    """Return the object that `name` stands for in the entry-point group `group`.

    A name is an entry point's, or ``package.module:Attribute`` with a module that may lie in the
    current folder.
    """
    if ":" not in name and name not in registered(group).names:
        _search.cache_clear()  # a notebook may have installed it meanwhile
    entries = registered(group)
    path = entries[name].value if name in entries.names else name
    module, separator, attribute = path.partition(":")
    if not separator:
        known = names(group)
        raise ConfigError(
            f"{group.removeprefix('atommem.')}={name}: unknown{suggest(name, known)}. "
            f"Give one of {', '.join(known)}, or package.module:Name."
        )
    try:
        found: Any = _import(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not _is_part(module, error.name):
            raise  # the module itself needs a missing package
        named = path if path == name else f"{name}: {path}"
        raise ConfigError(
            f"{named} cannot be loaded ({error}). Check the name; its file must lie in this folder "
            "or on PYTHONPATH, or be installed."
        ) from error
    return found


def names(group: str) -> list[str]:
    """Return all names in `group`."""
    return sorted(registered(group).names)


def registered(group: str) -> EntryPoints:
    """Return the entry points of `group`, cached: a search reads the files of every package."""
    found: EntryPoints = _search(tuple(sys.path)).select(group=group)
    return found


@cache
def _search(path: tuple[str, ...]) -> Any:
    return entry_points()


def _import(module: str) -> ModuleType:
    """Import `module`; if it is missing, look in the current folder too."""
    here = os.getcwd()
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not _is_part(module, error.name) or here in sys.path or "" in sys.path:
            raise
    sys.path.append(here)  # last: no file of the user hides a package
    invalidate_caches()
    return import_module(module)


def _is_part(module: str, missing: str | None) -> bool:
    return missing is not None and (module == missing or module.startswith(missing + "."))


def shipped_files() -> dict[str, Path]:
    """Return every shipped YAML file by its name, such as ``train/qwen3_8b_hotpotqa``."""
    files = sorted(CONFIGS.rglob("*.yaml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def find_file(setting: str, name: str | Path, folder: str | None = None, field: str = "") -> Path:
    """Return the user's file at the path `name`, or else the shipped file of that name.

    Args:
        setting: The setting that names it, for the error.
        name: A path, or a name with or without its folder and ``.yaml``.
        folder: Where a name without folder is looked up (``train``, ``eval``, ...); None:
            everywhere.
        field: The error lists files with this field only.
    """
    path = Path(name)
    if path.is_file():
        return path
    files = shipped_files()
    wanted = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if wanted in files:
        return files[wanted]
    short = {
        key.rpartition("/")[2]: file
        for key, file in files.items()
        if folder in (None, key.partition("/")[0])
    }
    if wanted in short:
        return short[wanted]
    known = [key for key, file in short.items() if f"\n{field}" in file.read_text("utf-8")]
    hint = suggest(wanted.rpartition("/")[2], known)
    listed = (
        "`atommem configs` lists the shipped ones" if hint else f"Shipped are {', '.join(known)}"
    )
    raise ConfigError(f"{setting}={name}: no such file{hint}. {listed}, or give a path.")

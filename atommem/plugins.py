"""Find what a setting names: an entry point, a shipped YAML file, or a model on the hub.

Our own environments, methods, rules and dialects are found like a user's.
"""

import os
import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from atommem.errors import ConfigError, format_error, suggest

CONFIGS = Path(__file__).with_name("configs")


def find(group: str, name: str) -> Any:
    """Return the object that `name` stands for in the entry-point group `group`.

    A name is an entry point's, or ``package.module:Attribute``, whose file may lie in this folder.
    """
    entries = registered(group)
    path = entries[name].value if name in entries.names else name
    module, separator, _ = path.partition(":")
    if not separator:
        known = names(group)
        raise ConfigError(
            f"{group.removeprefix('atommem.')}={name}: unknown{suggest(name, known)}. "
            f"Give one of {', '.join(known)}, or package.module:Name; a package's own are known "
            "once it is installed (pip install FOLDER)."
        )
    if path == name and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: no file of the user hides a package
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{error.name}."):
            raise  # the module itself needs a missing package
        raise ConfigError(
            f"{path} cannot be loaded ({error}). Check the name; its file must lie in this folder "
            "or on PYTHONPATH, or be installed."
        ) from error


def names(group: str) -> list[str]:
    return sorted(registered(group).names)


def registered(group: str) -> EntryPoints:
    """Return the entry points of `group`, cached: a search reads the files of every package."""
    return _search(tuple(sys.path)).select(group=group)


@cache
def _search(path: tuple[str, ...]) -> Any:
    return entry_points()


def shipped_files() -> dict[str, Path]:
    """Return every shipped YAML file by its name, such as ``train/qwen3_8b_hotpotqa``."""
    files = sorted(CONFIGS.rglob("*.yaml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def find_file(setting: str, name: str | Path, folder: str | None = None) -> Path:
    """Return the user's file at the path `name`, or else the shipped file of that name.

    `setting` is named in the error. A shipped name needs neither ``.yaml`` nor its folder, which is
    looked up in `folder`, or everywhere.
    """
    path = Path(name)
    if path.is_file():
        return path
    files = shipped_files()
    wanted = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    inside = (key for key in files if folder in (None, key.partition("/")[0]))
    known = {key.rpartition("/")[2]: files[key] for key in inside} | files
    if wanted not in known:
        hint = suggest(wanted.rpartition("/")[2], known)
        raise ConfigError(
            f"{setting}={name}: no such file{hint}. Give a path, or see `atommem configs`."
        )
    return known[wanted]


# Models on the Hugging Face hub ---


def hub_name(name: str) -> tuple[str, str | None]:
    """Split ``NAME@REVISION`` of the hub; a folder has no revision."""
    model, at, revision = name.partition("@")
    if not at or Path(name).exists():
        return name, None
    if not revision:
        raise ConfigError(f"{name}: no revision after the @. Give a commit, branch or tag.")
    return model, revision


def only_here(name: str | Path) -> bool:
    """Return ``local_files_only`` for ``from_pretrained``: a folder, or the hub is out of reach.

    The hub's library retries five times for each file before it looks at its cache.
    """
    return Path(name).exists() or not _reached()


@cache
def _reached() -> bool:
    import httpx
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=10.0)
    except httpx.TransportError:
        constants.HF_HUB_OFFLINE = True  # transformers asks for some files whatever it was told
        return False
    return True


def not_loaded(name: str, kind: str, error: Exception) -> str:
    """Return on one line why transformers could not load the model `name` of this kind."""
    if Path(name).exists():
        return f"not {kind}: {format_error(error)}"
    hub = "has no such model" if _reached() else "is out of reach"
    return f"no such folder, and the hub {hub}. Give the folder of a model."

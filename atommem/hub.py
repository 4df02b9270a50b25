"""Models by their names on the Hugging Face hub."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from atommem.command_line import one_line
from atommem.errors import ConfigError

SECONDS = 10.0
"""That the hub has to answer."""


def hub_name(name: str) -> tuple[str, str | None]:
    """Name and revision of ``Qwen/Qwen3-8B@REVISION``, as the hub's own paths (``hf://``) write it; a folder as it is.

    Raises:
        ConfigError: Nothing follows the ``@``.
    """
    model, at, revision = name.partition("@")
    if not at or Path(name).exists():
        return name, None
    if not revision:
        raise ConfigError(f"{name!r} names no revision after its @: give a commit, branch or tag.")
    return model, revision


def only_here(name: str | Path) -> bool:
    """Whether `name` is a folder, or the hub is out of reach: what ``from_pretrained`` takes as ``local_files_only``.

    The hub's library asks five times for each of a model's files, with a line for each, before it looks at what it has.
    """
    return Path(name).exists() or not _reached()


@cache
def _reached() -> bool:
    import httpx
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except httpx.TransportError:
        return False
    return True


def not_loaded(name: str, error: Exception) -> str:
    """Why transformers could not load `name`, in one line: it writes a page where neither folder nor hub has it."""
    if Path(name).exists():
        return one_line(error)
    return "there is no such folder here, and the hub has no such model or cannot be reached. Check the name."

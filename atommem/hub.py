"""Models by their names on the Hugging Face hub."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from atommem.errors import ConfigError, format_error


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
        return False
    return True


def not_loaded(name: str, error: Exception) -> str:
    """Return on one line why transformers could not load `name`."""
    if Path(name).exists():
        return format_error(error)
    return (
        "no such folder, and the hub has no such model or is out of reach. Check name and network, "
        "or give the folder of a model."
    )

"""Open the policy of a `PolicyConfig`: a model folder, one or several servers, or a chat server."""

from __future__ import annotations

import hashlib
import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.config import PolicyConfig
from atommem.errors import ConfigError, PolicyError, suggest_path
from atommem.hub import hub_name, not_loaded, only_here

if TYPE_CHECKING:
    from atommem.policy.local import LocalPolicy
    from atommem.policy.server import ChatPolicy, ServerPolicy
    from atommem.policy.server_pool import ServerPool

OTHER_FILES = 256
"""Files that may be open beside the connections to servers."""


def open_policy(settings: PolicyConfig) -> LocalPolicy | ServerPolicy | ServerPool | ChatPolicy:
    """Load the model, or make the client of its servers; ``close()`` it after use.

    Raises:
        PolicyError: The model or the tokenizer cannot be loaded.
        ConfigError: A URL is wrong or given twice, or there may not be so many connections.
    """
    if not settings.is_server:
        from atommem.policy.local import LocalPolicy

        model, revision = hub_name(model_folder("policy", settings.policy[0]))
        return LocalPolicy.from_pretrained(
            model,
            revision=revision,
            max_batch_size=settings.max_in_flight,
            max_batch_tokens=settings.max_batch_tokens,
        )
    tokenizer = None if settings.tokenizer is None else load_tokenizer(settings.tokenizer)
    allow_connections(settings.max_in_flight)
    first, *others = settings.policy
    if settings.api == "chat":
        from atommem.policy.server import ChatPolicy

        return ChatPolicy(
            first, settings.model, tokenizer=tokenizer, max_in_flight=settings.max_in_flight
        )
    if not others:
        from atommem.policy.server import ServerPolicy

        return ServerPolicy(
            first, settings.model, tokenizer=tokenizer, max_in_flight=settings.max_in_flight
        )
    from atommem.policy.server_pool import ServerPool

    # While the others are gone, one server may get all requests.
    return ServerPool(
        settings.policy, settings.model, tokenizer=tokenizer, max_in_flight=settings.max_in_flight
    )


def load_tokenizer(name: str) -> Any:
    """The tokenizer in a folder, or of a hub name (NAME@REVISION).

    Raises:
        PolicyError: It cannot be loaded.
        ConfigError: Nothing follows the ``@``.
    """
    from atommem.policy.local import read_tokenizer

    model, revision = hub_name(name)
    try:
        return read_tokenizer(model, revision=revision, local_files_only=only_here(model))
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"No tokenizer could be loaded from {name!r}: {not_loaded(model, error)}"
        ) from error


def model_folder(setting: str, name: str) -> str:
    """Return `name`, unless it is a path without a model; transformers would ask the hub for it.

    Raises:
        PolicyError: It is.
    """
    path = Path(name).expanduser()
    if not name.strip() or "\0" in name:
        raise PolicyError(
            f"{setting} is {name!r}: give the folder of a model, a hub name, or a server's URL."
        )
    if path.is_dir() and any(
        (path / file).is_file() for file in ("config.json", "adapter_config.json")
    ):
        for weights in path.glob("*.safetensors"):
            if not _is_whole(weights):
                raise PolicyError(
                    f"{setting} is {name!r}: {weights.name} is cut off or damaged; copy it again."
                )
        return str(path)
    if path.exists() or path.is_symlink():
        what = (
            "a file"
            if path.is_file()
            else "a folder without config.json"
            if path.is_dir()
            else "a broken link"
        )
        inside = sorted(str(config.parent) for config in path.glob("*/config.json"))
        hint = f" (those in it: {', '.join(inside[:5])})" if inside else ""
        raise PolicyError(
            f"{setting} is {name!r}, which is {what}: give the folder of a model{hint}, or a "
            "server's URL."
        )
    first = path.parts[0]
    if (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or ("/" in name and Path(first).is_dir())
    ):
        raise PolicyError(f"{setting} is {name!r}: there is no such folder{suggest_path(path)}.")
    return name


def _is_whole(weights: Path) -> bool:
    """Whether a file of safetensors has all the bytes that its header promises."""
    with weights.open("rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= 100_000_000 else {}
            end = max(
                item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
    return weights.stat().st_size == 8 + length + int(end)


def check_window(setting: str, tokens: int, folder: str) -> None:
    """Whether a completion may be so long, as far as the model's folder tells its window.

    Raises:
        PolicyError: No prompt would fit beside it.
    """
    try:
        window = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))[
            "max_position_embeddings"
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return  # no folder, or one that does not say
    if isinstance(window, int) and tokens >= window:
        raise PolicyError(
            f"{setting} is {tokens} and the window of {folder} {window}: no prompt would fit "
            "beside it."
        )


def allow_connections(count: int) -> None:
    """Raise the process's limit on open files (often 1,024) to allow `count` connections.

    Raises:
        ConfigError: The system allows less.
    """
    needed = count + OTHER_FILES
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise ConfigError(
            f"max_in_flight is {count}, and this process may have {most} open files: give at most "
            f"{max(1, most - OTHER_FILES)}, or raise the system's limit (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


async def policy_identity(settings: PolicyConfig, policy: Any) -> dict[str, Any]:
    """Identify the policy: for a folder, by names, sizes and times of its files.

    Of a hub name it is the commit that was loaded. A server's weights cannot be seen; its model's
    name has to do.

    Raises:
        OutageError: The server, or every one of several, is out of reach.
        PolicyError: Servers serve different models.
    """
    if settings.is_server:
        api = {} if settings.api == "completions" else {"api": settings.api}
        return {"model": await policy.model_name(), "tokenizer": settings.tokenizer, **api}
    name = settings.policy[0]
    folder = Path(name)
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    commit = getattr(getattr(getattr(policy, "model", None), "config", None), "_commit_hash", None)
    return {
        "path": name.rstrip("/"),
        "files_sha256": digest.hexdigest(),
        **({"commit": commit} if commit else {}),
    }

"""The policy of an evaluation: a model folder, one server, or several that share the load."""

from __future__ import annotations

import hashlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atommem.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atommem.policy.local import LocalPolicy
    from atommem.policy.server import ServerPolicy
    from atommem.policy.server_pool import ServerPool


OTHER_FILES = 256
"""Files that may be open beside the connections to servers."""


class PolicySettings(Protocol):
    """The fields of `atommem.eval.eval_config.EvalConfig` that say which policy it is."""

    @property
    def policy(self) -> Sequence[str]:
        """A model folder (or hub name), or the base URLs of servers."""

    @property
    def model(self) -> str | None:
        """The model's name on the servers; None where each has one only."""

    @property
    def tokenizer(self) -> str | None:
        """Folder or hub name of the tokenizer (servers)."""

    @property
    def max_in_flight(self) -> int:
        """Most episodes at the same time."""

    @property
    def max_batch_tokens(self) -> int:
        """Most tokens in one batch (model folder)."""


def is_server(policy: Sequence[str]) -> bool:
    """Whether these are URLs, rather than one model folder.

    Raises:
        ConfigError: There are none, or several that are not all URLs.
    """
    urls = [name.startswith(("http://", "https://")) for name in policy]
    if not urls or (len(urls) > 1 and not all(urls)):
        raise ConfigError(f"policy is {list(policy)}: give one model folder, or the URLs of servers of one model.")
    return urls[0]


def open_policy(settings: PolicySettings) -> LocalPolicy | ServerPolicy | ServerPool:
    """Load the model, or make the client of its servers. Close it with ``close()``.

    Raises:
        PolicyError: The model or the tokenizer cannot be loaded.
        ConfigError: A URL is wrong or given twice, or there may not be so many connections.
    """
    if not is_server(settings.policy):
        from atommem.policy.local import LocalPolicy

        return LocalPolicy.from_pretrained(
            settings.policy[0], max_batch_size=settings.max_in_flight, max_batch_tokens=settings.max_batch_tokens
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.tokenizer)
    except (OSError, ValueError) as error:
        raise PolicyError(f"No tokenizer could be loaded from {settings.tokenizer!r}: {error}") from error
    allow_connections(settings.max_in_flight)
    if len(settings.policy) == 1:
        from atommem.policy.server import ServerPolicy

        return ServerPolicy(
            settings.policy[0], settings.model, tokenizer=tokenizer, max_in_flight=settings.max_in_flight
        )
    from atommem.policy.server_pool import ServerPool

    # While the others are gone, one server may get all requests.
    return ServerPool(settings.policy, settings.model, tokenizer=tokenizer, max_in_flight=settings.max_in_flight)


def allow_connections(count: int) -> None:
    """Let this process have `count` connections: raise its own limit on open files (often 1,024) if it is lower.

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


async def policy_identity(settings: PolicySettings, policy: Any) -> dict[str, Any]:
    """What tells this policy from another: for a folder, its files by name, size and time of change.

    A server's weights cannot be seen; its model's name has to do.

    Raises:
        OutageError: The server, or every one of several, is out of reach.
        PolicyError: Servers serve different models.
    """
    if is_server(settings.policy):
        return {"model": await policy.model_name(), "tokenizer": settings.tokenizer}
    name = settings.policy[0]
    folder = Path(name)
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return {"path": name.rstrip("/"), "files_sha256": digest.hexdigest()}

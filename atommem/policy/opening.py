"""Opening the policy that settings name: a model folder, one server, several that share the load, or a chat server."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.command_line import close_path
from atommem.config import check_choice
from atommem.errors import ConfigError, PolicyError
from atommem.hub import hub_name, not_loaded, only_here

if TYPE_CHECKING:
    from atommem.policy.local import LocalPolicy
    from atommem.policy.server import ChatPolicy, ServerPolicy
    from atommem.policy.server_pool import ServerPool

APIS = ("completions", "chat")
API_HELP = (
    "How a server is asked: completions (token ids, vLLM; as in training), or chat (messages, any "
    "OpenAI-compatible "
    "server; a --tokenizer only counts tokens there)."
)
OTHER_FILES = 256
"""Files that may be open beside the connections to servers."""


@dataclass(frozen=True)
class PolicyChoice:
    """Which policy it is. Cheap: nothing is opened.

    Attributes:
        policy: A model folder (or hub name, NAME@REVISION), or the base URLs of servers.
        api: How servers are asked, one of `APIS`.
        model: The model's name on the servers; None where each has one only.
        tokenizer: Folder or hub name of the tokenizer (servers).
        max_in_flight: Most requests at the same time.
        max_batch_tokens: Most tokens in one batch (model folder).

    Raises:
        ConfigError: They do not fit together.
    """

    policy: Sequence[str]
    api: str = "completions"
    model: str | None = None
    tokenizer: str | None = None
    max_in_flight: int = 64
    max_batch_tokens: int = 65_536

    def __post_init__(self) -> None:
        check_choice("api", self.api, APIS)
        first = self.policy[0] if self.policy else ""
        if not is_server(self.policy):
            if self.tokenizer is not None or self.model is not None or self.api != "completions":
                raise ConfigError(
                    f"policy is the folder {first}: model, tokenizer and api are for servers only."
                )
        elif self.api == "chat":
            if len(self.policy) > 1:
                raise ConfigError(
                    f"api is chat and policy is {list(self.policy)}: give one chat server."
                )
        elif self.tokenizer is None:
            raise ConfigError(
                f"policy is the server {first}: give the tokenizer of its model (--tokenizer, a "
                "folder or hub name) "
                "as well; or, for a server that takes messages instead of token ids, api=chat "
                "(--api chat)."
            )

    @property
    def settings_folder(self) -> str:
        """Where the policy's own settings lie: a server does not tell them, the folder of its tokenizer may."""
        return (self.tokenizer or "") if is_server(self.policy) else self.policy[0]


def is_server(policy: Sequence[str]) -> bool:
    """Whether these are URLs, rather than one model folder.

    Raises:
        ConfigError: There are none, or several that are not all URLs.
    """
    urls = [name.startswith(("http://", "https://")) for name in policy]
    if not urls or (len(urls) > 1 and not all(urls)):
        raise ConfigError(
            f"policy is {list(policy)}: give one model folder, or the URLs of servers of one model."
        )
    return urls[0]


def open_policy(settings: PolicyChoice) -> LocalPolicy | ServerPolicy | ServerPool | ChatPolicy:
    """Load the model, or make the client of its servers. It has a `tokenizer`; close it with ``close()``.

    Raises:
        PolicyError: The model or the tokenizer cannot be loaded.
        ConfigError: A URL is wrong or given twice, or there may not be so many connections.
    """
    if not is_server(settings.policy):
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
    """`name`, unless it is plainly a path where no model lies: transformers would look for it on the hub.

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
        raise PolicyError(f"{setting} is {name!r}: there is no such folder{close_path(path)}.")
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


async def policy_identity(settings: PolicyChoice, policy: Any) -> dict[str, Any]:
    """What tells this policy from another: for a folder, its files by name, size and time of change.

    Of a hub name it is the commit that was loaded. A server's weights cannot be seen; its model's
    name has to do.

    Raises:
        OutageError: The server, or every one of several, is out of reach.
        PolicyError: Servers serve different models.
    """
    if is_server(settings.policy):
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

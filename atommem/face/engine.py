"""What the memories of one policy share: the policy itself, embedder, environment and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.config import load_config
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, make_environments
from atommem.errors import ConfigError
from atommem.face.settings import Settings
from atommem.policy.contract import Policy
from atommem.policy.opening import PolicyChoice, load_tokenizer, open_policy
from atommem.session import Agent


@dataclass
class Engine:
    """Opened once, shared by forks.

    Attributes:
        agent: What sessions share.
        settings: As they apply.
        given: Those that the user gave by name, without objects: a saved memory keeps them.
        choice: Which policy it is; None for an object of the user's.
        closed: Whether it has been: by any of the memories that share it.
    """

    agent: Agent
    settings: Settings
    given: dict[str, Any]
    choice: PolicyChoice | None
    closed: bool = False

    @property
    def environments(self) -> EnvironmentFactory:
        """What cuts texts and asks."""
        return self.agent.environments

    @classmethod
    def open(
        cls,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        api: str = "completions",
        model: str | None = None,
        tokenizer: Any = None,
        max_in_flight: int = 64,
        embedder: str | Embedder | None = None,
        stored: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Engine:
        """Open the policy and its embedder; see `atommem.face.async_memory.AsyncMemory`.

        `stored` takes the place of the settings in the policy's folder, name by name.
        """
        choice, opened = None, policy
        if isinstance(policy, (str, os.PathLike, list, tuple)):
            names = [policy] if isinstance(policy, (str, os.PathLike)) else policy
            named = None if tokenizer is None else _place(tokenizer)
            choice = PolicyChoice(
                [_place(name) for name in names], api, model, named, max_in_flight
            )
        elif not (hasattr(policy, "complete") or hasattr(policy, "complete_chat")):
            raise ConfigError(
                f"policy is a {type(policy).__name__}: give a model folder, a server's URL, or a Policy."
            )
        folder = choice.settings_folder if choice is not None else ""
        if isinstance(embedder, str):
            given["embedder"] = embedder
        settings = Settings.of({**(load_config(folder) if folder else {}), **(stored or {})}, given)
        if choice is not None:
            opened = open_policy(choice)
        if tokenizer is None or choice is not None:
            tokenizer = getattr(opened, "tokenizer", None)
        elif isinstance(tokenizer, (str, Path)):
            tokenizer = load_tokenizer(os.fspath(tokenizer))
        if tokenizer is None:
            raise ConfigError(
                f"policy {type(policy).__name__} has no tokenizer: give one as tokenizer."
            )
        if embedder is None or isinstance(embedder, str):
            embedder = _make_embedder(settings)
        agent = Agent(
            policy=opened,  # type: ignore[arg-type]
            embedder=embedder,
            tokenizer=tokenizer,
            environments=make_environments(settings.environment, tokenizer),
            memory=settings.memory,
            sampling=settings.sampling,
            chat_template_kwargs=settings.chat_template_kwargs,
        )
        return cls(agent, settings, given, choice)

    def check_open(self) -> None:
        """Raise ConfigError where it has been closed."""
        if self.closed:
            raise ConfigError(
                "this memory is closed: its policy is gone. Memory.load opens one that was saved."
            )

    async def close(self) -> None:
        """Free models and connections."""
        self.closed = True
        await self.environments.close()
        await self.agent.policy.close()
        await self.agent.embedder.close()


def _place(name: str | os.PathLike[str]) -> str:
    """A folder by its whole path, so that a memory that names it is loaded from anywhere; other names as they are."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else os.fspath(name)


def _make_embedder(settings: Settings) -> Embedder:
    try:
        return make_embedder(settings.embedder)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"embedder is {settings.embedder.embedder!r}, which needs the package {error.name}: pip install "
            "'atommem[train]'; or give embedder='http' with embedder_url, or embedder='hashing' (words, no model)."
        ) from error

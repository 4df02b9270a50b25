"""The model behind a server, checked against its training and identified by a fingerprint."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from atommem.config import EmbedderConfig, MemoryConfig, is_server, load_config
from atommem.environment import find_environment
from atommem.envs.questions_shown import TrainedFor, trained_for
from atommem.errors import ConfigError
from atommem.policy.opening import fingerprint
from atommem.rollout import Agent
from atommem.run import Runtime
from atommem.servers.vllm_process import VllmServer


@dataclass
class ServedModel:
    """The model that all conversations of a server share.

    Attributes:
        name: Its name in the API.
        checkpoint: Fingerprint, stored with every event.
        agent: Policy, embedder, environment and settings.
        trained: Its ``atommem_config.json``; empty for a model that was not trained here.
    """

    name: str
    checkpoint: str
    agent: Agent
    trained: Mapping[str, Any]

    @classmethod
    def open(cls, policy: str | Sequence[str], *, name: str = "", **settings: Any) -> ServedModel:
        """Open a model; `settings` are those of `atommem.api.AsyncMemory`.

        Raises:
            ConfigError: A setting is invalid or differs from the training's.
            PolicyError: Model or tokenizer cannot be loaded.
        """
        names = [policy] if isinstance(policy, str) else list(policy)
        model = str(settings.get("model") or "")
        if is_server(names):
            folder = str(settings.get("tokenizer") or "")
        else:
            folder = find_checkpoint(names[0])
            names = [folder]
        trained = load_config(folder) if folder else {}
        check_settings(trained, settings, folder)
        runtime = Runtime.open(names, **settings)
        name = name or model or Path(names[0]).name
        return cls.from_runtime(runtime, name, fingerprint(folder, model), trained)

    @classmethod
    def open_with_vllm(
        cls,
        policy: Sequence[str],
        log: Path,
        flags: Sequence[str] = (),
        *,
        name: str = "",
        **settings: Any,
    ) -> tuple[ServedModel, VllmServer]:
        """Open a model folder behind a vLLM server, which the caller starts and stops.

        Args:
            log: File for vLLM's output.
            flags: Further flags of vLLM.
            name, settings: As in `open`.
        """
        folder = Path(find_checkpoint(policy[0]))
        if len(policy) > 1 or not folder.is_dir():
            raise ConfigError(
                f"policy={' '.join(policy)}: --vllm serves one model folder. Give a folder."
            )
        name = name or folder.absolute().name
        python = os.environ.get("VLLM_PYTHON") or sys.executable
        server = VllmServer(python, folder, log, *flags, served_model_name=name, timeout=1800.0)
        if (folder / "adapter_config.json").is_file():  # vLLM lists the base model, too
            settings["model"] = name
        return cls.open([server.url], name=name, **{"tokenizer": str(folder), **settings}), server

    @classmethod
    def from_runtime(
        cls, runtime: Runtime, name: str, checkpoint: str, trained: Mapping[str, Any] | None = None
    ) -> ServedModel:
        """Serve an open policy."""
        runtime.agent.keep_prompts = True  # the steps can be trained on
        return cls(name, checkpoint, runtime.agent, trained or {})

    @property
    def trained_for(self) -> TrainedFor | None:
        """Which questions its training showed; None for a model that was not trained here."""
        return trained_for(self.trained) if self.trained else None

    def notice(self) -> str:
        """Return what to print at start."""
        untrained = "not trained here: it reads and answers as an untrained instruct model"
        return str(self.trained_for or untrained)

    async def close(self) -> None:
        """Release models and connections."""
        await self.agent.factory.close()
        await self.agent.policy.close()
        await self.agent.embedder.close()


def find_checkpoint(name: str) -> str:
    """Return the model folder in a run folder (``grpo`` of ``runs/demo``), or `name` itself."""
    folder = Path(name).expanduser()
    if not folder.is_dir() or _is_model(folder):
        return name
    inside = sorted(item for item in folder.iterdir() if _is_model(item))
    trained = [item for item in inside if item.name == "grpo"] or inside
    if len(trained) == 1:
        return str(trained[0])
    found = ", ".join(map(str, inside)) or "none"
    raise ConfigError(f"policy={name}: not a model folder. Give one of the models in it: {found}.")


def check_settings(trained: Mapping[str, Any], given: Mapping[str, Any], folder: str) -> None:
    """Refuse settings of memory, environment or embedder that differ from the training's."""
    environment = find_environment(str(trained.get("environment") or "longdoc")).config_class
    kinds = (MemoryConfig, EmbedderConfig, environment)
    fixed = {item.name for kind in kinds for item in fields(kind)} - environment.operational
    wrong = sorted(
        name
        for name in fixed & {*given} & {*trained}
        if given[name] not in (None, trained[name]) and not name.endswith("_url")
    )
    if wrong:
        shown = ", ".join(
            f"{name}={given[name]!r}: trained with {trained[name]!r}" for name in wrong
        )
        flags = " ".join(f"--{name}" for name in wrong)
        raise ConfigError(
            f"{shown} ({folder}/atommem_config.json). Leave out {flags}, or train a checkpoint so."
        )


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))

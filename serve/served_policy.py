"""The policy that is served: found, held to what it was trained as, and known by its fingerprint."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from atommem.api import Runtime
from atommem.config import EmbedderConfig, MemoryConfig, is_server, load_config
from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.environment import EnvironmentFactory, find_environment
from atommem.envs.questions_shown import TrainedFor, trained_for
from atommem.errors import ConfigError
from atommem.observation import Observation
from atommem.servers.vllm_process import VllmServer
from atommem.session import Agent

_WEIGHTS = ("config.json", "adapter_config.json")
_HASHED_ENDS = 1 << 20


class HalfPrecision:
    """Vectors as the log keeps them, float16: those of a memory in use are those of one that was taken up again."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.id = embedder.id
        self.dim = embedder.dim

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """As of `Embedder`, rounded: the norms are 1 to three digits."""
        return (await self.embedder.embed(texts, kind)).astype(np.float16).astype(np.float32)

    async def close(self) -> None:
        """Free what the embedder holds."""
        await self.embedder.close()


@dataclass
class ServedPolicy:
    """What all conversations of a server share.

    Attributes:
        name: What clients call the model.
        checkpoint: Tells it from others: kept with every event and operation.
        agent: Policy, embedder, environment, settings.
        trained: Its ``atommem_config.json``; empty for a model that was not trained here.
    """

    name: str
    checkpoint: str
    agent: Agent
    trained: Mapping[str, Any]

    @classmethod
    def open(cls, policy: str | Sequence[str], *, name: str = "", **settings: Any) -> ServedPolicy:
        """Open it; see `atommem.api.AsyncMemory` for the arguments.

        Raises:
            ConfigError: A setting differs from what the policy was trained with, or is wrong.
            PolicyError: The model or tokenizer cannot be loaded.
        """
        names = [policy] if isinstance(policy, str) else list(policy)
        if not is_server(names):
            names = [find_checkpoint(names[0])]
        engine_settings = {key: value for key, value in settings.items() if value is not None}
        folder = str(engine_settings.get("tokenizer") or "") if is_server(names) else names[0]
        trained = load_config(folder) if folder else {}
        check_settings(trained, engine_settings, folder)
        engine = Runtime.open(names, **engine_settings)
        model = str(engine_settings.get("model") or "")
        return cls.of(
            engine, name or model or Path(names[0]).name, fingerprint(folder, model), trained
        )

    @classmethod
    def on_vllm(
        cls,
        policy: Sequence[str],
        log: Path,
        flags: Sequence[str] = (),
        *,
        name: str = "",
        **settings: Any,
    ) -> tuple[ServedPolicy, VllmServer]:
        """As `open`, behind a vLLM server for a folder: whoever calls starts it, and ends it.

        Args:
            policy: The folder.
            log: File for what vLLM prints.
            flags: Further flags of vLLM's.
            name, settings: As of `open`.

        Raises:
            ConfigError: As of `open`; or `policy` is no folder, or there is no vLLM.
        """
        folder = Path(find_checkpoint(policy[0]))
        if len(policy) > 1 or not folder.is_dir():
            raise ConfigError(
                f"vllm starts a server for one model folder: policy is {' '.join(policy)!r}."
            )
        name = name or folder.absolute().name
        python = os.environ.get("VLLM_PYTHON") or sys.executable
        server = VllmServer(python, folder, log, *flags, served_model_name=name, timeout=1800.0)
        if (folder / "adapter_config.json").is_file():  # its base model is listed too
            settings["model"] = name
        return cls.open([server.url], name=name, **{"tokenizer": str(folder), **settings}), server

    @classmethod
    def of(
        cls, engine: Runtime, name: str, checkpoint: str, trained: Mapping[str, Any] | None = None
    ) -> ServedPolicy:
        """That of an engine that is open."""
        engine.agent.embedder = HalfPrecision(engine.agent.embedder)
        engine.agent.keep_prompts = True  # of the traces that training may take up
        return cls(name, checkpoint, engine.agent, trained or {})

    @property
    def environments(self) -> EnvironmentFactory:
        """What cuts texts and asks."""
        return self.agent.environments

    @property
    def trained_for(self) -> TrainedFor | None:
        """What it was trained for; None for a model that was not trained here."""
        return trained_for(self.trained) if self.trained else None

    def reading(self, parts: Sequence[str], questions: Sequence[str]) -> Sequence[Observation]:
        """The observations in which a text, or its parts, are read; blocks while they are cut."""
        return self.environments.reading(parts[0] if len(parts) == 1 else parts, questions)

    def notice(self) -> str:
        """What whoever starts the server should know of it."""
        return str(
            self.trained_for
            or "not trained here: it reads and answers as an instruct model does, untrained"
        )

    async def close(self) -> None:
        """Free models and connections."""
        await self.environments.close()
        await self.agent.policy.close()
        await self.agent.embedder.close()


def find_checkpoint(name: str) -> str:
    """The model folder that is meant: `name`, or the one that GRPO left inside of it (``runs/demo``).

    Raises:
        ConfigError: There are several, none of them ``grpo``.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() or _is_model(folder):
        return name
    inside = sorted(item for item in folder.iterdir() if item.is_dir() and _is_model(item))
    trained = [item for item in inside if item.name == "grpo"] or inside
    if len(trained) == 1:
        return str(trained[0])
    found = ", ".join(str(item) for item in inside) or "none"
    raise ConfigError(
        f"policy is {name!r}, which is no model folder; models in it: {found}. Give the folder of one."
    )


def check_settings(trained: Mapping[str, Any], given: Mapping[str, Any], folder: str) -> None:
    """Refuse settings that are not those of the checkpoint: its prompts would not be those of its training.

    Raises:
        ConfigError: One of memory, environment or embedder differs.
    """
    world = find_environment(str(trained.get("environment") or "longdoc")).config_class
    bound = {
        item.name for kind in (MemoryConfig, EmbedderConfig, world) for item in fields(kind)
    } - world.operational
    wrong = {
        key: value
        for key, value in given.items()
        if key in bound and key in trained and trained[key] != value and not key.endswith("_url")
    }
    if wrong:
        told = ", ".join(
            f"{key} is {value!r}, trained with {trained[key]!r}"
            for key, value in sorted(wrong.items())
        )
        flags = " ".join(f"--{key}" for key in sorted(wrong))
        raise ConfigError(
            f"{told} ({folder}/atommem_config.json): leave {flags} out, or train a checkpoint with these settings."
        )


def fingerprint(folder: str, model: str = "") -> str:
    """16 hexadecimal digits for the files of a model: whole small ones, and beginning and end of large ones.

    A server's weights cannot be seen: there it is its model's name, with the files of its tokenizer's folder.
    """
    digest = hashlib.sha256(model.encode())
    path = Path(folder).expanduser() if folder else None
    for file in sorted(path.iterdir()) if path is not None and path.is_dir() else []:
        if (
            file.suffix not in (".json", ".jinja", ".safetensors", ".txt", ".bin")
            or not file.is_file()
        ):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_HASHED_ENDS))
            if size > _HASHED_ENDS:
                stream.seek(max(_HASHED_ENDS, size - _HASHED_ENDS), os.SEEK_SET)
                digest.update(stream.read())
    if path is None or not path.is_dir():
        digest.update(folder.encode())
    return digest.hexdigest()[:16]


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)

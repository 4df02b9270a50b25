"""Settings of memory and retrieval: part of every checkpoint, so that it is run as it was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlsplit

from atommem.actions import MEMORY_KINDS
from atommem.command_line import close_match
from atommem.errors import ConfigError
from atommem.hub import hub_name, only_here

_Value = TypeVar("_Value")
CONFIG_FILE = "atommem_config.json"
LAYOUTS = ("prefix", "paper")
EMBEDDERS = ("sentence_transformer", "http", "hashing", "random")


def setting(default: _Value, help: str) -> _Value:
    """A field of a dataclass of settings: its default, and what the command line says of it."""
    if isinstance(default, list):
        return field(default_factory=lambda: copy(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class MemoryConfig:
    """What the memory can do and how it is shown."""

    dialect: str = setting(
        "paper", "What completions are read as: paper, released, memagent, or a registered one."
    )
    templates: str = setting(
        "full", "Prompt wording: full, compact, memagent, or the path of a template file (YAML)."
    )
    layout: str = setting(
        "prefix", "prefix: chunk before memory (shares the prefix cache); paper: after it."
    )
    retrieve_k: int = setting(6, "Entries shown for the current query.")
    capacity: int | None = setting(None, "Most entries in the store; unset is unlimited.")
    capacities: list[int] = setting(
        [],
        "Capacities of which one is drawn for each task, for a policy that is to serve every budget; 0 is "
        "unlimited. A capacity that is set goes before them.",
    )
    retention: str = setting(
        "reject",
        "Rule for a create beyond capacity: reject, fifo, lru, ... or package.module:Class.",
    )
    admission: str = setting("accept", "Rule before every create: accept, or package.module:Class.")
    capacity_notice: bool = setting(
        True, "Tell the model the capacity of its store and how full it is."
    )
    scratchpad_tokens: int = setting(1024, "Longest scratchpad, in tokens.")
    query_tokens: int = setting(256, "Longest query, in tokens.")
    entry_tokens: int = setting(1024, "Longest entry, in tokens.")
    disabled_actions: list[str] = setting(
        [], "Memory actions to switch off, in the environment and the prompt."
    )

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        for name in self.disabled_actions:
            check_choice("disabled_actions", name, MEMORY_KINDS)
        if self.retrieve_k < 1:
            raise ConfigError(
                f"retrieve_k is {self.retrieve_k}: give at least 1, or disable the read action."
            )
        if self.capacity is not None and self.capacity < 1:
            raise ConfigError(
                f"capacity is {self.capacity}: give at least 1, or leave it unset for no limit."
            )
        if any(capacity < 0 for capacity in self.capacities):
            raise ConfigError(
                f"capacities are {self.capacities}: give at least 1 each, or 0 for no limit."
            )
        check_least(self, scratchpad_tokens=1, query_tokens=1, entry_tokens=1)

    def of_task(self, task_id: str) -> MemoryConfig:
        """These settings for one task: with its capacity, the same for all of its episodes in every run.

        ``$task`` in the name of the retention rule becomes the task's id.
        """
        settings = self
        if self.capacity is None and self.capacities:
            settings = replace(
                self, capacity=drawn_capacity(self.capacities, task_id), capacities=[]
            )
        if "$task" in self.retention:
            settings = replace(settings, retention=self.retention.replace("$task", task_id))
        return settings


def drawn_capacity(capacities: Sequence[int], task_id: str) -> int | None:
    """One of `capacities` (0: None, unlimited), drawn by the task's id."""
    return Random(f"capacity/{task_id}").choice(list(capacities)) or None


@dataclass
class EmbedderConfig:
    """Which model embeds entries and queries."""

    embedder: str = setting(
        "sentence_transformer", "sentence_transformer, http, hashing or random."
    )
    embedder_model: str = setting(
        "Qwen/Qwen3-Embedding-0.6B",
        "Folder or hub name (NAME, NAME@REVISION); with http, the model's name on the server.",
    )
    embedder_url: str | None = setting(
        None, "Base URL of an OpenAI-compatible /v1/embeddings server (http)."
    )
    embedder_dim: int = setting(256, "Vector length (hashing, random).")

    def __post_init__(self) -> None:
        check_choice("embedder", self.embedder, EMBEDDERS)
        if self.embedder == "http" and not self.embedder_url:
            raise ConfigError(
                "embedder is http but embedder_url is not set: give the server's base URL."
            )

    @property
    def name(self) -> str:
        """For people: the model, or the kind where there is none."""
        return (
            self.embedder_model
            if self.embedder in ("sentence_transformer", "http")
            else self.embedder
        )


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError when the setting `name` has a value that is not allowed."""
    if value not in allowed:
        raise ConfigError(
            f"{name} is {value!r}{close_match(value, allowed)}: give one of {', '.join(allowed)}."
        )


def check_least(config: object, **least: float) -> None:
    """Raise ConfigError when a setting of `config` is smaller than it may be; one that is unset (None) is not."""
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise ConfigError(f"{name} is {value}: give at least {low}.")


def check_probabilities(config: object, *names: str) -> None:
    """Raise ConfigError when a setting of `config` is no probability."""
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(
                f"{name} is {getattr(config, name)}: give a probability between 0 and 1."
            )


def save_config(folder: str | Path, *configs: Any) -> Path:
    """Write the fields of `configs` (dataclasses) to ``folder/atommem_config.json``, one flat object."""
    path = Path(folder) / CONFIG_FILE
    merged: dict[str, Any] = {}
    for config in configs:
        merged.update(asdict(config))
    path.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def load_config(folder: str | Path) -> dict[str, Any]:
    """Read ``folder/atommem_config.json``; an empty dict when the folder has none. A hub name is as good as a folder.

    Raises:
        ConfigError: The file is not a JSON object.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        found = _of_hub(str(folder))
        if found is None:
            return {}
        path = found
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise ConfigError(
            f"{path} is not valid JSON ({error}): restore it or delete it."
        ) from error
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"{path} holds {type(loaded).__name__}, not an object: restore it or delete it."
        )
    return without_addresses(loaded)


def _of_hub(name: str) -> Path | None:
    """The file of a model on the hub, downloaded once; None of a path, and where there is none or no hub."""
    if (
        name.count("/") != 1
        or name.startswith((".", "/", "~"))
        or Path(name.split("/")[0]).exists()
    ):
        return None
    try:
        from huggingface_hub import hf_hub_download

        model, revision = hub_name(name)
        return Path(
            hf_hub_download(
                model, CONFIG_FILE, revision=revision, local_files_only=only_here(model)
            )
        )
    except (ImportError, OSError, ValueError):
        return None


def without_addresses(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that came with a folder, without the URLs of other machines in them.

    A folder may be anybody's: texts, and the keys of one's services, go to an address only if its user names it.
    """
    return {
        name: value
        for name, value in settings.items()
        if not (name.endswith("_url") and isinstance(value, str) and not is_loopback(value))
    }


def is_loopback(url: str) -> bool:
    """Whether `url` leads to this machine by its name or address alone (nothing is looked up)."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fields_of(config_class: type, values: dict[str, Any]) -> dict[str, Any]:
    """The part of `values` that names fields of `config_class`."""
    names = {item.name for item in fields(config_class)}
    return {name: value for name, value in values.items() if name in names}

"""Settings as plain dataclasses; those of memory and retrieval are stored with every checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from atommem.actions import MEMORY_KINDS
from atommem.errors import ConfigError, suggest
from atommem.plugins import hub_name, only_here

_Value = TypeVar("_Value")
CONFIG_FILE = "atommem_config.json"
LAYOUTS = ("prefix", "paper")
EMBEDDERS = ("sentence_transformer", "http", "hashing", "random")
APIS = ("completions", "chat")


def setting(default: _Value, help: str) -> _Value:
    if isinstance(default, list):
        return field(default_factory=lambda: copy(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class MemoryConfig:
    """The memory's abilities, limits and wording."""

    dialect: str = setting("paper", "Action format: paper, released, memagent or a registered one.")
    templates: str = setting(
        "full", "Prompt wording: full, compact, memagent, or a template file: path or shipped name."
    )
    layout: str = setting(
        "prefix", "Prompt order: prefix (chunk before memory, for the prefix cache) or paper."
    )
    retrieve_k: int = setting(6, "Entries shown for the current query.")
    capacity: int | None = setting(None, "Most entries in the store; unset is unlimited.")
    capacities: list[int] = setting(
        [],
        "Capacities to draw from, one for each task, for a policy of every budget; 0 is unlimited. "
        "`capacity` wins over them.",
    )
    retention: str = setting(
        "reject",
        "Rule for a create beyond capacity: reject, fifo, lru, ..., NAME(option=value), or "
        "package.module:Class.",
    )
    admission: str = setting("accept", "Rule before every create, named like `retention`.")
    capacity_notice: bool = setting(True, "Show the model the capacity of its store and its fill.")
    scratchpad_tokens: int = setting(1024, "Longest scratchpad, in tokens.")
    query_tokens: int = setting(256, "Longest query, in tokens.")
    entry_tokens: int = setting(1024, "Longest entry, in tokens.")
    read_past: bool = setting(
        False,
        "A read also finds texts of entries that were replaced or deleted since. They are shown as "
        "such, and cannot be changed.",
    )
    disabled_actions: list[str] = setting(
        [], "Memory actions that are switched off: create, read, update, delete, scratchpad."
    )

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        for name in self.disabled_actions:
            check_choice("disabled_actions", name, MEMORY_KINDS)
        check_least(self, retrieve_k=1, capacity=1, scratchpad_tokens=1)
        check_least(self, query_tokens=1, entry_tokens=1)
        if any(capacity < 0 for capacity in self.capacities):
            raise ConfigError(
                f"capacities={self.capacities}: at least 1 each, or 0 for no limit. Correct them."
            )

    @property
    def shows_capacity(self) -> bool:
        return self.capacity_notice and bool(self.capacity or any(self.capacities))

    def of_task(self, task_id: str) -> MemoryConfig:
        """Return the settings for one task, with the capacity that is drawn for it."""
        if self.capacity is not None or not self.capacities:
            return self
        return replace(self, capacity=drawn_capacity(self.capacities, task_id), capacities=[])


def drawn_capacity(capacities: Sequence[int], task_id: str) -> int | None:
    """Draw one of `capacities` by the task's id; 0 becomes None, unlimited."""
    return Random(f"capacity/{task_id}").choice(list(capacities)) or None


@dataclass
class EmbedderConfig:
    """The model that embeds entries and queries."""

    embedder: str = setting("sentence_transformer", "sentence_transformer, http, hashing, random.")
    embedder_model: str = setting(
        "Qwen/Qwen3-Embedding-0.6B",
        "Folder or hub name (NAME, NAME@REVISION); with http, the model's name on the server.",
    )
    embedder_url: str | None = setting(None, "Base URL of an OpenAI-compatible server (http).")
    embedder_dim: int = setting(256, "Vector length (hashing, random).")

    def __post_init__(self) -> None:
        check_choice("embedder", self.embedder, EMBEDDERS)
        check_least(self, embedder_dim=1)
        if self.embedder == "http" and not self.embedder_url:
            raise ConfigError("embedder=http: needs embedder_url. Give the server's base URL.")


@dataclass
class PolicyConfig:
    """The policy: a model folder, or servers of one model. Creating it opens nothing."""

    policy: list[str] = setting(
        [],
        "A model folder, or a hub name (NAME, NAME@REVISION); or the URLs of vLLM servers of one "
        "model, or of a chat server (--api chat). A model trained here brings its settings; "
        "`smollm2` is the adapter that comes with AtomMem.",
    )
    base_model: str | None = setting(
        None, "Folder or hub name of the model under an adapter; unset: the one that it names."
    )
    api: str = setting(
        "completions",
        "Requests to a server: completions (token ids, vLLM, as in training) or chat (messages, "
        "any OpenAI-compatible server; a tokenizer then only counts tokens).",
    )
    model: str | None = setting(None, "Name of the model or LoRA adapter on the server.")
    tokenizer: str | None = setting(
        None, "Folder or hub name of the tokenizer (servers); its stored settings apply."
    )
    max_inflight_tasks: int = setting(64, "Most requests at the same time, on all servers.")
    max_batch_tokens: int = setting(
        65_536, "Most tokens in one batch of a model folder. Bounds the key-value cache."
    )

    def __post_init__(self) -> None:
        names = [self.policy] if isinstance(self.policy, str) else self.policy
        self.policy = [shipped_policy(name) for name in names]
        self.tokenizer = self.tokenizer and shipped_policy(self.tokenizer)
        check_choice("api", self.api, APIS)
        check_least(self, max_inflight_tasks=1, max_batch_tokens=1)
        if not self.policy:
            raise ConfigError(
                "policy is missing. Give a model folder, or a server's URL with tokenizer=FOLDER "
                "or api=chat."
            )
        name = ", ".join(self.policy)
        if not self.is_server and (self.tokenizer or self.model or self.api != "completions"):
            problem = "model, tokenizer, api are for servers. Drop them; policy takes a folder"
            raise ConfigError(f"policy={name}: {problem}.")
        if self.api == "chat" and len(self.policy) > 1:
            raise ConfigError(f"policy={name}: api=chat takes one server. Give one.")
        if self.is_server and self.api != "chat" and self.tokenizer is None:
            raise ConfigError(
                f"policy={name}: a server needs the tokenizer of its model. Give tokenizer=FOLDER, "
                "or a hub name; or api=chat for a server that takes messages."
            )

    @property
    def is_server(self) -> bool:
        return is_server(self.policy)

    @property
    def settings_folder(self) -> str:
        """The folder whose stored settings apply: the policy's, or of servers the tokenizer's."""
        return (self.tokenizer or "") if self.is_server else self.policy[0]


SHIPPED = "smollm2"  # the adapter that `atommem ask` uses where no policy is given


def shipped_policy(name: str) -> str:
    """Return the folder of an adapter that comes with AtomMem, or else `name` (without ``~``).

    ConfigError for a name that is nearly an adapter's, and neither a folder's nor OWNER/NAME's.
    """
    shipped = {path.name: str(path) for path in Path(__file__).with_name("adapters").iterdir()}
    hint = "" if name in shipped or "/" in name or Path(name).exists() else suggest(name, shipped)
    if hint:
        raise ConfigError(f"policy={name}: no such folder{hint}.")
    return shipped.get(name, os.path.expanduser(name))


def is_server(policy: Sequence[str]) -> bool:
    """Return whether `policy` is URLs, rather than one model folder."""
    urls = [name.startswith(("http://", "https://")) for name in policy]
    if not urls or (len(urls) > 1 and not all(urls)):
        raise ConfigError(
            f"policy={list(policy)}: one model folder, or URLs of servers of one model. Correct it."
        )
    return urls[0]


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError unless the setting `name` has an allowed value."""
    if value not in allowed:
        hint = suggest(str(value), allowed)
        raise ConfigError(f"{name}={value}: unknown{hint}. Give one of {', '.join(allowed)}.")


def check_least(config: object, **least: float) -> None:
    """Raise ConfigError if a setting of `config` is too small; None is allowed."""
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise ConfigError(f"{name}={value}: must be at least {low}. Give a larger value.")


def check_ranges(config: object, **most: int) -> None:
    """Raise ConfigError if a setting of `config` is not a range from 1 to at most that."""
    for name, highest in most.items():
        low, high = getattr(config, name)
        if not 1 <= low <= high <= highest:
            raise ConfigError(f"{name}={low}-{high}: not a range within 1-{highest}. Give one.")


def check_probabilities(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value}: must be between 0 and 1. Give a probability.")


def save_config(folder: str | Path, *configs: Any) -> Path:
    """Write the fields of dataclasses to ``folder/atommem_config.json``, one flat object."""
    path = Path(folder) / CONFIG_FILE
    merged = {name: value for config in configs for name, value in asdict(config).items()}
    path.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def load_config(folder: str | Path) -> dict[str, Any]:
    """Read ``atommem_config.json`` of a folder or hub name; empty if there is none."""
    local = Path(folder) / CONFIG_FILE
    path = local if local.is_file() else _download(str(folder))
    if path is None:
        return {}
    try:
        return without_addresses(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a JSON object ({error}). Restore or delete it.") from error


def _download(name: str) -> Path | None:
    """Download the file of a model on the hub; None for a path or where it is not found."""
    is_path = name.startswith((".", "/", "~")) or Path(name.partition("/")[0]).exists()
    if is_path or name.count("/") != 1:
        return None
    try:
        from huggingface_hub import hf_hub_download

        model, revision = hub_name(name)
        here = only_here(model)
        return Path(hf_hub_download(model, CONFIG_FILE, revision=revision, local_files_only=here))
    except (ImportError, OSError, ValueError):
        return None


def without_addresses(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a folder without URLs of other machines, and without MCP servers.

    A folder may be anybody's: texts and keys go only to addresses that the user names, and only
    commands that the user names are run.
    """
    return {
        name: value
        for name, value in settings.items()
        if not (name.endswith("_url") and isinstance(value, str) and not is_loopback(value))
        and name != "mcp_servers"
    }


def is_loopback(url: str) -> bool:
    """Return whether `url` names this machine. Nothing is resolved."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fields_of(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `values` that fields of `config_class` take."""
    return {name: values[name] for name in field_names(config_class) if name in values}


def field_names(config_class: type) -> list[str]:
    """Return the names of a dataclass's fields that its constructor takes."""
    return [item.name for item in fields(config_class) if item.init]

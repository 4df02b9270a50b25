"""What `atommem train` and `atommem eval` share in reading their command lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from atommem.command_line import CommandParser
from atommem.config import EmbedderConfig, MemoryConfig, fields_of, load_config
from atommem.environment import DEFAULT_ENVIRONMENT, EnvironmentFactory, find_environment
from atommem.errors import ConfigError
from atommem.policy.opening import is_server


@dataclass(frozen=True)
class Ahead:
    """What has to be known before a command line can be read.

    Attributes:
        environment: The environment that the settings are for; its configuration class has its flags.
        defaults: Fields of `MemoryConfig`, `EmbedderConfig` and the environment's configuration that the model folder
            was trained with.
        stored: Everything in the folder's ``atommem_config.json``; empty when it is no folder of ours.
    """

    environment: type[EnvironmentFactory]
    defaults: dict[str, Any]
    stored: dict[str, Any]


def read_ahead(
    argv: Sequence[str], model_field: str, settings: Mapping[str, Any] | None = None
) -> Ahead:
    """Find the environment and the model folder that a command line names: of a server, the folder of its tokenizer.

    Args:
        argv: The command line.
        model_field: The flag (without dashes), or field of the ``--config`` file, that names the folder.
        settings: What stands in the place of a ``--config`` file.

    Raises:
        ConfigError: The folder's file is broken, or there is no such environment.
        OSError, yaml.YAMLError: The ``--config`` file cannot be read.
    """
    finder = CommandParser(add_help=False)
    finder.add_argument(f"--{model_field}", dest="model", nargs="?")
    finder.add_argument("--tokenizer")
    finder.add_argument("--config")
    finder.add_argument("--environment")
    named, _ = finder.parse_known_args(argv)
    values: Any = dict(settings or {})
    if named.config is not None:
        written = yaml.safe_load(Path(named.config).read_text(encoding="utf-8")) or {}
        if not isinstance(written, dict):
            raise ConfigError(
                f"config {named.config} holds a {type(written).__name__}: give settings, NAME: VALUE."
            )
        values |= written
    model = named.model or values.get(model_field)
    if isinstance(model, list):  # servers, or a folder written as a list of one
        model = model[0] if model else None
    if model is not None and is_server([model]):  # it does not tell how its model was trained
        model = named.tokenizer or values.get("tokenizer")
    stored = load_config(model) if model is not None else {}
    name = (
        named.environment
        or values.get("environment")
        or stored.get("environment")
        or DEFAULT_ENVIRONMENT
    )
    environment = find_environment(name)
    defaults: dict[str, Any] = {}
    for config in (MemoryConfig, EmbedderConfig, environment.config_class):
        defaults.update(fields_of(config, stored))
    return Ahead(environment, {**defaults, "environment": name}, stored)


def json_object(name: str, value: dict[str, Any] | str | None) -> dict[str, Any]:
    """The setting `name` as an object: from YAML it comes as one, from the command line as JSON.

    Raises:
        ConfigError: It is neither.
    """
    loaded: Any = value or {}
    if isinstance(loaded, str):
        try:
            loaded = json.loads(loaded)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{name} is {value!r}: give a JSON object ({error}).") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{name} is {value!r}: give a JSON object.")
    return loaded

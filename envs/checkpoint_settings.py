"""What `atommem train` and `atommem eval` share in reading their command lines."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from atommem.config import EmbedderConfig, MemoryConfig, fields_of, load_config
from atommem.envs.longdoc.environment import LongDocConfig
from atommem.errors import ConfigError


def stored_settings(argv: Sequence[str], model_field: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that a model folder was trained with: the defaults of what is done with it next.

    Args:
        argv: The command line.
        model_field: The flag (without dashes), or field of the ``--config`` file, that names the folder.

    Returns:
        The fields of `MemoryConfig`, `EmbedderConfig` and `LongDocConfig` in the folder's
        ``atommem_config.json``, and everything in that file. Both are empty when it is no folder of ours.

    Raises:
        ConfigError: The folder's file is broken.
        OSError, yaml.YAMLError: The ``--config`` file cannot be read.
    """
    finder = ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(f"--{model_field}", dest="model")
    finder.add_argument("--config")
    named, _ = finder.parse_known_args(argv)
    model = named.model
    if model is None and named.config is not None:
        values = yaml.safe_load(Path(named.config).read_text(encoding="utf-8"))
        model = values.get(model_field) if isinstance(values, dict) else None
    if isinstance(model, list):  # servers, or a folder written as a list of one
        model = model[0] if model else None
    stored = load_config(model) if model is not None else {}
    shared: dict[str, Any] = {}
    for config in (MemoryConfig, EmbedderConfig, LongDocConfig):
        shared.update(fields_of(config, stored))
    return shared, stored


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

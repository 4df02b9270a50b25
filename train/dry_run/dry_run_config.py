"""Settings of the dry run, and where the effective value of every other setting comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from atommem.errors import ConfigError
from atommem.train.dry_run.devices import DEVICES

Source = Literal["default", "model folder", "file", "flag", "device"]


@dataclass
class DryRunConfig:
    """What `--dry_run` supposes; a training run ignores these fields.

    Raises:
        ConfigError: A value is out of range.
    """

    dry_run: bool = field(
        default=False,
        metadata={
            "help": "Check every setting and estimate memory and time, without weights, GPU or network; then stop."
        },
    )
    dry_run_launcher: str | None = field(
        default=None, metadata={"help": "Accelerate config that the run is going to be started with (dry run)."}
    )
    dry_run_processes: int | None = field(
        default=None, metadata={"help": "Processes; unset: those of the launcher, else 1 (dry run)."}
    )
    dry_run_device: str = field(
        default="h100", metadata={"help": f"Device of each process: {', '.join(DEVICES)} (dry run)."}
    )
    dry_run_utilisation: float = field(
        default=0.4, metadata={"help": "Share of the device's peak FLOPs that is reached (dry run)."}
    )
    dry_run_completion_tokens: int | None = field(
        default=None, metadata={"help": "Mean completion; unset: a quarter of max_completion_length (dry run)."}
    )
    dry_run_tasks: int = field(default=20_000, metadata={"help": "Tasks, when the data file is not there (dry run)."})
    dry_run_documents: int = field(
        default=200, metadata={"help": "Documents of a task, when the data file is not there (dry run)."}
    )
    dry_run_questions: float = field(
        default=5.5, metadata={"help": "Mean questions of a task, when the data file is not there (dry run)."}
    )
    dry_run_json: str | None = field(
        default=None, metadata={"help": "File to write everything to as one JSON object (dry run)."}
    )

    def __post_init__(self) -> None:
        if self.dry_run_device not in DEVICES:
            raise ConfigError(f"dry_run_device is {self.dry_run_device!r}: give one of {', '.join(DEVICES)}.")
        if not 0 < self.dry_run_utilisation <= 1:
            raise ConfigError(f"dry_run_utilisation is {self.dry_run_utilisation}: give a share above 0, at most 1.")
        for name in ("dry_run_processes", "dry_run_completion_tokens", "dry_run_tasks", "dry_run_documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: give at least 1.")
        if self.dry_run_questions < 1:
            raise ConfigError(f"dry_run_questions is {self.dry_run_questions}: give at least 1.")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its effective value, and what decided it."""

    name: str
    value: Any
    source: Source


def dry_run_settings(argv: Sequence[str]) -> DryRunConfig:
    """The dry run's part of a command line and its ``--config`` file; the rest is passed over.

    Raises:
        ConfigError: A value is out of range, or the file cannot be read.
    """
    from trl import TrlParser

    parser = TrlParser((DryRunConfig,), add_help=False, allow_abbrev=False)
    try:
        settings, *_ = parser.parse_args_and_config(
            list(argv), return_remaining_strings=True, fail_with_unknown_args=False
        )
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(str(error)) from error
    found: DryRunConfig = settings
    return found


def trace_settings(configs: Sequence[Any], argv: Sequence[str], stored: Mapping[str, Any]) -> list[Setting]:
    """Every field of `configs` with its value and source.

    Args:
        configs: Parsed dataclasses.
        argv: The command line as it was given.
        stored: What the model folder brought.
    """
    flags = _flags(argv)
    from_file = _file(argv)
    found = []
    for config in configs:
        for item in fields(config):
            source: Source = "default"
            if item.name in flags:
                source = "flag"
            elif item.name in from_file:
                source = "file"
            elif item.name in stored:
                source = "model folder"
            value = _plain(getattr(config, item.name))
            # Printed and written to files: no secrets.
            found.append(Setting(item.name, "(hidden)" if item.name.endswith("_token") and value else value, source))
    return found


def is_given(name: str, argv: Sequence[str]) -> bool:
    """Whether a flag or the ``--config`` file names the setting."""
    return name in _flags(argv) or name in _file(argv)


def _flags(argv: Sequence[str]) -> set[str]:
    names = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _file(argv: Sequence[str]) -> dict[str, Any]:
    if "--config" not in argv:
        return {}
    values = yaml.safe_load(Path(argv[list(argv).index("--config") + 1]).read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}


def _plain(value: Any) -> Any:
    """A value as JSON takes it: enumerations by their value, other objects by their text."""
    value = getattr(value, "value", value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)

"""Settings of the dry run, the devices that it knows, and where the values of all other settings come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from atommem.command_line import CommandParser, one_line
from atommem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """Peak figures of one device: dense bfloat16 FLOP/s (float32 on the CPU), bytes, bytes/s of its memory."""

    name: str
    flops: float
    memory: float
    bandwidth: float

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU: float32, and no context of a driver in its memory."""
        return self.name == "cpu"


DEVICES = {
    device.name: device
    for device in (
        Device("h100", 989e12, 80e9, 3.35e12),
        Device("h200", 989e12, 141e9, 4.8e12),
        Device("b200", 2250e12, 180e9, 7.7e12),
        Device("a100", 312e12, 80e9, 2.04e12),
        Device("a100_40gb", 312e12, 40e9, 1.56e12),
        Device("l40s", 362e12, 48e9, 0.86e12),
        Device("l4", 121e12, 24e9, 0.3e12),
        Device("rtx4090", 165e12, 24e9, 1.01e12),
        # Two cores of a server; a desktop has a few times as much.
        Device("cpu", 0.1e12, 16e9, 0.02e12),
    )
}
"""By name, the SXM parts where there are several. Sparsity is not counted."""


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": f"{text} (dry run)."})


@dataclass
class DryRunConfig:
    """What `--dry_run` supposes; a training run ignores these fields.

    Raises:
        ConfigError: A value is out of range.
    """

    dry_run: bool = _setting(
        False, "Check all settings, estimate memory and time without weights or GPU, then stop"
    )
    dry_run_launcher: str | None = _setting(
        None, "Accelerate config that the run is going to be started with"
    )
    dry_run_processes: int | None = _setting(
        None, "Processes; unset: those of the launcher, else 1"
    )
    dry_run_device: str = _setting("h100", f"Device of each process: {', '.join(DEVICES)}")
    dry_run_utilisation: float = _setting(0.4, "Share of the device's peak FLOPs that is reached")
    dry_run_traces: str | None = _setting(
        None, "Folder of traces to take the lengths of completions from"
    )
    dry_run_completion_tokens: int | None = _setting(
        None,
        "Mean completion; unset: of the traces, else with thinking the paper's, without a quarter of the longest",
    )
    dry_run_tasks: int = _setting(20_000, "Tasks, when the data file is not there")
    dry_run_documents: int = _setting(200, "Documents of a task, when the data file is not there")
    dry_run_questions: float = _setting(
        5.5, "Mean questions of a task, when the data file is not there"
    )
    dry_run_json: str | None = _setting(None, "File to write everything to as one JSON object")

    def __post_init__(self) -> None:
        if self.dry_run_device not in DEVICES:
            raise ConfigError(
                f"dry_run_device is {self.dry_run_device!r}: give one of {', '.join(DEVICES)}."
            )
        if not 0 < self.dry_run_utilisation <= 1:
            raise ConfigError(
                f"dry_run_utilisation is {self.dry_run_utilisation}: give a share above 0, at most 1."
            )
        for name in ("processes", "completion_tokens", "tasks", "documents", "questions"):
            value = getattr(self, f"dry_run_{name}")
            if value is not None and value < 1:
                raise ConfigError(f"dry_run_{name} is {value}: give at least 1.")


def dry_run_settings(argv: Sequence[str]) -> DryRunConfig:
    """The dry run's part of a command line and its ``--config`` file; the rest is passed over.

    Raises:
        ConfigError: A value is out of range, or the file cannot be read.
    """
    from trl import TrlParser

    class Parser(CommandParser, TrlParser):
        """TRL's, with our errors."""

    parser = Parser((DryRunConfig,), prog="atommem train", add_help=False)
    try:
        settings, *_ = parser.parse_args_and_config(
            list(argv), return_remaining_strings=True, fail_with_unknown_args=False
        )
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(one_line(error)) from error
    found: DryRunConfig = settings
    return found


def trace_settings(
    configs: Sequence[Any], argv: Sequence[str], stored: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Every field of `configs`: its ``value``, and its ``source``: flag, file, model folder (`stored`) or default."""
    words = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    flags = words | {name.removeprefix("no_") for name in words}
    file = (
        yaml.safe_load(Path(argv[argv.index("--config") + 1]).read_text("utf-8"))
        if "--config" in argv
        else {}
    )
    places = {"flag": flags, "file": file or {}, "model folder": stored}
    found = {}
    for name, value in (
        (item.name, getattr(config, item.name)) for config in configs for item in fields(config)
    ):
        source = next((place for place, names in places.items() if name in names), "default")
        # Printed and written to files: no secrets.
        found[name] = {
            "value": "(hidden)" if name.endswith("_token") and value else value,
            "source": source,
        }
    return found

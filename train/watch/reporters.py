"""What transformers' callbacks for wandb, trackio and TensorBoard lack: names, all settings, and sample episodes."""

from __future__ import annotations

import html
import importlib
import os
import secrets
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError

TABLES = ("wandb", "trackio", "tensorboard")
"""The services of `report_to` that show tables; `prepare_reporters` looks after the same."""

_RUN = "run_id"


def run_facts(settings: Sequence[Any], checkpoint: str) -> dict[str, Any]:
    """What a run is beside its arguments: memory, environment and embedder, and what code it was.

    Args:
        settings: Dataclasses; their fields, as in ``atommem_config.json``.
        checkpoint: The model that training began with.
    """
    facts = {name: value for one in settings for name, value in asdict(one).items()}
    return facts | {
        "checkpoint": checkpoint,
        "atommem_version": version("atommem"),
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The commit that is checked out where the command runs, with ``-dirty`` where files differ from it."""
    call = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--match", ""]
    try:
        return subprocess.run(
            call, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def prepare_reporters(args: Any) -> None:
    """Check that what ``report_to`` names is installed, name the run, and keep its files in the output folder.

    Without an account wandb would ask for one, and wait: it runs offline; ``WANDB_MODE=online`` in the environment
    sends them. A run that is resumed goes on in the run that it was, whose id lies in the output folder.

    Raises:
        ConfigError: A service is not installed.
    """
    for name in args.report_to:
        if name in TABLES and find_spec(name) is None:
            raise ConfigError(
                f"report_to names {name}, which is not installed: pip install {name}, or leave it out."
            )
    if not set(args.report_to) & set(TABLES):
        return
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    run = _run_id(args)
    args.run_name = args.run_name or f"{out.resolve().name}-{run}"
    if "wandb" in args.report_to:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_DIR", str(out))
        os.environ.setdefault("WANDB_PROJECT", args.project)
        os.environ.setdefault("WANDB_RESUME", "allow")
        os.environ.setdefault("WANDB_RUN_ID", run)
    if "tensorboard" in args.report_to:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(out / "runs" / args.run_name))


def _run_id(args: Any) -> str:
    """The id of this run: that of the run that is resumed, or a new one."""
    path = Path(args.output_dir) / _RUN
    if args.resume_from_checkpoint not in (None, "false") and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    run = secrets.token_hex(4)
    if args.process_index == 0:  # the one that reports
        path.write_text(run + "\n", encoding="utf-8")
    return run


def report_table(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int, to: Collection[str]
) -> None:
    """Show a table of an update in those of `TABLES` that are in `to`; their callbacks have begun the run.

    Args:
        name: Of the table.
        columns: Its head.
        rows: One value for each column.
        step: The update, from 1.
        to: Services.
    """
    if "tensorboard" in to:
        from torch.utils.tensorboard import SummaryWriter

        # A folder of its own: TensorBoard reads one file of events in a folder at a time.
        with SummaryWriter(str(Path(os.environ["TENSORBOARD_LOGGING_DIR"]) / name)) as writer:
            writer.add_text(name, _markdown(columns, rows), step)
    services = [one for one in ("wandb", "trackio") if one in to]
    if services:
        import pandas

        frame = pandas.DataFrame(list(rows), columns=list(columns))
        for one in services:
            service = importlib.import_module(one)
            # Goes out with the update's own entry, which follows.
            service.log(
                {name: service.Table(dataframe=frame)},
                **({"commit": False} if one == "wandb" else {}),
            )


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as TensorBoard shows it: what a text holds is neither markup nor another cell."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    text = html.escape("" if value is None else str(value), quote=False)
    for mark in "\\|`*_[]~":
        text = text.replace(mark, f"&#{ord(mark)};")
    return "<br>".join(text.splitlines())

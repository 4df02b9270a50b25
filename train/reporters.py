"""Run names and settings for transformers' callbacks of wandb, trackio and TensorBoard."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError

SERVICES = ("wandb", "trackio", "tensorboard")

_RUN = "run_id"


def prepare_reporters(args: Any) -> None:
    """Check the services of ``report_to``, name the run, and keep its files in the output folder.

    wandb runs offline unless ``WANDB_MODE`` is set, because it would wait for a login. A
    resumed run continues the same run, whose id is in the output folder.

    Raises:
        ConfigError: A service is not installed.
    """
    for name in args.report_to:
        if name in SERVICES and find_spec(name) is None:
            raise ConfigError(f"report_to={name}: it is not installed. pip install {name}.")
    if not set(args.report_to) & set(SERVICES):
        return
    out = Path(args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    run = _run_id(args)
    args.run_name = args.run_name or f"{out.resolve().name}-{run}"
    environment = {"TENSORBOARD_LOGGING_DIR": str(out / "runs" / args.run_name)}
    if "wandb" in args.report_to:
        environment |= {
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(out),
            "WANDB_PROJECT": args.project,
            "WANDB_RESUME": "allow",
            "WANDB_RUN_ID": run,
        }
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def _run_id(args: Any) -> str:
    path = Path(args.output_dir) / _RUN
    if args.resume_from_checkpoint not in (None, "false") and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    run = secrets.token_hex(4)
    if args.process_index == 0:
        path.write_text(run + "\n", encoding="utf-8")
    return run


def report_table(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], to: Collection[str]
) -> None:
    """Log a table to wandb and trackio, if they are in `to`, with the update's entry."""
    for service in {"wandb", "trackio"} & set(to):
        import pandas

        module = importlib.import_module(service)
        later = {"commit": False} if service == "wandb" else {}
        table = module.Table(dataframe=pandas.DataFrame(list(rows), columns=list(columns)))
        module.log({name: table}, **later)

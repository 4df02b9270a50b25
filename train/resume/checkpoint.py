"""Which checkpoint a run continues from, and the model that it ends with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors import SafetensorError

from atommem.config import MemoryConfig, fields_of, load_config
from atommem.errors import ConfigError
from atommem.train.resume.checkpoint_files import (
    all_checkpoints,
    changed_files,
    damage,
    last_checkpoint,
    move_files,
    partial_folder,
    recover,
)
from atommem.train.resume.faults import CheckpointError, why_not_written

TRAINING_ARGS = "training_args.json"
"""In every checkpoint: `atommem.train.resume.model_card.training_facts`."""


@dataclass(frozen=True)
class GenerationSettings:
    """How the policy was asked, beyond memory and environment: part of ``atommem_config.json`` as well."""

    max_tokens: int
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def save_final(trainer: Any) -> Path:
    """Save model, tokenizer, card and settings to the run's output folder, which becomes a model folder itself.

    File by file, each whole or not at all: what an earlier run left there is not half overwritten.

    Raises:
        CheckpointError: The disk is full, or fails.
    """
    folder = Path(trainer.args.output_dir)
    partial = partial_folder(folder) / folder.resolve().name
    try:
        trainer.save_model(str(partial), _internal_call=True)  # which pushes nothing
        if trainer.args.should_save:
            trainer.describe(partial)
            move_files(partial, folder)
            partial.parent.rmdir()
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"training is done, but the model could not be written: {why_not_written(error, folder)}. Its last "
            f"checkpoint is {last_checkpoint(folder)}: the same command with --resume writes the model."
        ) from error
    return folder


def resume_folder(args: Any, memory: MemoryConfig) -> str | None:
    """The checkpoint to continue from, checked against the settings of this run; None for a fresh start.

    What a killed run left unfinished in the output folder is cleaned up first. All processes call it together, and
    each reads its share of the files once.

    Args:
        args: The run's settings. Their ``resume_from_checkpoint`` is a folder; ``auto`` (what ``--resume`` stands for)
            for the last checkpoint in the output folder if there is one; ``true`` for that checkpoint, which must be
            there; unset or ``false`` for a fresh start.
        memory: This run's memory settings.

    Raises:
        ConfigError: There is no such checkpoint, it was trained with another memory or with other numbers of episodes,
            or a fresh run would mix its checkpoints with those of an earlier one.
        CheckpointError: The checkpoint is damaged.
    """
    with PartialState().main_process_first():
        recover(args.output_dir)
    folder = _chosen(args.resume_from_checkpoint or "false", args.output_dir)
    if folder is None:
        return None
    check_whole(folder)
    stored, wanted = fields_of(MemoryConfig, load_config(folder)), asdict(memory)
    for name, value in stored.items():
        if value != wanted[name]:
            raise ConfigError(
                f"{folder} was trained with {name} {value!r}, this run has {wanted[name]!r}: resume with the same."
            )
    _check_batch(folder, args)
    return str(folder)


def check_whole(folder: Path) -> None:
    """Raise CheckpointError, naming the file, when something of a checkpoint is missing or not what was written.

    Collective. A whole one beside it is named, which only the user may fall back to.
    """
    problem = _problem(folder)
    if problem is None:
        return
    others = (
        path
        for path in reversed(all_checkpoints(folder.parent))
        if path.resolve() != folder.resolve()
    )
    good = next((path for path in others if _problem(path) is None), None)
    raise CheckpointError(
        f"{folder} is damaged: {problem}. Nothing was changed. "
        + (
            f"{good} is whole: --resume_from_checkpoint {good} continues from it."
            if good
            else "There is no whole one beside it: restore it, or move it away to begin with the first update."
        )
    )


def _problem(folder: Path) -> str | None:
    state, found = PartialState(), damage(folder)
    changed = [] if found else changed_files(folder, state.process_index, state.num_processes)
    own = (
        [found]
        if found
        else [f"the contents of {name} are not what was written" for name in changed]
    )
    return next(iter(gather_object(own)), None)


def _chosen(choice: str, output_dir: str) -> Path | None:
    last = next(reversed(all_checkpoints(output_dir)), None)
    if choice.lower() == "auto":
        if last is None:
            PartialState().print(f"{output_dir} holds no checkpoint: the run starts afresh.")
        return last
    if choice.lower() == "true":
        if last is None:
            raise ConfigError(
                f"resume_from_checkpoint is true, but {output_dir} holds no checkpoint: give --resume, which starts "
                "afresh then."
            )
        return last
    if choice.lower() == "false":
        if last is not None:
            raise ConfigError(
                f"{output_dir} holds {last.name} of an earlier run: --resume continues it; for a fresh start give "
                "another output_dir, or remove its checkpoints."
            )
        return None
    if not Path(choice).is_dir():
        raise ConfigError(f"resume_from_checkpoint is {choice!r}: there is no such folder.")
    return Path(choice)


def _check_batch(folder: Path, args: Any) -> None:
    """Tasks and seeds follow from the number of the update: with other episodes an update they would be others."""
    before = load_training_args(folder)
    if "world_size" not in before:  # of an earlier version
        return
    then, now = _batch(before), _batch(args.to_dict() | {"world_size": args.world_size})
    if then != now:
        raise ConfigError(
            f"an update of {folder} has {then} examples (per_device_train_batch_size "
            f"{before['per_device_train_batch_size']} on {before['world_size']} processes), this run's {now}: resume "
            f"with per_device_train_batch_size x processes = {then}."
        )
    for name in ("num_generations", "steps_per_generation", "num_iterations"):
        if name in before and before[name] != (wanted := getattr(args, name, None)):
            raise ConfigError(
                f"{folder} was trained with {name} {before[name]!r}, this run has {wanted!r}: its updates would be of "
                "other tasks. Resume with the same, or begin a run with it as --model_name_or_path."
            )
    if before["world_size"] != args.world_size:
        PartialState().print(
            f"{folder} was written by {before['world_size']} processes: on {args.world_size}, tasks and sampling go on "
            "as they would have, but dropout, if there is any, draws other numbers."
        )


def load_training_args(folder: Path) -> dict[str, Any]:
    """The settings of the run that wrote a checkpoint; empty where there are none."""
    path = folder / TRAINING_ARGS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _batch(args: Mapping[str, Any]) -> int:
    return int(
        args["per_device_train_batch_size"]
        * args["gradient_accumulation_steps"]
        * args["world_size"]
    )

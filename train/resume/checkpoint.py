"""What lies beside the weights: a checkpoint is run with the settings that it was trained with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from safetensors import SafetensorError

from atommem.config import MemoryConfig, fields_of, load_config, save_config
from atommem.errors import ConfigError
from atommem.train.resume.checkpoint_files import (
    MARKER,
    is_complete,
    last_checkpoint,
    move_files,
    partial_folder,
    recover,
)
from atommem.train.resume.faults import CheckpointError


@dataclass(frozen=True)
class GenerationSettings:
    """How the policy was asked, beyond memory and environment: part of ``atommem_config.json`` as well."""

    max_tokens: int
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def save_final(trainer: Any, settings: Sequence[Any]) -> Path:
    """Save model, tokenizer and `settings` to the run's output folder, which becomes a model folder itself.

    File by file, each whole or not at all: what an earlier run left there is not half overwritten.

    Raises:
        CheckpointError: The disk is full, or fails.
    """
    folder = Path(trainer.args.output_dir)
    partial = partial_folder(folder) / "final"
    try:
        trainer.save_model(str(partial))
        if trainer.args.should_save:
            save_config(partial, *settings)
            move_files(partial, folder)
            partial.parent.rmdir()
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"training is done, but the model could not be written to {folder}: {error}. Its last checkpoint is "
            f"{last_checkpoint(folder)}: make room, and the same command with --resume writes the model."
        ) from error
    return folder


def resume_folder(resume_from_checkpoint: str | None, output_dir: str, memory: MemoryConfig) -> str | None:
    """The checkpoint to continue from, checked against the settings of this run; None for a fresh start.

    What a killed run left unfinished in `output_dir` is cleaned up first.

    Args:
        resume_from_checkpoint: A folder; ``auto`` (what ``--resume`` stands for) for the last checkpoint in
            `output_dir` if there is one; ``true`` for that checkpoint, which must be there; unset or ``false`` for
            a fresh start.
        output_dir: The run's folder.
        memory: This run's memory settings.

    Raises:
        ConfigError: There is no such checkpoint, it is not complete, it was trained with another memory, or a
            fresh run would mix its checkpoints with those of an earlier one.
    """
    with PartialState().main_process_first():
        recover(output_dir)
    folder = _chosen(resume_from_checkpoint or "false", output_dir)
    if folder is None:
        return None
    stored, wanted = fields_of(MemoryConfig, load_config(folder)), asdict(memory)
    for name, value in stored.items():
        if value != wanted[name]:
            raise ConfigError(
                f"{folder} was trained with {name} {value!r}, this run has {wanted[name]!r}: resume with the same."
            )
    return str(folder)


def _chosen(choice: str, output_dir: str) -> Path | None:
    last = last_checkpoint(output_dir)
    if choice.lower() == "auto":
        if last is None:
            PartialState().print(f"{output_dir} holds no complete checkpoint: the run starts afresh.")
        return last
    if choice.lower() == "true":
        if last is None:
            raise ConfigError(
                f"resume_from_checkpoint is true, but {output_dir} holds no complete checkpoint: give --resume, which "
                "starts afresh then."
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
    if not is_complete(choice):
        raise ConfigError(
            f"resume_from_checkpoint is {choice!r}: it is not complete (no {MARKER}, or files that it lists are "
            "missing). --resume takes the last complete checkpoint in output_dir."
        )
    return Path(choice)

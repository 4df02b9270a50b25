"""What stops a run: numbers that are none, an outage, a full disk; and what is kept of the step that it happened in."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from atommem.arguments import split_config
from atommem.episode import Episode
from atommem.errors import AtomMemError
from atommem.trace import write_trace

FAILED = "failed"
REPORT_FILE = "report.json"
EPISODES_FOLDER = "episodes"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class TrainingFault(AtomMemError):  # noqa: N818  # the family; its members are errors
    """Training cannot go on. What it had is saved, and the message says where."""


class DivergedError(TrainingFault):
    """The loss or the gradient norm is NaN or infinite. The optimizer has not stepped."""


class RolloutFailedError(TrainingFault):
    """Too many episodes of an update failed for reasons outside the policy, or nothing can be sampled at all."""


class CheckpointError(TrainingFault):
    """A checkpoint could not be written, and the ones before it are untouched; or one that was asked for is damaged."""


def recorded_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Return a run's flags, and the contents of its ``--config`` files, which may change later."""
    rest, config = split_config(arguments, "train")
    return {"arguments": rest, "config": config or None}


def is_disk_full(error: BaseException) -> bool:
    """Whether `error` says that there is no room on the disk (torch and safetensors say it in words)."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    text = str(error)
    # torch's file writer got rid of fewer bytes than it had.
    if "inline_container.cc" in text and ("unexpected pos" in text or "write failed" in text):
        return True
    return any(os.strerror(number).lower() in text.lower() for number in _FULL)


def why_not_written(error: BaseException, folder: Path) -> str:
    """The reason in words, and what to do where it is that there is no room for `folder`."""
    if not is_disk_full(error):
        return str(error) or repr(error)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e6
    return f"the disk is full, or a quota is used up ({free:,.1f} MB are free for {folder}): make room there"


@dataclass
class FailedStep:
    """The data of one update, for finding out what went wrong with it.

    An `on_episodes` of the trainer: it keeps the episodes of the running update (no copies).

    Attributes:
        settings: How the run was started, as JSON values: what `atommem.train.loops.replay` starts from.
        update: The running update, from 0.
        episodes: This rank's.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    update: int = -1
    episodes: list[Episode] = field(default_factory=list)

    def __call__(self, update: int, episodes: Sequence[Episode]) -> None:
        """Take the episodes of a rollout; an update may have several."""
        if update != self.update:
            self.update, self.episodes = update, []
        self.episodes += episodes

    def save(
        self,
        output_dir: str | Path,
        update: int,
        error: BaseException,
        *,
        checkpoint: Path | None,
        rng: Mapping[str, Any] | None,
        rank: int,
        world_size: int,
    ) -> Path | None:
        """Write what this rank has to ``output_dir/failed/step-N/``; N counts from 1, as in the logs.

        Args:
            output_dir: The run's folder. When nothing can be written there, the system's temporary folder serves.
            update: The update that failed, from 0.
            error: Why.
            checkpoint: The state before the update.
            rng: States of the random number generators before the update.
            rank, world_size: Of this process.

        Returns:
            The folder, or None when nothing could be written anywhere.
        """
        for base in (
            Path(output_dir),
            Path(tempfile.gettempdir()) / f"atommem-{Path(output_dir).name}",
        ):
            folder = base / FAILED / f"step-{update + 1}"
            with suppress(OSError, RuntimeError):  # torch has its own error for a full disk
                folder.mkdir(parents=True, exist_ok=True)
                if rank == 0:
                    report = {
                        "update": update,
                        "error": f"{type(error).__name__}: {error}",
                        "traceback": traceback.format_exception(error),
                        "checkpoint": None if checkpoint is None else str(checkpoint.resolve()),
                        "world_size": world_size,
                        "settings": dict(self.settings),
                    }
                    (folder / REPORT_FILE).write_text(
                        json.dumps(report, indent=2) + "\n", encoding="utf-8"
                    )
                if rng is not None:
                    torch.save(dict(rng), folder / f"rng_state_{rank}.pth")
                for index, episode in enumerate(self.episodes if self.update == update else []):
                    path = folder / EPISODES_FOLDER / f"rank-{rank}.{index}.jsonl"
                    write_trace(path, episode, {"id": episode.task_id}, tokens=True)
                return folder
        return None

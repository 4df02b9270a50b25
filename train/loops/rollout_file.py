"""A rollout in a checkpoint between two updates on it: each rank's rows, so that nothing is sampled again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atommem.train.loops.update_step import Batch
from atommem.train.objective.sequences import Row

ARRAYS = ("prompt_ids", "completion_ids", "logprobs", "old_logprobs")


def save_rollout(folder: Path, rank: int, number: int, batches: Sequence[Batch]) -> None:
    """Write what this rank trains on in the updates of the rollout `number`.

    Raises:
        OSError, RuntimeError: The disk is full or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    states = [
        {"normalizer": batch.normalizer, "rows": [_plain(row) for row in batch.rows]}
        for batch in batches
    ]
    torch.save({"number": number, "batches": states}, _file(folder, rank))


def load_rollout(folder: Path, rank: int, ranks: int) -> tuple[int, list[Batch]]:
    """The rollout's number, and what a rank has of it; -1 and nothing where the checkpoint ends a rollout.

    Other ranks than wrote it share it out anew, file by file; the planner then balances their rows as ever.
    """
    files = [_file(folder, number) for number in range(len(list(folder.glob("rollout_*.pt"))))]
    if not files:
        return -1, []
    # A rank for which there is no file has no rows, and needs to know how many batches there are.
    states = [torch.load(file, weights_only=True) for file in files[rank::ranks] or files[:1]]
    has_rows = rank < len(files)
    return states[0]["number"], [
        Batch(
            [_row(row) for part in parts for row in part["rows"] if has_rows],
            parts[0]["normalizer"],
        )
        for parts in zip(*(state["batches"] for state in states), strict=True)
    ]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rollout_{rank}.pt"


def _plain(row: Row) -> dict[str, Any]:
    arrays = {name: torch.from_numpy(getattr(row, name)) for name in ARRAYS}
    return {**arrays, "episode": row.episode, "advantage": row.advantage, "weight": row.weight}


def _row(state: dict[str, Any]) -> Row:
    return Row(
        **{name: value.numpy() if name in ARRAYS else value for name, value in state.items()}
    )

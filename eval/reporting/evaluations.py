"""Finished evaluations, read from their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atommem.envs.scoring.records import EpisodeRecord
from atommem.errors import ConfigError, DataError, suggest_path
from atommem.eval.output import EPISODES, MANIFEST, parse_records, trace_path


@dataclass(frozen=True)
class Evaluation:
    """One evaluation with what a table says of it.

    Attributes:
        folder: Its output folder.
        method: What answered: a row of the tables, together with `setting`.
        dataset: What was asked: a column, together with `documents`.
        setting: What sets this row of a method apart ("without update", "k = 12"); empty for none.
        parameters: What `setting` is made of where it is a point of a grid, by name: ``{"chunk": 4096, "k": 6}``.
            Numbers make an axis of a plot; a text ("unlimited") comes after them on it.
        documents: Documents in the stream of a task; None where it is not known.
        seed: Evaluations that differ in nothing else are shown as one, with the spread between seeds.
        manifest: Contents of ``run.json``.
        records: One per episode, in whatever order; kept by task id (numbers in it by their value) and sample, so that
            nothing depends on which episode ended first.
    """

    folder: Path
    method: str
    dataset: str
    setting: str = ""
    documents: int | None = None
    seed: int = 0
    parameters: Mapping[str, str | float] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    records: tuple[EpisodeRecord, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", tuple(sorted(self.records, key=_order)))

    @property
    def planned(self) -> int | None:
        """Episodes that it has when it is finished; None where its manifest does not say."""
        tasks = self.manifest.get("tasks", {}).get("count")
        return None if tasks is None else int(tasks) * int(self.manifest.get("samples_per_task", 1))

    @property
    def labels(self) -> dict[str, Any]:
        """What it goes by, but for its seed, as in ``results.json``."""
        names = ("method", "setting", "parameters", "dataset", "documents")
        return {name: getattr(self, name) for name in names}

    @property
    def row(self) -> str:
        """Its row in the tables."""
        return f"{self.method}, {self.setting}" if self.setting else self.method

    @property
    def column(self) -> tuple[str, int | None]:
        """Its column in the tables."""
        return self.dataset, self.documents

    @property
    def tasks_digest(self) -> str:
        """SHA-256 of the tasks: scores are paired only where it is the same."""
        return str(self.manifest.get("tasks", {}).get("sha256", ""))

    def trace(self, record: EpisodeRecord) -> Path:
        """Where the trace of one of `records` lies."""
        return trace_path(self.folder, record)

    def paired_records(self) -> list[EpisodeRecord]:
        """`records` under task ids that equal those of another evaluation only if the tasks are the same."""
        prefix = self.tasks_digest[:12]
        return [replace(record, task_id=f"{prefix}/{record.task_id}") for record in self.records]


def read_evaluation(
    folder: str | Path,
    method: str | None = None,
    dataset: str | None = None,
    *,
    seed: int | None = None,
    **labels: Any,
) -> Evaluation:
    """Read an evaluation's folder, also one that is not finished; nothing in it is changed.

    Args:
        folder: As ``atommem eval --out`` wrote it.
        method: Unset is the folder's name.
        dataset: Unset is the source of its tasks.
        seed: Unset is that of the sampling.
        labels: ``setting``, ``documents`` and ``parameters`` of `Evaluation`.

    Raises:
        ConfigError: There is no evaluation in `folder`.
        DataError: Its records are damaged.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        content = (folder / EPISODES).read_bytes()
    except OSError as error:
        suite = (folder / "cells").is_dir()
        below = sorted(
            str(found.parent)
            for level in ("*", "*/*")
            for found in folder.glob(f"{level}/{MANIFEST}")
        )
        instead = (
            f"{folder / 'report'} to atommem report, or an evaluation below {folder / 'cells'}"
            if suite
            else f"one of those in it ({', '.join(below[:5])})"
            if below
            else "the --out of `atommem eval`"
        )
        raise ConfigError(
            f"{folder} holds no evaluation ({error.strerror}: {error.filename}): give {instead}{suggest_path(folder)}."
        ) from error
    except ValueError as error:
        raise DataError(f"{folder / MANIFEST} is not valid JSON: {error}") from error
    records = tuple(parse_records(content[: content.rfind(b"\n") + 1], folder / EPISODES).values())
    try:
        seed = int(manifest.get("sampling", {}).get("seed") or 0) if seed is None else seed
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{folder / MANIFEST} is none of `atommem eval`: {error}.") from error
    sources = " + ".join(sorted({record.source or "unknown" for record in records}))
    method, dataset = method or folder.resolve().name, dataset or sources
    return Evaluation(
        folder, method, dataset, seed=seed, manifest=manifest, records=records, **labels
    )


def _order(record: EpisodeRecord) -> tuple[list[tuple[int, str]], int]:
    """Sorts task-2 before task-10."""
    parts = re.split(r"(\d+)", record.task_id)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], record.sample

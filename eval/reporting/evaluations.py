"""Finished evaluations, read from their folders."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from atommem.envs.scoring.metrics import score_question
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.task import Question
from atommem.errors import ConfigError, DataError, suggest_path
from atommem.eval.output import EPISODES, MANIFEST, parse_records
from atommem.text_safety import clean

_Golds = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | Literal["drop"]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation, its row ("atommem, without update") and column ("hotpotqa, 200 documents").

    Evaluations that differ only in `seed` are reported together. `manifest` has ``run.json``;
    `records` are sorted by task id and sample.
    """

    folder: Path
    method: str
    dataset: str
    setting: str = ""
    documents: int | None = None
    seed: int = 0
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    records: tuple[EpisodeRecord, ...] = field(default=(), repr=False)

    @property
    def row(self) -> str:
        return f"{self.method}, {self.setting}" if self.setting else self.method

    @property
    def column(self) -> str:
        if self.documents is None:
            return self.dataset
        return f"{self.dataset}, {self.documents} documents"

    @property
    def planned(self) -> int:
        """Number of episodes when it is complete."""
        tasks = self.manifest.get("tasks", {}).get("count", 0)
        return int(tasks) * int(self.manifest.get("samples_per_task", 1))

    @property
    def tasks_digest(self) -> str:
        """SHA-256 of the tasks; scores are paired only if it is equal."""
        return str(self.manifest.get("tasks", {}).get("sha256", ""))


def read_evaluation(
    folder: str | Path, method: str = "", dataset: str = "", **labels: Any
) -> Evaluation:
    """Read an evaluation's folder, complete or not, without changing it.

    The method is the folder's name by default, the data set the tasks' source; `labels` are
    ``setting``, ``documents``, and ``seed`` instead of the sampling's. ConfigError if there is no
    evaluation, DataError if a file is damaged.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        content = (folder / EPISODES).read_bytes()
        labels = {"seed": manifest.get("sampling", {}).get("seed") or 0, **labels}
    except OSError as error:
        raise ConfigError(
            f"{folder} has no evaluation ({error.strerror}: {error.filename}). Give the --out of "
            f"`atommem eval`, or the report folder of a suite{suggest_path(folder)}."
        ) from error
    except (ValueError, AttributeError) as error:
        raise DataError(f"{folder / MANIFEST} is not from `atommem eval`: {error}.") from error
    found = parse_records(content, folder / EPISODES)
    records = tuple(found[key] for key in sorted(found))
    sources = " + ".join(sorted({record.source or "unknown" for record in records}))
    return Evaluation(
        folder,
        clean(method or folder.resolve().name),  # data frames take no half characters
        clean(dataset or sources),
        manifest=manifest,
        records=records,
        **labels,
    )


def correct_golds(evaluations: Sequence[Evaluation], path: Path) -> list[Evaluation]:
    """Add ``em_corrected`` and ``f1_corrected``, by corrected gold answers, to all questions.

    `path` is a JSON object of question ids; each has a list of gold answers, or ``"drop"``, which
    leaves the question out of the added scores. Raises DataError for others.
    """
    try:
        golds = msgspec.json.decode(path.read_bytes(), type=dict[str, _Golds])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        form = '{"question id": ["gold", ...] or "drop"}'
        raise DataError(f"corrections={path}: {error}{suggest_path(path)}. Give {form}.") from error
    records = [record for item in evaluations for record in item.records]
    known = {question.id for record in records for question in record.questions}
    if not known & golds.keys():
        raise DataError(f"corrections={path}: no question has one of its ids. Give other ids.")
    if unknown := golds.keys() - known:
        print(f"corrections: {len(unknown)} ids are of no question here", file=sys.stderr)

    def corrected(record: EpisodeRecord) -> EpisodeRecord:
        questions = (_corrected(item, record.source, golds) for item in record.questions)
        return replace(record, questions=tuple(questions))

    return [replace(item, records=tuple(map(corrected, item.records))) for item in evaluations]


def _corrected(item: QuestionRecord, source: str, golds: Mapping[str, _Golds]) -> QuestionRecord:
    right = golds.get(item.id, item.golds)
    if right == "drop":
        return item
    scores: Mapping[str, float] = item.metrics
    if right != item.golds:
        # A question that was said to have no answer is scored as any other.
        details = {} if item.category == "adversarial" else {"category": item.category}
        asked = Question(item.question, right, item.id, details)
        scores = score_question(asked, item.answer, source)
    added = {f"{name}_corrected": scores[name] for name in ("em", "f1") if name in scores}
    return replace(item, metrics={**item.metrics, **added})

"""Evaluations read from their folders, and ``results.json``: their scores, means and tests."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from atommem.envs.scoring.metrics import score_question
from atommem.envs.scoring.records import (
    EpisodeRecord,
    QuestionRecord,
    breakdowns,
    compare,
    summarize,
)
from atommem.envs.scoring.statistics import holm, seed_spread
from atommem.envs.task import Question
from atommem.errors import ConfigError, DataError, suggest_path
from atommem.eval.runner import EPISODES, MANIFEST, SUMMARY, parse_records
from atommem.files import load_beside
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
        documents = "" if self.documents is None else f", {self.documents} documents"
        return f"{self.dataset}{documents}"

    @property
    def planned(self) -> int:
        """Number of episodes when it is complete."""
        tasks = self.manifest.get("tasks", {}).get("count", 0)
        return int(tasks) * int(self.manifest.get("num_generations", 1))

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
        complete = folder / SUMMARY
        summary = json.loads(complete.read_bytes()) if complete.is_file() else {}
    except OSError as error:
        raise ConfigError(
            f"{folder} has no evaluation ({error.strerror}: {error.filename}). Give "
            f"what `atommem eval` wrote, or the report folder of a suite{suggest_path(folder)}."
        ) from error
    except (ValueError, AttributeError) as error:
        raise DataError(f"{folder / MANIFEST} is not from `atommem eval`: {error}.") from error
    found = parse_records(content, folder / EPISODES)
    records = tuple(found[key] for key in sorted(found))
    sources = " + ".join(sorted({record.source or "own tasks" for record in records}))
    # Data frames take no half characters.
    names = clean(method or folder.resolve().name), clean(dataset or sources)
    digest = hashlib.sha256(content).hexdigest()
    for name, key, value in ((MANIFEST, "run", manifest), (EPISODES, "episodes_sha256", digest)):
        if summary.get(key, value) != value:
            raise DataError(
                f"{folder / name}: not what {SUMMARY} was made of. Restore it, or run the "
                "evaluation again."
            )
    return Evaluation(folder, *names, manifest=manifest, records=records, **labels)


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


RESULTS = "results.json"
ALPHA = 0.05
BOUNDS = ("no_memory", "oracle")  # methods that bound the possible scores; they enter no test
WORDS: dict[str, Any] = load_beside(__file__, "report.yaml")
LABELS = WORDS["labels"]
METRICS, FACTS = tuple(LABELS)[:-3], tuple(LABELS)[-3:]  # tested, and recall of supporting facts

STAGES = (
    "right",
    "right otherwise",  # from the chunk, by knowledge or by luck
    "shown, answered wrong",
    "kept, not shown",
    "entered, then lost",  # overwritten, deleted or evicted
    "never entered",
)
"""How a question ended: right, or the first stage at which its answer was lost."""

Results = dict[str, Any]
Groups = dict[tuple[str, str], list[Evaluation]]  # of a row and column, one per seed


def label(metric: str) -> str:
    return str(LABELS.get(metric, metric))


def ordered(metrics: Iterable[str]) -> list[str]:
    """Sort scores: those of answers, others by name, fact recall."""
    found = set(metrics)
    others = sorted(found - {*METRICS, *FACTS})
    return [name for name in (*METRICS, *others, *FACTS) if name in found]


def group_evaluations(evaluations: Sequence[Evaluation]) -> Groups:
    """Group evaluations by row and column, in order of appearance."""
    if not evaluations:
        raise ConfigError("There is no evaluation. Give at least one folder of `atommem eval`.")
    groups: Groups = {}
    for item in evaluations:
        group = groups.setdefault((item.row, item.column), [])
        if same := [other for other in group if other.seed == item.seed]:
            raise ConfigError(
                f"{same[0].folder} and {item.folder} are both {item.row!r} on {item.column} "
                f"with seed {item.seed}. Rename one: NAME=FOLDER."
            )
        group.append(item)
        group.sort(key=lambda item: item.seed)
    return groups


def make_results(
    evaluations: Sequence[Evaluation],
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    base: Path = Path(),
) -> Results:
    """Compute the contents of ``results.json``, with paths relative to `base`.

    Every other row is tested against `reference`, beside best against runner-up. ConfigError if it
    is not a row, or evaluations cannot be told apart.
    """
    groups = group_evaluations(evaluations)
    rows = dict.fromkeys(row for row, _ in groups)
    if reference is not None and reference not in rows:
        raise ConfigError(f"reference={reference!r}: not a row. Choose of {', '.join(rows)}.")
    results: Results = {
        "title": title,
        "alpha": ALPHA,
        "reference": reference,
        "evaluations": [_evaluation(item, base) for group in groups.values() for item in group],
        "groups": [],
        "scores": [],
        "breakdowns": [],
    }
    for (row, column), group in groups.items():
        first = group[0]
        records = paired_records(group)
        summary = summarize(records)
        metrics = summary.pop("metrics")
        key = {"row": row, "column": column}
        results["groups"].append(
            {
                **key,
                "method": first.method,
                "dataset": first.dataset,
                "documents": first.documents,
                "seeds": [item.seed for item in group],
                "planned": sum(item.planned for item in group),
                "bound": first.manifest.get("method", {}).get("name", first.method) in BOUNDS,
                **summary,
                "lost": _lost_answers(records) if summary["means"].get("store_size") else {},
            }
        )
        by_seed = [summarize(item.records)["metrics"] for item in group]
        for metric in ordered(metrics):
            means = [found[metric]["mean"] for found in by_seed if metric in found]
            spread = {"between_seeds": seed_spread(means)}
            results["scores"].append({**key, "metric": metric, **metrics[metric], **spread})
        results["breakdowns"] += [
            {**key, **line, "value": clean(line["value"])} for line in breakdowns(records)
        ]
    results["comparisons"] = _comparisons(groups, results)
    return results


def paired_records(group: Iterable[Evaluation]) -> list[EpisodeRecord]:
    """Return the records of all seeds; equal task ids mean equal tasks."""
    return [
        replace(record, task_id=f"{item.tasks_digest[:12]}/{record.task_id}")
        for item in group
        for record in item.records
    ]


def scores_by_key(results: Results) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    return {(line["row"], line["column"], line["metric"]): line for line in results["scores"]}


def _lost_answers(records: Iterable[EpisodeRecord]) -> dict[str, int]:
    counts = dict.fromkeys(STAGES, 0)
    for record in records:
        for question in record.questions if not record.overflowed else ():
            facts = [question.metrics.get(name) for name in FACTS]
            if question.right is None or None in facts:
                continue
            entered, kept, shown = facts
            lost_at = 2 + [shown, kept, entered, 1.0].index(1.0)
            counts[STAGES[int(not shown) if question.right else lost_at]] += 1
    return counts if any(counts.values()) else {}


def first_tests(results: Results) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the test of best against runner-up by column and score."""
    return {(test["column"], test["metric"]): test for test in reversed(results["comparisons"])}


def best_rows(results: Results, metric: str) -> dict[str, str]:
    """Return by column the row that beats the runner-up in a corrected test."""
    return {
        column: test["second"]
        for (column, name), test in first_tests(results).items()
        if name == metric and test["significant"] and test["difference"] > 0
    }


def _evaluation(item: Evaluation, base: Path) -> dict[str, Any]:
    labels = ("method", "setting", "dataset", "documents", "seed", "planned")
    return {
        "folder": os.path.relpath(item.folder.resolve(), base.resolve()),
        **{name: getattr(item, name) for name in labels},
        "tasks_sha256": item.tasks_digest,
        "episodes": len(item.records),
    }


def _comparisons(groups: Groups, results: Results) -> list[dict[str, Any]]:
    """Test best against runner-up, and rows against the reference; Holm-corrected per metric."""
    ranked = {
        (group["row"], group["column"])
        for group in results["groups"]
        if not group["bound"] and not group["overflow"]
    }
    records = {key: paired_records(group) for key, group in groups.items()}
    tests: list[dict[str, Any]] = []
    for metric in METRICS:
        means: dict[str, dict[str, float]] = {column: {} for _, column in groups}
        for (row, column, name), score in scores_by_key(results).items():
            if name == metric and (row, column) in ranked:
                means[column][row] = score["mean"]
        family = []
        for column, by_row in means.items():
            for second, first in _pairs(by_row, results["reference"]):
                found = compare(records[first, column], records[second, column], metric).to_json()
                family.append({"column": column, "first": first, "second": second, **found})
        for test, p_value in zip(family, holm([test["p_value"] for test in family]), strict=True):
            test |= {"p_holm": p_value, "significant": p_value <= ALPHA}
        tests += family
    return tests


def _pairs(means: Mapping[str, float], reference: str | None) -> list[tuple[str, str]]:
    """Return pairs to test: (better row, other row), then (row, reference)."""
    ranked = sorted(means, key=lambda row: -means[row])
    pairs = [(ranked[0], ranked[1])] if len(ranked) > 1 else []
    if reference is not None and reference in means:
        others = (row for row in means if row != reference)
        pairs += [(row, reference) for row in others if {row, reference} != {*ranked[:2]}]
    return pairs

"""``report.html``: one file that opens from disk and asks for nothing else, with its data inside as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from atommem.envs.scoring.paired import question_scores
from atommem.envs.scoring.records import EpisodeRecord, metric_names
from atommem.episode import Episode, Step
from atommem.eval.reporting.compared_settings import setting_charts, to_json
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.fates import Fate, Losses, knows_facts
from atommem.eval.reporting.inspection import AnswerTrail, Inspection, answer_trails
from atommem.eval.reporting.results import Cell
from atommem.eval.reporting.scores import LABELS, METRICS, ordered
from atommem.eval.reporting.tables import FATES, incomplete_note, make_tables
from atommem.trace import read_trace
from atommem.untrusted import clean

REPORT = "report.html"
CHUNK_CHARACTERS = 6000
"""Longest text of a chunk, prompt part or completion on the page; its middle is left out beyond that."""
_SCORES = tuple(f"eval_{name}{end}" for name in ("em", "reward") for end in ("", "_low", "_high"))
_TRAINING = ("reward", *_SCORES, "store_size", "malformed")
_SCRIPTS = ("core.js", "charts.js", "compare.js", "episodes.js")


class PageData:
    """Collects what the page shows while each trace is read once.

    Args:
        cells: From `make_cells`; they get `Cell.inspection` and `Cell.losses`.
        max_episodes: Most episodes to embed.
        max_characters: Most characters of JSON that they may take together.
        efficiency: Show how many seconds an episode took.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        max_episodes: int = 300,
        max_characters: int = 30_000_000,
        efficiency: bool = False,
    ) -> None:
        self._efficiency = efficiency
        self._texts: dict[str, int] = {}
        self._left = max_characters
        self.episodes: list[dict[str, Any]] = []
        self.total = 0
        self.evaluations = [evaluation for cell in cells for evaluation in cell.evaluations]
        chosen = choose_episodes(self.evaluations, max_episodes)
        # One way to tell for a whole column: its rows are looked at side by side.
        by_words = {
            cell.column for cell in cells if not all(knows_facts(evaluation.records) for evaluation in cell.evaluations)
        }
        number = 0
        for cell in cells:
            cell.inspection = Inspection()
            cell.losses = Losses("words" if cell.column in by_words else "facts")
            first = len(self.episodes)
            for evaluation in cell.evaluations:
                self._add(number, evaluation, cell.inspection, cell.losses, chosen[number])
                number += 1
            if cell.inspection.only_retrieves:
                cell.losses.written_beforehand()
                for episode in self.episodes[first:]:
                    for question in episode["questions"]:
                        if question["fate"] == Fate.NEVER_ENTERED:
                            question["fate"] = str(Fate.NOT_RETRIEVED)

    def _add(
        self,
        number: int,
        evaluation: Evaluation,
        inspection: Inspection,
        losses: Losses,
        chosen: set[tuple[str, int]],
    ) -> None:
        for record in evaluation.records:
            self.total += 1
            path = evaluation.trace(record)
            episode = None
            if path.is_file() and (not record.failed or record.key in chosen):
                episode = read_trace(path).episode
            trails: tuple[AnswerTrail | None, ...] = (None,) * len(record.questions)
            if record.failed:
                pass
            elif episode is None:
                inspection.missing += 1
            else:
                trails = answer_trails(episode, record)
                inspection.add(episode, record)
            fates = [losses.fate(question, trail) for question, trail in zip(record.questions, trails, strict=True)]
            for fate in fates:
                losses.add(fate)
            if episode is not None and record.key in chosen and self._left > 0:
                shown = self._episode(number, record, episode, trails, fates)
                self._left -= len(json.dumps(shown))
                self.episodes.append(shown)

    def to_json(self, results: Mapping[str, Any], training: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """All that the page needs; `training` are the entries of a run's ``metrics.jsonl``."""
        # The page must not depend on where it was made.
        evaluations = [{**item, "folder": None} for item in results["evaluations"]]
        return {
            "results": {**results, "evaluations": evaluations},
            "incomplete": incomplete_note(results),
            "labels": LABELS,
            "fates": {str(fate): heading for fate, heading in FATES.items()},
            "tables": [table.to_json() for table in make_tables(results)],
            "settings": [to_json(chart) for chart in setting_charts(results)],
            "training": [_training_entry(entry) for entry in training],
            "scores": self._scores(),
            "episodes": self.episodes,
            "texts": list(self._texts),
            "total_episodes": self.total,
        }

    def _scores(self) -> list[dict[str, Any]]:
        """Of each evaluation the questions (task, place, numbers of its group and of itself) and their means."""
        numbers: dict[Any, int] = {}
        found = []
        for evaluation in self.evaluations:
            names = [name for name in ordered(metric_names(evaluation.records)) if name in METRICS]
            scores = {name: question_scores(evaluation.records, name) for name in names}
            places = {key: value[:2] for side in scores.values() for key, value in side.items()}
            found.append(
                {
                    "places": [
                        [*key, *(numbers.setdefault(x, len(numbers)) for x in of)] for key, of in places.items()
                    ],
                    **{
                        name: [round(fmean(side[key][2]), 6) if key in side else None for key in places]
                        for name, side in scores.items()
                    },
                }
            )
        return found

    def _episode(
        self,
        number: int,
        record: EpisodeRecord,
        episode: Episode,
        trails: Sequence[AnswerTrail | None],
        fates: Sequence[Fate | None],
    ) -> dict[str, Any]:
        questions = [
            {
                "text": question.question,
                "category": question.category,
                "golds": list(question.golds),
                "answer": question.answer,
                "right": question.right,
                "metrics": question.metrics,
                "fate": None if fate is None else str(fate),
                "sources": [] if trail is None else [asdict(source) for source in trail.sources],
                "step": None if trail is None else trail.step,
            }
            for question, trail, fate in zip(record.questions, trails, fates, strict=True)
        ]
        return {
            "evaluation": number,
            "task": record.task_id,
            "sample": record.sample,
            "trace": self.evaluations[number].trace(record).name,
            "status": _status(record),
            "malformed": any(step.problems for step in episode.steps),
            "stop": record.stop_reason,
            "error": record.error,
            "seconds": round(record.seconds, 2) if self._efficiency else None,
            "questions": questions,
            "steps": [self._step(step) for step in episode.steps],
        }

    def _step(self, step: Step) -> dict[str, Any]:
        observation, view = step.observation, step.view
        whole = len(step.text) <= CHUNK_CHARACTERS  # the places of actions in a shortened text would be wrong
        return {
            "phase": observation.phase,
            "label": observation.label,
            "shown": [
                [piece.name, self._text(value)]
                for piece in (*observation.stream, *observation.task)
                for _, value in piece.walk()
                if isinstance(value, str)
            ],
            "scratchpad": self._text(view.scratchpad),
            "query": view.query,
            "capacity": view.capacity,
            "retrieved": [
                # Rounded to what is shown: the last bits of a similarity depend on what it was computed beside.
                [item.handle, item.entry_id, self._text(item.text), f"{item.score:z.3f}"]
                for item in view.retrieved
            ],
            "prompt": None if step.prompt is None else self._text(step.prompt),
            "text": self._text(step.text),
            "finish": step.finish_reason,
            "tokens": step.completion_tokens,
            "actions": [[str(action.kind), action.start, action.end] for action in step.actions if whole],
            "problems": [
                [str(problem.reason), problem.tag, *((problem.start, problem.end) if whole else (0, 0))]
                for problem in step.problems
            ],
            "operations": [
                {
                    "kind": str(operation.kind),
                    "outcome": str(operation.outcome),
                    "entry": operation.entry_id,
                    "handle": operation.handle,
                    "before": None if operation.before is None else self._text(operation.before),
                    "after": None if operation.after is None else self._text(operation.after),
                    "actor": operation.actor,
                    "reason": operation.reason,
                    "shown": [entry_id for entry_id, _ in operation.scores],
                }
                for operation in step.operations
            ],
            "size": step.store_size,
        }

    def _text(self, text: str) -> int:
        """The number of a text: the same chunk is shown in many episodes, but embedded once."""
        if len(text) > CHUNK_CHARACTERS:
            half = CHUNK_CHARACTERS // 2
            left_out = len(text) - 2 * half
            text = f"{text[:half]} [... {left_out:,} characters left out here; the trace has them ...] {text[-half:]}"
        if text not in self._texts:
            self._texts[text] = len(self._texts)
            self._left -= len(text)
        return self._texts[text]


def choose_episodes(evaluations: Sequence[Evaluation], limit: int) -> list[set[tuple[str, int]]]:
    """Which episodes to embed: by evaluation, their keys.

    The same tasks are taken from all evaluations on the same data, so that a comparison can be followed, and of
    every kind in turn: with a failed episode, answered differently, malformed, all wrong, all right.
    """
    chosen: list[set[tuple[str, int]]] = [set() for _ in evaluations]
    groups: dict[str, list[int]] = {}
    for number, evaluation in enumerate(evaluations):
        groups.setdefault(evaluation.tasks_digest, []).append(number)
    orders = [_in_turn([evaluations[number] for number in numbers]) for numbers in groups.values()]
    left = limit
    waiting = list(zip(groups.values(), orders, strict=True))
    while waiting and left > 0:
        for item in list(waiting):
            numbers, tasks = item
            task = next(tasks, None)
            if task is None:
                waiting.remove(item)
                continue
            for number in numbers:
                for record in evaluations[number].records:
                    if record.task_id == task and left > 0:
                        chosen[number].add(record.key)
                        left -= 1
    return chosen


def _in_turn(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """The tasks of evaluations on the same data, one of each kind in turn."""
    kinds: dict[str, dict[str, None]] = {}
    for evaluation in evaluations:
        for record in evaluation.records:
            seen = kinds.setdefault(record.task_id, {})
            seen[_status(record)] = None
            if record.sums.get("malformed"):
                seen["malformed"] = None
    lines: list[list[str]] = [[], [], [], [], []]
    for task, seen in kinds.items():
        if "failed" in seen:
            lines[0].append(task)
        elif "right" in seen and "wrong" in seen:
            lines[1].append(task)
        elif "malformed" in seen:
            lines[2].append(task)
        else:
            lines[3 if "wrong" in seen else 4].append(task)
    for place in range(max(map(len, lines))):
        yield from (line[place] for line in lines if place < len(line))


def render_page(data: Mapping[str, Any]) -> str:
    """The page with `data` inside.

    No text of an episode can end the element that holds it: ``<`` never occurs in the JSON as it is embedded.
    """
    assets = files("atommem.eval.reporting") / "assets"
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = str(data["results"]["title"])
    parts = {
        "TITLE": title.replace("&", "&amp;").replace("<", "&lt;"),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "DATA": content,
    }
    template = (assets / "page.html").read_text(encoding="utf-8")
    pieces = template.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def write_page(data: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.html``."""
    path = folder / REPORT
    path.write_text(clean(render_page(data)), encoding="utf-8")
    return path


def _status(record: EpisodeRecord) -> str:
    if record.failed:
        return "failed"
    if record.right is None:
        return "unscored"
    return "right" if record.right else "wrong"


def _training_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {key: value for key, value in entry.items() if key in _TRAINING or key.startswith("actions/")}
    return {"step": entry.get("step"), **wanted}

"""``atommem compare A B``: two evaluations task by task, whether one is better, and which episodes flipped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.arguments import Parser
from atommem.envs.scoring.paired import Comparison, compare, question_scores
from atommem.envs.scoring.records import EpisodeRecord, main_metric, metric_names
from atommem.envs.task_files import write_json
from atommem.errors import ConfigError, check_writable
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.scores import label, ordered


def flips(first: Evaluation, second: Evaluation, comparison: Comparison) -> list[dict[str, Any]]:
    """The tasks on which one is better, wins of the second first, the largest changes first.

    Each with its ``task_id``, ``change``, both sides' ``answers`` and the paths of their ``traces``.
    """
    sides: list[dict[str, list[EpisodeRecord]]] = [defaultdict(list), defaultdict(list)]
    for side, evaluation in zip(sides, (first, second), strict=True):
        for record in evaluation.records:
            side[record.task_id] += [] if record.failed else [record]
    rows: list[dict[str, Any]] = []
    for task, change in sorted(
        comparison.changes.items(), key=lambda item: (item[1] <= 0, -abs(item[1]), item[0])
    ):
        if change:
            one, two = (side[task] for side in sides)
            golds = [list(question.golds) for question in one[0].questions]
            answers = [
                [[question.answer for question in record.questions] for record in side]
                for side in (one, two)
            ]
            traces = [
                [str(first.trace(record)) for record in one],
                [str(second.trace(record)) for record in two],
            ]
            rows.append(
                {
                    "task_id": task,
                    "change": change,
                    "golds": golds,
                    "answers": answers,
                    "traces": traces,
                }
            )
    return rows


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem compare``.

    Raises:
        ConfigError: A folder holds no evaluation, or no such score, or the two were not given the same tasks.
        DataError: Records are damaged.
    """
    parser = Parser(prog="atommem compare", description=__doc__)
    parser.add_argument("first", help="Folder of an evaluation.")
    parser.add_argument("second", help="Folder of another one on the same tasks.")
    parser.add_argument(
        "--metric", help="Score to compare (default: em, or reward where there is no exact match)."
    )
    parser.add_argument(
        "--show", type=int, default=10, help="Flips to print of each kind; 0 for none, -1 for all."
    )
    parser.add_argument("--json", help="Also write everything to this file.")
    given = parser.parse_args(list(argv))
    check_writable("json", given.json, folder=False)
    first, second = read_evaluation(given.first), read_evaluation(given.second)
    if first.tasks_digest != second.tasks_digest:
        raise ConfigError(
            f"{first.folder} and {second.folder} have different tasks (tasks.sha256 in their run.json): scores are "
            "compared on the same tasks only. Evaluate both on one task file, with the same --limit."
        )
    metric = given.metric or main_metric([*first.records, *second.records])
    for side in (first, second):
        known = ordered([*metric_names(side.records), "reward"])
        if metric not in known and not all(record.failed for record in side.records):
            raise ConfigError(f"metric is {metric!r}: {side.folder} has {', '.join(known)}.")
    comparison = compare(first.records, second.records, metric)
    found = flips(first, second, comparison)
    if given.json:
        sides = {"first": str(first.folder), "second": str(second.folder)}
        failed = [sum(record.failed for record in side.records) for side in (first, second)]
        content = sides | comparison.to_json() | {"failed": failed, "flips": found}
        write_json(given.json, content)
    _print(first, second, comparison, found, given.show)
    return 0


def _print(
    first: Evaluation,
    second: Evaluation,
    comparison: Comparison,
    found: Sequence[dict[str, Any]],
    show: int,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    name = label(comparison.metric)
    console.print(f"{name} on the {len(comparison.changes)} tasks with a score in both")
    table = Table("", box=SIMPLE_HEAD)
    table.add_column(name, justify="right")
    table.add_column("failed", justify="right")
    # As the difference below: a question whose episodes failed in part counts as much as any other.
    one, two = (question_scores(side.records, comparison.metric) for side in (first, second))
    for letter, side, scores in (("A", first, one), ("B", second, two)):
        common = [fmean(scores[key][2]) for key in sorted(one.keys() & two.keys())]
        failed = sum(record.failed for record in side.records)
        table.add_row(letter, f"{fmean(common):.3f}" if common else "-", str(failed))
    console.print(table)
    for letter, side in (("A", first), ("B", second)):
        console.print(f"{letter}: {side.folder}", markup=False)
    if comparison.difference is None:
        console.print("No task has a score in both: there is nothing to compare.")
        return
    gap = comparison.difference
    console.print(
        f"B - A: {gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] (95%), p = {comparison.p_value:.2g} "
        f"(sign-flip test)\nover {gap.questions} questions of {gap.units} independent units"
    )
    console.print(
        f"B is better on {comparison.wins} tasks, worse on {comparison.losses}, equal on {comparison.ties}"
    )
    if comparison.left_out:
        console.print(
            f"{comparison.left_out} tasks have a score on one side only and are left out."
        )
    for heading, better in (("Better in B", True), ("Worse in B", False)):
        rows = [row for row in found if (row["change"] > 0) == better]
        shown = rows if show < 0 else rows[:show]
        if shown:
            more = (
                f", the first {len(shown)}; --show -1 prints all" if len(shown) < len(rows) else ""
            )
            console.print(f"\n{heading} ({len(rows)}{more}); replay one with: atommem trace FILE")
        for row in shown:
            console.print(f"  {row['task_id']}  {row['change']:+.2f}", markup=False)
            for letter, paths in zip("AB", row["traces"], strict=True):
                for path in paths:
                    console.print(f"    {letter} {path}", markup=False)

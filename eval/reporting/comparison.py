"""Compare two evaluations task by task, with a test and the tasks that changed."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from atommem.arguments import Parser
from atommem.envs.scoring.records import (
    Comparison,
    compare,
    main_metric,
    metric_names,
    question_scores,
)
from atommem.errors import ConfigError, check_writable, shorten
from atommem.eval.reporting.results import Evaluation, label, ordered, read_evaluation
from atommem.eval.runner import differences, trace_path
from atommem.files import write_json


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="atommem compare", description=__doc__)
    add = parser.add_argument
    add("first", help="Folder of an evaluation.")
    add("second", help="Folder of another one on the same tasks.")
    add("--metric", help="Score (default: em, or reward in environments without exact match).")
    shown = "Changed tasks of each kind to print (%(default)s); 0: none, -1: all."
    add("--show", type=int, default=10, help=shown)
    add("--out", help="Also write everything to this file.")
    given = parser.parse_args(list(argv))
    check_writable("out", given.out, folder=False)
    sides = [read_evaluation(given.first), read_evaluation(given.second)]
    if len({side.tasks_digest for side in sides}) > 1:
        raise ConfigError(
            f"{given.first} and {given.second} have different tasks (tasks.sha256 in run.json). "
            "Evaluate both on one task file with the same --limit."
        )
    records = [record for side in sides for record in side.records]
    metric = given.metric or main_metric(records)
    known = ordered([*metric_names(records), "reward"])
    if metric not in known:
        raise ConfigError(f"metric={metric!r}: unknown. Give one of {', '.join(known)}.")
    comparison = compare(sides[0].records, sides[1].records, metric)
    changes = changed_tasks(sides, comparison)
    if given.out:
        folders = {"first": given.first, "second": given.second}
        failed = [sum(record.failed for record in side.records) for side in sides]
        content = folders | comparison.to_json() | {"failed": failed, "changed": changes}
        write_json(given.out, content)
    print(*_format(sides, comparison, changes, given.show), sep="\n")
    return 0


_OWN = {"policy", "method", "tasks", "templates_sha256", "prompts_sha256", "chat_format"}
"""What two evaluations may differ in without a word: what is compared."""


def other_settings(sides: Sequence[Evaluation]) -> list[str]:
    """Name the settings that both evaluations have, and that differ."""
    shared = (sides[0].manifest.keys() & sides[1].manifest.keys()) - _OWN
    first, second = ({name: side.manifest[name] for name in shared} for side in sides)
    return [f"{name} {one!r}, {two!r}" for name, one, two in differences(first, second)]


def changed_tasks(sides: Sequence[Evaluation], comparison: Comparison) -> list[dict[str, Any]]:
    """Return the tasks that changed: those that got worse first, the largest changes first.

    Each has ``task_id``, ``change``, and of both sides `traces` and `answers`; and ``questions``,
    each with its gold answers.
    """
    changed = [(task, change) for task, change in comparison.changes.items() if change]
    changed.sort(key=lambda item: (item[1] > 0, -abs(item[1]), item[0]))
    rows = []
    for task, change in changed:
        found = [
            [record for record in side.records if record.task_id == task and not record.failed]
            for side in sides
        ]
        answers = [[[q.answer for q in r.questions] for r in records] for records in found]
        traces = [
            [str(trace_path(side.folder, record)) for record in records]
            for side, records in zip(sides, found, strict=True)
        ]
        row = {"task_id": task, "change": change, "answers": answers, "traces": traces}
        asked = {q.question: list(q.golds) for record in found[0] for q in record.questions}
        rows.append({**row, "questions": asked})
    return rows


def _format(
    sides: list[Evaluation], comparison: Comparison, changes: Sequence[dict[str, Any]], show: int
) -> list[str]:
    names = [side.folder.name for side in sides]
    if names[0] == names[1]:
        names = [str(side.folder) for side in sides]
    lines = [f"{label(comparison.metric)}; tasks with a score in both: {len(comparison.changes)}"]
    # Means over the common questions, like the difference.
    one, two = (question_scores(side.records, comparison.metric) for side in sides)
    width = max(map(len, names))
    for side_name, side, scores in zip(names, sides, (one, two), strict=True):
        common = [fmean(scores[key][2]) for key in sorted(one.keys() & two.keys())]
        mean = f"{fmean(common):.3f}" if common else "-"
        failed = sum(record.failed for record in side.records)
        lines.append(f"{side_name:<{width}}  {mean}, {failed} failed")
    if found := other_settings(sides):
        lines.append(f"settings that differ: {'; '.join(found)}")
    gap = comparison.difference
    if gap is None:
        return [*lines, "No task has a score in both: there is nothing to compare."]
    second = names[1]
    lines += [
        f"{second}: {gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] (95%), "
        f"p = {comparison.p_value:.2g} (sign-flip test of {gap.units} independent units)",
        f"tasks: {comparison.wins} better, {comparison.losses} worse, {comparison.ties} equal; "
        f"{comparison.left_out} with a score on one side only",
    ]
    for heading, better in (("Worse", False), ("Better", True)):
        rows = [row for row in changes if (row["change"] > 0) == better]
        shown = rows if show < 0 else rows[:show]
        if shown:
            count = f"{len(shown)} of {len(rows)}"
            lines.append(f"\n{heading} in {second} ({count}; `atommem trace` replays):")
        for row in shown:
            lines.append(f"  {row['change']:+.2f}  {row['task_id']}")
            lines += [
                f"    {shorten(question, 70)}  right: {shorten(' or '.join(golds), 40)}"
                for question, golds in row["questions"].items()
            ]
            for side_name, answers, paths in zip(names, row["answers"], row["traces"], strict=True):
                for given, path in zip(answers, paths, strict=True):
                    said = ", ".join(shorten(answer or "no answer", 40) for answer in given)
                    lines.append(f"    {side_name:<{width}}  {said:<12}  {path}")
    return lines

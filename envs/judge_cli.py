"""The command `atommem judge`: agreement of a judge with labels."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from atommem.arguments import Command, Parser, make, run_command
from atommem.envs.benchmarks.rows import Row, Text, read_rows
from atommem.envs.scoring.judge import NOT_ATTEMPTED, RIGHT, WRONG, Verdict, make_judge
from atommem.envs.scoring.judge_config import JudgeConfig
from atommem.envs.scoring.statistics import clustered_estimate
from atommem.envs.task import Question
from atommem.errors import ConfigError, DataError, check_writable
from atommem.files import write_json

_GRADES = (RIGHT, WRONG, NOT_ATTEMPTED)
_LABELS = {"true": RIGHT, "1": RIGHT, "false": WRONG, "0": WRONG} | {name: name for name in _GRADES}


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer with its human label: ``correct``, ``incorrect`` or ``not_attempted``."""

    question: Question
    answer: str
    label: str


class _LabelledRow(Struct):
    question: Text
    golds: Text | Annotated[list[Text], Meta(min_length=1)]
    answer: str
    label: str | bool | int


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem judge``; raise AtomMemError if a setting, a file or the judge is at fault."""
    commands = {"check": Command(_check, "compare a judge with labelled answers")}
    return run_command("atommem judge", commands, sys.argv[1:] if argv is None else argv)


def _check(argv: list[str]) -> int:
    parser = Parser("atommem judge check", "Compare a judge with labelled answers.")
    parser.add_argument(
        "file", type=Path, help="Rows with question, golds, answer and label (true, false, ...)."
    )
    parser.add_argument("--out", type=Path, help="Also write the report here (JSON).")
    parser.add_settings("judge", JudgeConfig, leave_out=["judge_exact"])
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=False)
    config = make(JudgeConfig, args)
    if config.judge_url is None:
        raise ConfigError("--judge_url is missing. Give the judge's server and --judge_model.")
    items = list(map(_labelled, read_rows(args.file)))
    if not items:
        raise DataError(f"{args.file}: has no rows. Give question, golds, answer and label.")
    report = asyncio.run(check(items, config))
    print(_format(report))
    if args.out is not None:
        write_json(args.out, report)
    return 0


def _labelled(row: Row) -> Labelled:
    found = row.parse(_LabelledRow, golds=row.get("golds", "answers"))
    name = str(found.label).strip().lower().replace(" ", "_")
    if name not in _LABELS:
        raise row.error("label", f"is {found.label!r}, expected true, false, {', '.join(_GRADES)}")
    golds = [found.golds] if isinstance(found.golds, str) else found.golds
    return Labelled(Question(found.question, tuple(golds)), found.answer, _LABELS[name])


async def check(items: Sequence[Labelled], config: JudgeConfig) -> dict[str, Any]:
    """Compare a judge with labels; exact answers are judged as well.

    Returns:
        ``n``; ``accuracy`` (right or not, with its interval); Cohen's ``kappa``; ``confusion``
        (label -> grade -> count); ``unreadable``, a rate; ``usage``.

    Raises:
        OutageError: The judge is out of reach.
        JudgeError: It refuses to judge.
    """
    judge = make_judge(replace(config, judge_exact=False, judge_max_unreadable=1.0))
    assert judge is not None
    try:
        asked = (judge(item.question, item.answer) for item in items)
        verdicts = await asyncio.gather(*asked)
    finally:
        await judge.close()
    labels = [item.label for item in items]
    right = [label == RIGHT for label in labels]
    judged = [bool(verdict.score) for verdict in verdicts]
    agreed = [float(one == other) for one, other in zip(right, judged, strict=True)]
    counts = Counter(zip(labels, map(_grade, verdicts), strict=True))
    return {
        "n": len(items),
        "accuracy": asdict(clustered_estimate(agreed, [item.question.text for item in items])),
        "kappa": kappa(right, judged),
        "confusion": {
            label: {grade: counts[label, grade] for grade in (*_GRADES, "unreadable")}
            for label in _GRADES
            if label in labels
        },
        "unreadable": sum(not verdict.readable for verdict in verdicts) / len(items),
        "usage": dict(judge.usage),
    }


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Return Cohen's kappa of two raters, (p_o - p_e) / (1 - p_e); None if p_e is 1."""
    n = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    yes = (sum(first) / n, sum(second) / n)
    expected = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return None if expected == 1 else (observed - expected) / (1 - expected)


def _grade(verdict: Verdict) -> str:
    if not verdict.readable:
        return "unreadable"
    return RIGHT if verdict.score else NOT_ATTEMPTED if verdict.attempted is False else WRONG


def _format(report: dict[str, Any]) -> str:
    accuracy, agreement, usage = report["accuracy"], report["kappa"], report["usage"]
    interval = f"(95% {accuracy['low']:.3f} to {accuracy['high']:.3f})"
    lines = [
        f"answers            {report['n']}",
        f"accuracy           {accuracy['mean']:.3f}  {interval}",
        f"Cohen's kappa      {'undefined' if agreement is None else f'{agreement:.3f}'}",
        f"unreadable         {report['unreadable']:.3f}",
    ]
    for label, grades in report["confusion"].items():
        shown = ", ".join(f"{count} {grade}" for grade, count in grades.items() if count)
        lines.append(f"labelled {label}: {shown}")
    tokens = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    return "\n".join([*lines, f"{usage['requests']} requests, {tokens}"])

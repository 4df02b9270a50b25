"""The command `atommem judge`: does a judge agree with labels of one's own, and with itself?"""

from __future__ import annotations

import asyncio
import sys
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
from atommem.envs.task_files import write_json
from atommem.errors import ConfigError, DataError, check_writable

_GRADES = (RIGHT, WRONG, NOT_ATTEMPTED)


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer with what people said of it: ``correct``, ``incorrect`` or ``not_attempted``."""

    question: Question
    answer: str
    label: str


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem judge``.

    Raises:
        AtomMemError: A setting is wrong, a file cannot be read, or the judge is out of reach.
    """
    commands = {"check": Command(_check, "compare a judge with labelled answers and itself")}
    return run_command("atommem judge", commands, sys.argv[1:] if argv is None else argv)


def _check(argv: list[str]) -> int:
    parser = Parser("atommem judge check", "Compare a judge with labelled answers and itself.")
    parser.add_argument(
        "file", type=Path, help="Rows with question, golds, answer and label (true, false, ...)."
    )
    parser.add_argument("--repeats", type=int, default=3, help="Further verdicts (%(default)s).")
    parser.add_argument("--temperature", type=float, default=0.7, help="Of these (%(default)s).")
    parser.add_argument("--out", type=Path, help="Also write the report here (JSON).")
    parser.add_settings("judge", JudgeConfig, leave_out=["judge_exact"])
    args = parser.parse_args(argv)
    check_writable("out", args.out, folder=False)
    config = make(JudgeConfig, args)
    if config.judge_url is None:
        raise ConfigError("--judge_url is missing. Give the judge's server and --judge_model.")
    report = asyncio.run(check(read_labelled(args.file), config, args.repeats, args.temperature))
    print("\n".join(_described(report)))
    if args.out is not None:
        write_json(args.out, report)
    return 0


def read_labelled(path: str | Path) -> list[Labelled]:
    """Rows with ``question``, ``golds`` (text or a list), ``answer`` (which is judged), and ``label``: true, false,
    ``correct``, ``incorrect`` or ``not_attempted``.

    Raises:
        DataError: The file is damaged, empty, or a row is not of this form; the message names row and field.
    """
    found = [_labelled(row) for row in read_rows(path)]
    if not found:
        raise DataError(f"{path}: has no rows. Give rows with question, golds, answer and label.")
    return found


async def check(
    items: Sequence[Labelled], config: JudgeConfig, repeats: int = 3, temperature: float = 0.7
) -> Any:
    """Hold a judge against labels: once as it judges, greedily, and `repeats` times at `temperature`.

    No answer is right without asking, and no number of unreadable verdicts stops it: both are what is measured.

    Returns:
        ``n``; ``accuracy`` (right or not, with its interval); Cohen's ``kappa`` (None where chance alone would agree
        always); ``confusion`` (label -> verdict -> count); ``unreadable``, a rate; ``self_consistency``, the part of
        the answers on which all repeated verdicts are the same; ``usage``.

    Raises:
        OutageError: The judge is out of reach.
        JudgeError: It refuses to judge.
    """
    config = replace(config, judge_exact=False, judge_max_unreadable=1.0)
    runs, usage = [], dict[str, int]()
    for seed in range(repeats + 1):
        judge = make_judge(config, temperature if seed else 0.0, seed * 1000)
        assert judge is not None
        try:
            runs.append(
                list(await asyncio.gather(*(judge(item.question, item.answer) for item in items)))
            )
        finally:
            await judge.close()
        usage = {name: usage.get(name, 0) + count for name, count in judge.usage.items()}
    first, labels = runs[0], [item.label for item in items]
    agree = [
        float((label == RIGHT) == bool(verdict.score))
        for label, verdict in zip(labels, first, strict=True)
    ]
    said = [_grade(verdict) for verdict in first]
    confusion = {
        label: dict.fromkeys((*_GRADES, "unreadable"), 0) for label in _GRADES if label in labels
    }
    for label, grade in zip(labels, said, strict=True):
        confusion[label][grade] += 1
    repeated = [
        {_grade(verdict) for verdict in verdicts} for verdicts in zip(*runs[1:], strict=True)
    ]
    return {
        "n": len(items),
        "accuracy": asdict(clustered_estimate(agree, [item.question.text for item in items])),
        "kappa": kappa(
            [label == RIGHT for label in labels], [bool(verdict.score) for verdict in first]
        ),
        "confusion": confusion,
        "unreadable": sum(not verdict.readable for verdict in first) / len(items),
        "self_consistency": sum(len(grades) == 1 for grades in repeated) / len(items)
        if repeats > 1
        else None,
        "repeats": repeats,
        "temperature": temperature,
        "usage": usage,
    }


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Cohen's kappa of two raters' yes and no: (p_o - p_e) / (1 - p_e); None where p_e is 1."""
    n = len(first)
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    yes = (sum(first) / n, sum(second) / n)
    expected = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return None if expected == 1 else (observed - expected) / (1 - expected)


def _grade(verdict: Verdict) -> str:
    if not verdict.readable:
        return "unreadable"
    return RIGHT if verdict.score else NOT_ATTEMPTED if verdict.attempted is False else WRONG


class _LabelledRow(Struct):
    question: Text
    golds: Text | Annotated[list[Text], Meta(min_length=1)]
    answer: str
    label: str | bool | int


def _labelled(row: Row) -> Labelled:
    golds = row.get("golds", "answers")
    found = row.parse(_LabelledRow, golds=golds)
    name = str(found.label).strip().lower().replace(" ", "_")
    name = {"true": RIGHT, "1": RIGHT, "false": WRONG, "0": WRONG}.get(name, name)
    if name not in _GRADES:
        raise row.error("label", f"is {found.label!r}, expected true, false, {', '.join(_GRADES)}")
    answers = [found.golds] if isinstance(found.golds, str) else found.golds
    return Labelled(Question(found.question, tuple(answers)), found.answer, name)


def _described(report: dict[str, Any]) -> list[str]:
    accuracy, agreed = report["accuracy"], report["kappa"]
    lines = [
        f"answers            {report['n']}",
        f"accuracy           {accuracy['mean']:.3f}  (95% {accuracy['low']:.3f} to {accuracy['high']:.3f})",
        f"Cohen's kappa      {'none: labels and verdicts are all the same' if agreed is None else f'{agreed:.3f}'}",
        f"unreadable         {report['unreadable']:.3f}",
    ]
    if report["self_consistency"] is not None:
        asked = f"({report['repeats']} verdicts at temperature {report['temperature']:g})"
        lines.append(f"agrees with itself {report['self_consistency']:.3f}  {asked}")
    for label, verdicts in report["confusion"].items():
        shown = ", ".join(f"{count} {grade}" for grade, count in verdicts.items() if count)
        lines.append(f"labelled {label}: {shown}")
    usage = report["usage"]
    lines.append(
        f"{usage['requests']} requests, {usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    )
    return lines

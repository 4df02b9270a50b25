"""Checks of what an environment hands out: tasks, observations, scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from atommem.actions import MEMORY_KINDS
from atommem.description import TaskDescription
from atommem.dialects import split_template
from atommem.env_check.declarations import Declared
from atommem.env_check.findings import Findings, StoppedError, told
from atommem.environment import Score
from atommem.observation import Observation, Piece


def check_tasks(
    findings: Findings, declared: Declared, data: str | Path | None, tasks: Sequence[Any] | None
) -> list[tuple[Any, TaskDescription]]:
    """The tasks with their descriptions; those that cannot be described are left out.

    Raises:
        StoppedError: There is none.
    """
    findings.begin("tasks")
    kind = declared.kind
    try:
        found = list(kind.read_tasks(str(data)) if tasks is None else tasks)
        again = list(kind.read_tasks(str(data)) if tasks is None else tasks)
    except Exception as error:
        findings.fail(
            "tasks", told(error), "Raise a DataError that says what is wrong, or mend the file."
        )
        raise StoppedError from error
    if [repr(task) for task in found] != [repr(task) for task in again]:
        remedy = "Give tasks a repr of their contents (a dataclass has one): by it an evaluation knows its tasks again."
        findings.fail("tasks", f"read twice, a task is {found[0]!r} and {again[0]!r}", remedy)
    described = []
    for task in found:
        description = _described(findings, declared, task)
        if description is not None:
            described.append((task, description))
    ids = [description.id for _, description in described]
    twice = sorted({str(name) for name in ids if ids.count(name) > 1}) if len(ids) < 10_000 else []
    findings.expect(
        not twice,
        "tasks",
        f"several tasks have the id {', '.join(twice[:3])}",
        "Give each its own.",
    )
    if not described:
        findings.fail("tasks", "there is no task that could be played", "Give a file with tasks.")
        raise StoppedError
    return described


def _described(findings: Findings, declared: Declared, task: Any) -> TaskDescription | None:
    name = getattr(task, "id", None)
    remedy = "A task needs an `id`, a string; describe() gives a TaskDescription with the same."
    if not findings.expect(
        isinstance(name, str) and name, "tasks", f"a task has the id {name!r}", remedy
    ):
        return None
    try:
        description = declared.kind.describe(task)
        json.dumps(description.to_json())
        right = isinstance(description, TaskDescription) and description.id == name
    except Exception as error:
        findings.fail(
            "tasks", f"describe({name}): {told(error)}", "Give a TaskDescription of JSON values."
        )
        return None
    return (
        description
        if findings.expect(right, "tasks", f"describe({name}) is {description!r}", remedy)
        else None
    )


def check_observation(
    findings: Findings,
    declared: Declared,
    observation: Any,
    questions: int,
    *,
    where: str = "observations",
) -> bool:
    """Whether an observation holds what its environment declares, and nothing else."""
    kind = declared.kind
    if not isinstance(observation, Observation):
        return findings.expect(
            False, where, f"an observation is {observation!r}", "Give an Observation."
        )
    detail = f"phase {observation.phase!r} is not among {', '.join(kind.phases)}"
    good = findings.expect(
        observation.phase in kind.phases, where, detail, "Declare it in `phases`."
    )
    index, count = observation.question, observation.questions
    detail = f"question {index!r} is asked{f' with {count - 1} more' * (count != 1)}, and describe() has {questions}"
    remedy = "`question` is the index of one of the description's questions, or None; `questions` are asked from it on."
    good &= findings.expect(
        index is None or (index in range(questions) and 1 <= count <= questions - index),
        where,
        detail,
        remedy,
    )
    for place in ("task", "stream", "closing"):
        pieces = getattr(observation, place)
        if findings.expect(
            isinstance(pieces, tuple), where, f"{place} is {pieces!r}", "Give a tuple of pieces."
        ):
            for piece in pieces:
                good &= _check_piece(findings, declared, piece, where)
        else:
            good = False
    return good


def _check_piece(findings: Findings, declared: Declared, piece: Any, where: str) -> bool:
    kind = declared.kind
    if not isinstance(piece, Piece):
        return findings.expect(False, where, f"{piece!r} is no piece", "Give a Piece.")
    name = piece.name
    detail = f"piece {name!r} is not declared"
    if not findings.expect(
        name in kind.pieces, where, detail, "Declare it in `pieces`, and word it."
    ):
        return False
    good = True
    if piece.needs is not None:
        detail = f"piece {name} needs {piece.needs!r}"
        good &= findings.expect(
            piece.needs in MEMORY_KINDS, where, detail, f"Name one of {', '.join(MEMORY_KINDS)}."
        )
    parts = split_template(declared.section.pieces[name])
    numbers = {part.placeholder for part in parts if part.is_number}
    wanted = {*kind.pieces[name], *(part.placeholder for part in parts)} - {""}
    missing = sorted(item for item in wanted - set(piece.values) if not item.startswith("tag."))
    remedy = "Fill every placeholder of the template: what is not filled is shown as it stands."
    good &= findings.expect(
        not missing, where, f"piece {name} has nothing for {', '.join(missing)}", remedy
    )
    for placeholder, value in piece.values.items():
        inner = (
            value if isinstance(value, tuple) else (value,) if isinstance(value, Piece) else None
        )
        if inner is not None:
            for item in inner:
                good &= _check_piece(findings, declared, item, where)
            continue
        detail = f"piece {name} has {type(value).__name__} {value!r} for {placeholder}"[:200]
        if placeholder in numbers:
            remedy = f"Give an int, or write {{{placeholder}}} in the template."
            good &= findings.expect(isinstance(value, int), where, detail, remedy)
        else:
            good &= findings.expect(
                isinstance(value, str | int), where, detail, "Give text, a number, or pieces."
            )
    return good


def check_score(findings: Findings, score: Any, description: TaskDescription, after: str) -> None:
    """Whether a score can be recorded; `after` says what was scored."""
    questions = len(description.questions)
    if not findings.expect(
        isinstance(score, Score), "score", f"score() gave {score!r} {after}", "Give a Score."
    ):
        return
    unknown = bool(questions) and not any(question.golds for question in description.questions)
    detail = f"the reward is {score.reward!r} {after}"
    remedy = "Give a number from 0 to 1; None where no question has a gold answer."
    findings.expect(
        _is_share(score.reward) or (unknown and score.reward is None), "score", detail, remedy
    )
    for name in ("answers", "question_metrics", "question_notes"):
        count = len(getattr(score, name))
        detail = f"{name} has {count} values {after}, and describe() {questions} questions"
        findings.expect(
            count in (0, questions), "score", detail, "Give one for every question, in their order."
        )
    odd = [answer for answer in score.answers if not (answer is None or isinstance(answer, str))]
    findings.expect(
        not odd, "score", f"an answer is {odd[:1]!r} {after}", "Give a text, or None for no answer."
    )
    for metrics in (score.metrics, *score.question_metrics):
        odd = [f"{name} is {value!r}" for name, value in metrics.items() if not _is_number(value)]
        findings.expect(not odd, "score", f"{', '.join(odd)} {after}", "Give finite numbers.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1

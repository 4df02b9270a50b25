"""From the answers to a task to its scores: which metrics a source has, and which of them is the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atommem.environment import Score
from atommem.envs.scoring.locomo_scores import LOCOMO_SOURCE, locomo_exact_match, locomo_f1
from atommem.envs.scoring.metrics import exact_match, f1, f1_rule, sub_exact_match
from atommem.envs.task import Question, Task

REWARDS = ("em", "f1", "sub_em", "judge")


class Judge(Protocol):
    """Decides whether an answer is right where no string comparison can."""

    async def __call__(self, question: Question, answer: str) -> float:
        """1.0 for a right answer, 0.0 for a wrong one.

        Raises:
            OutageError: It is out of reach, or its verdict cannot be read: never a 0.
        """
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


def score_question(question: Question, answer: str | None, source: str) -> dict[str, float]:
    """``em``, ``f1`` and ``sub_em`` of one answer, by the rules of the benchmark `source`."""
    if source == LOCOMO_SOURCE:
        em, token_f1 = locomo_exact_match(question, answer), locomo_f1(question, answer)
    else:
        em, token_f1 = exact_match(answer, question.answers), f1(answer, question.answers, f1_rule(source))
    return {"em": em, "f1": token_f1, "sub_em": sub_exact_match(answer, question.answers)}


async def score_answers(task: Task, answers: Sequence[str | None], reward: str, judge: Judge | None = None) -> Score:
    """Score a task: every metric is the mean over its questions, answer i against the golds of question i only.

    Args:
        task: Its questions and golds.
        answers: One per question; None where none was given.
        reward: Which metric is the reward: one of `REWARDS`.
        judge: Asked about every answer that was given, where there is one; its metric is ``judge``.

    Raises:
        OutageError: The judge is out of reach, or its verdict cannot be read.
    """
    scores = []
    for question, answer in zip(task.questions, answers, strict=True):
        score = score_question(question, answer, task.source)
        if judge is not None:
            blank = answer is None or not answer.strip()
            score["judge"] = 0.0 if blank else await judge(question, answer or "")
        scores.append(score)
    metrics = {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}
    return Score(metrics[reward], tuple(answers), metrics, tuple(scores))

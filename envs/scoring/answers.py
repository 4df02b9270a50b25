"""Scores of the answers to a task: the metrics of its source, and which one is the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atommem.config import check_choice
from atommem.environment import Score
from atommem.envs.scoring.judge import LLMJudge, Verdict
from atommem.envs.scoring.metrics import (
    GAIA_SOURCE,
    LOCOMO_SOURCE,
    WEB_SOURCES,
    abstains,
    exact_match,
    f1,
    gaia_score,
    locomo_scores,
    sub_exact_match,
    web_scores,
)
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError

REWARDS = ("em", "f1", "judge", "gaia")


def check_reward(reward: str, source: str = "") -> None:
    """Raise ConfigError if a metric cannot be the reward for tasks of `source`.

    Sub-EM and LoCoMo's F1 of multi-hop questions score a list of candidates in full, which training
    would learn: they are metrics only.
    """
    if reward == "sub_em" or (reward == "f1" and source == LOCOMO_SOURCE):
        where = f" for {source}" if source else ""
        raise ConfigError(
            f"reward={reward}: pays for an answer that lists candidates{where}. Give em or judge."
        )
    check_choice("reward", reward, REWARDS)
    if reward == "gaia" and source not in ("", GAIA_SOURCE):
        raise ConfigError(f"reward=gaia: GAIA's own rule, not for {source}. Give em or judge.")


def score_question(question: Question, answer: str | None, source: str) -> dict[str, float]:
    """Return ``em``, ``f1`` and ``sub_em`` by the rules of the benchmark; nothing without golds.

    If the text does not tell (`abstention`), all of them are whether the answer says so. GAIA has
    ``gaia``, too.
    """
    if not question.answers:
        return {}
    if question.metadata.get("abstention"):
        return dict.fromkeys(("em", "f1", "sub_em"), float(abstains(answer)))
    if source in WEB_SOURCES:
        gaia = {"gaia": gaia_score(answer, question.answers)} if source == GAIA_SOURCE else {}
        return web_scores(answer, question.answers) | gaia
    if source == LOCOMO_SOURCE:
        em, token_f1 = locomo_scores(question, answer)
    else:
        em = exact_match(answer, question.answers)
        token_f1 = f1(answer, question.answers, verdicts="musique" not in source)
    return {"em": em, "f1": token_f1, "sub_em": sub_exact_match(answer, question.answers)}


async def score_answers(
    task: Task, answers: Sequence[str | None], reward: str, judge: LLMJudge | None = None
) -> Score:
    """Score a task: each metric is the mean over the questions that have it.

    Questions without golds have no metric, and a task of such questions alone has no reward. A
    judge adds ``judge``, ``judge_unreadable``, and ``judge_not_attempted`` if it gives three
    grades; its replies are the questions' notes.

    Raises:
        ConfigError: This metric cannot be the reward for this task.
        OutageError: The judge is out of reach.
        JudgeError: The judge cannot judge at all.
    """
    check_reward(reward, task.source)
    pairs = list(zip(task.questions, answers, strict=True))
    scores = [score_question(question, answer, task.source) for question, answer in pairs]
    notes: tuple[str, ...] = ()
    if judge is not None:
        verdicts = await asyncio.gather(
            *(_verdict(judge, question, answer) for question, answer in pairs)
        )
        notes = tuple(verdict.text and f"judge: {verdict.text}" for verdict in verdicts)
        for score, verdict in zip(scores, verdicts, strict=True):
            if "em" not in score:
                continue
            score |= {"judge": verdict.score, "judge_unreadable": float(not verdict.readable)}
            if judge.three_way:
                score["judge_not_attempted"] = float(verdict.attempted is False)
    by_name: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.items():
            by_name.setdefault(name, []).append(value)
    metrics = {name: sum(values) / len(values) for name, values in by_name.items()}
    return Score(metrics.get(reward), tuple(answers), metrics, tuple(scores), notes)


async def _verdict(judge: LLMJudge, question: Question, answer: str | None) -> Verdict:
    if not question.answers or answer is None or not answer.strip():
        return Verdict(0.0, attempted=False)  # there is nothing to judge
    return await judge(question, answer)

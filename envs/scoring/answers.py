"""From the answers to a task to its scores: which metrics a source has, and which of them is the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from atommem.config import check_choice
from atommem.environment import Score
from atommem.envs.scoring.judge import LLMJudge, Verdict
from atommem.envs.scoring.locomo_scores import LOCOMO_SOURCE, locomo_exact_match, locomo_f1
from atommem.envs.scoring.metrics import abstains, exact_match, f1, f1_rule, sub_exact_match
from atommem.envs.scoring.web_scores import GAIA_SOURCE, WEB_SOURCES, gaia_score, web_scores
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError

REWARDS = ("em", "f1", "judge", "gaia")
_LISTING = "pays for an answer that lists candidates, which training would teach: it stays a metric"


def check_reward(reward: str, source: str = "") -> None:
    """Refuse a metric as the reward (of tasks of `source`) that can be had without knowing the answer.

    Raises:
        ConfigError: It can, or there is no such metric.
    """
    if reward == "sub_em":
        raise ConfigError(
            f"reward is 'sub_em': sub_em {_LISTING}. Give one of {', '.join(REWARDS)}."
        )
    if reward == "f1" and source == LOCOMO_SOURCE:
        raise ConfigError(
            f"reward is 'f1' and a task's source {source!r}: LoCoMo's F1 of multi-hop questions holds each part of the "
            f"gold answer against its best match and {_LISTING}. Give em or judge."
        )
    check_choice("reward", reward, REWARDS)
    if reward == "gaia" and source not in ("", GAIA_SOURCE):
        raise ConfigError(
            f"reward is 'gaia' and a task's source {source!r}: that is GAIA's own rule. Give em or judge."
        )


def score_question(question: Question, answer: str | None, source: str) -> dict[str, float]:
    """``em``, ``f1`` and ``sub_em`` of one answer, by the rules of the benchmark `source`; nothing without golds.

    Where the text does not tell (`abstention`), all of them say whether the answer says so. In MuSiQue-Full
    (`answerable`) there is ``sufficiency``: whether it says so where it should and only there; questions that cannot
    be answered have no other score (``evaluate_v1.0.py`` of MuSiQue). GAIA's have ``gaia``, its own rule, too.
    """
    if not question.answers:
        return {}
    if question.metadata.get("abstention"):
        return dict.fromkeys(("em", "f1", "sub_em"), float(abstains(answer)))
    answerable = question.metadata.get("answerable")
    sufficiency = (
        {} if answerable is None else {"sufficiency": float(abstains(answer) is not answerable)}
    )
    if answerable is False:
        return sufficiency
    if source in WEB_SOURCES:
        gaia = {"gaia": gaia_score(answer, question.answers)} if source == GAIA_SOURCE else {}
        return web_scores(answer, question.answers) | gaia
    if source == LOCOMO_SOURCE:
        em, token_f1 = locomo_exact_match(question, answer), locomo_f1(question, answer)
    else:
        em, token_f1 = (
            exact_match(answer, question.answers),
            f1(answer, question.answers, f1_rule(source)),
        )
    return {
        "em": em,
        "f1": token_f1,
        "sub_em": sub_exact_match(answer, question.answers),
        **sufficiency,
    }


async def score_answers(
    task: Task, answers: Sequence[str | None], reward: str, judge: LLMJudge | None = None
) -> Score:
    """Score a task: every metric is the mean over the questions that have it, answer i against the golds of question i.

    Questions without gold answers are in no metric; a task of such questions alone has no reward.

    Args:
        task: Its questions and golds.
        answers: One per question; None where none was given.
        reward: Which metric is the reward (`check_reward`).
        judge: Asked about every answer that was given, where there is one, all at the same time. Its metrics are
            ``judge`` and ``judge_unreadable``, with ``judge_not_attempted`` where it is asked for three grades, and
            what it said stands in the notes of the questions.

    Raises:
        ConfigError: This metric is no reward for this task.
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

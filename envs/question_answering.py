"""The common part of environments whose episodes end in questions about a `Task`."""

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from statistics import fmean
from traceback import extract_tb
from typing import Any

from atommem import plugins
from atommem.actions import ANSWER, answers_in, first
from atommem.config import check_choice, check_least, setting
from atommem.environment import EnvironmentConfig, EnvironmentFactory, Score
from atommem.envs.scoring.judge import JudgeConfig, LLMJudge, make_judge
from atommem.envs.scoring.metrics import GAIA_SOURCE, net_recall, score_question
from atommem.envs.task import Task, describe_task
from atommem.envs.task_files import load_tasks
from atommem.episode import Step, StopReason
from atommem.errors import AtomMemError, ConfigError, DataError
from atommem.tokens import Tokenizer

REWARDS = ("em", "net_recall", "judge", "gaia")


def check_reward(reward: str, source: str = GAIA_SOURCE) -> None:
    """Raise ConfigError if this cannot be the reward for questions of `source`.

    A function of the user's can be (``module:function``, see `own_reward`). F1, sub-EM and
    OOLONG's score pay for a list of candidates, which training would learn: they are metrics only.
    """
    if ":" in reward:
        plugins.find("reward", reward)
        return
    if reward in ("f1", "sub_em", "oolong"):
        problem = "pays for an answer that lists candidates. Give em, net_recall or judge."
        raise ConfigError(f"reward={reward}: {problem}")
    check_choice("reward", reward, (*REWARDS, "MODULE:FUNCTION"))
    if reward == "gaia" and source != GAIA_SOURCE:
        raise ConfigError(f"reward=gaia: not a score of source {source!r}. Give em or judge.")


@dataclass
class QAConfig(JudgeConfig, EnvironmentConfig):
    """The text of a step, the steps of a question, and the score of an episode."""

    chunk_tokens: int = setting(4000, "Tokens of a document or page that a step shows.")
    max_reads: int = setting(3, "Steps that a question may use before the one that must answer it.")
    reward: str = setting(
        "em",
        "Mean score of a task's questions: em, net_recall, judge or gaia; or a function of yours, "
        "MODULE:FUNCTION. net_recall: the gold's words in the answer, or the values where all of "
        "several are asked for, minus wrong ones.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_reward(self.reward)
        if self.reward == "judge" and self.judge_url is None:
            raise ConfigError("reward=judge: needs a judge. Give judge_url and judge_model.")
        if self.reward == "judge" and self.judge_prompt == "mem0":
            raise ConfigError("reward=judge: with mem0, lists of candidates earn it. Give another.")
        check_least(self, chunk_tokens=1, max_reads=0)


class QAEnvironments(EnvironmentFactory):
    """Makes environments that share their judge."""

    config: QAConfig
    read_tasks = staticmethod(load_tasks)
    describe = staticmethod(describe_task)

    def __init__(self, config: QAConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.judge: LLMJudge | None = make_judge(config)

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        from atommem.envs.data_cli import build_long_documents

        return build_long_documents(argv)

    def check(self, task: Task) -> None:
        """Raise ConfigError if `task` has no question, or the reward is none for it."""
        if not task.questions:
            raise ConfigError(f"task {task.id!r} has no question: nothing can be asked or scored.")
        check_reward(self.config.reward, task.source)

    async def score(self, task: Task, answers: Sequence[str | None]) -> Score:
        """Score the first questions of `task` by `answers`, and the others as not answered."""
        missing = [None] * (len(task.questions) - len(answers))
        return await score_answers(task, [*answers, *missing], self.config.reward, self.judge)

    def usage(self) -> dict[str, Any]:
        return {} if self.judge is None else {"judge": dict(self.judge.usage)}

    async def close(self) -> None:
        if self.judge is not None:
            await self.judge.close()


def check_golds(config: EnvironmentConfig, tasks: Sequence[Any]) -> None:
    """Raise DataError for a task that training cannot reward: no question has a gold answer."""
    if isinstance(config, QAConfig) and ":" not in config.reward:
        for task in tasks:
            if not any(question.answers for question in task.questions):
                raise DataError(f"task {task.id!r}: no gold answer, so no reward. Remove it.")


async def score_answers(
    task: Task, answers: Sequence[str | None], reward: str, judge: LLMJudge | None = None
) -> Score:
    """Score a task: each metric is the mean over the questions that have it.

    Questions without golds have no metric, and a task of such questions alone has no reward. A
    judge adds ``judge`` and ``judge_unreadable``; its replies are the questions' notes.

    ConfigError: it cannot be the reward of this task. OutageError, JudgeError: of the judge.
    """
    check_reward(reward, task.source)
    pairs = list(zip(task.questions, answers, strict=True))
    scores = []
    for question, answer in pairs:
        score = score_question(question, answer, task.source)
        if score and reward == "net_recall":
            score.setdefault(reward, net_recall(answer, question.answers))
        scores.append(score)
    notes: tuple[str, ...] = ()
    if judge is not None:
        verdicts = await asyncio.gather(*(judge(*pair) for pair in pairs))
        notes = tuple(verdict.text and f"judge: {verdict.text}" for verdict in verdicts)
        for score, verdict in zip(scores, verdicts, strict=True):
            if score:
                score |= {"judge": verdict.score, "judge_unreadable": float(not verdict.readable)}
    names = dict.fromkeys(chain.from_iterable(scores))
    metrics = {name: fmean(one[name] for one in scores if name in one) for name in names}
    if ":" in reward:
        metrics["reward"] = await own_reward(reward, task, answers)
        reward = "reward"
    return Score(metrics.get(reward), tuple(answers), metrics, tuple(scores), notes)


async def own_reward(name: str, task: Task, answers: Sequence[str | None]) -> float:
    """Return what a user's function ``(task, answers) -> float`` (or async) gives an episode."""
    function = plugins.find("reward", name)
    try:
        value = function(task, answers)
        value = await value if inspect.isawaitable(value) else value
    except AtomMemError:
        raise
    except Exception as error:
        frames = extract_tb(error.__traceback__)[1:2]  # the function's own
        place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames)
        raise ConfigError(f"reward={name}: {error!r}{place}. Correct the function.") from error
    if not isinstance(value, Real):
        raise ConfigError(f"reward={name}: it returned {value!r:.60}. Return a number.")
    return float(value)


def batches(count: int, at_once: int = 1) -> list[range]:
    """Return the indices of `count` questions in batches of `at_once`."""
    return [range(at, min(at + at_once, count)) for at in range(0, count, at_once)]


class AskedInTurn:
    """The questions of an episode, asked one batch after the other.

    A step with an answer moves on to the next batch. A step without one (a read, as a rule) uses up
    one of `max_reads`, and the step after the last of these must answer. With `several`, a step
    answers all questions of its batch, in their order.
    """

    def __init__(self, asked: Sequence[range], max_reads: int, several: bool = False) -> None:
        self.answers: list[str | None] = [None] * sum(map(len, asked))
        self.reads_left = self._max_reads = max_reads
        self._left = list(asked)
        self._several = several

    @property
    def asked(self) -> range:
        """The indices of the questions that are asked now; empty after the last batch."""
        return self._left[0] if self._left else range(0)

    def take(self, step: Step) -> StopReason | None:
        """Take a step's answers; return why the episode ends, None if it goes on."""
        answer = first(step.actions, ANSWER)
        if answer is None and self.reads_left > 0:
            self.reads_left -= 1
            return None
        batch = self._left.pop(0)
        one = [None if answer is None else answer.text]
        answers = answers_in(step.actions, len(batch)) if self._several else one
        self.answers[batch.start : batch.stop] = answers
        self.reads_left = self._max_reads
        if self._left:
            return None
        return StopReason.ANSWERED if None not in self.answers else StopReason.UNANSWERED

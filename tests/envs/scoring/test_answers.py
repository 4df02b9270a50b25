"""Which metrics may be rewards."""

from __future__ import annotations

import pytest

from atommem.environment import environment_config
from atommem.envs.scoring.answers import REWARDS, check_reward, score_answers
from atommem.envs.scoring.verdicts import Verdict
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from tests.fakes import WordTokenizer, longdoc

CATEGORY = {"category": "multi_hop"}
TASK = Task("t", (Question("Where?", ("Port, Vesk",), metadata=CATEGORY),), (Document("A", "B"),), source="locomo")
LISTING = "Lorne, Port, Oakrest, Vesk, Harbour"


async def test_what_a_list_of_candidates_earns_is_no_reward() -> None:
    score = await score_answers(TASK, [LISTING], "em")
    assert (score.reward, score.metrics["f1"]) == (0.0, 1.0)
    assert (await score_answers(Task("u", (Question("?", ("Port",)),)), [LISTING], "em")).metrics["sub_em"] == 1.0
    with pytest.raises(ConfigError, match=r"reward is 'sub_em'.*lists candidates.*em, f1, judge"):
        environment_config("longdoc", reward="sub_em")
    environments = longdoc(WordTokenizer(), reward="f1")
    with pytest.raises(ConfigError, match=r"'f1'.*'locomo'.*lists candidates.*em or judge"):
        await environments().reset(TASK)
    with pytest.raises(ConfigError, match="LoCoMo"):
        await environments.score(TASK, [LISTING])
    await environments.close()
    for reward in {*REWARDS} - {"gaia"}:
        check_reward(reward, "hotpotqa")
    check_reward("em", "locomo")
    with pytest.raises(ConfigError, match="reward is 'rouge': give one of em, f1, judge, gaia"):
        check_reward("rouge")


async def test_questions_without_gold_answers_have_no_score() -> None:
    class Strict:
        three_way = False

        async def __call__(self, question: Question, answer: str) -> Verdict:
            assert question.answers, "there is nothing to judge by"
            return Verdict(1.0)

        async def close(self) -> None:
            return None

    known, unknown = Question("Where?", ("Port",)), Question("Who?", ())
    for judge in (None, Strict()):
        reward = "em" if judge is None else "judge"
        score = await score_answers(Task("t", (known, unknown)), ["Port", "Ann"], reward, judge)
        assert (score.reward, score.metrics["em"], score.question_metrics[1]) == (1.0, 1.0, {})
        assert set(score.question_metrics[0]) == set(score.metrics)
        score = await score_answers(Task("t", (unknown, unknown)), ["Ann", None], reward, judge)
        assert (score.reward, score.metrics, score.question_metrics) == (None, {}, ({}, {}))
        assert score.answers == ("Ann", None)

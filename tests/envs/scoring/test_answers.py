"""Rewards, scores of answers in any script, and GAIA's rule by hand."""

from __future__ import annotations

import pytest

from atommem.environment import environment_config
from atommem.envs.scoring.answers import check_reward, score_answers, score_question
from atommem.envs.scoring.web_scores import gaia_score
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from tests.envs.scoring.test_judge import make
from tests.fake_chat import FakeChat
from tests.fakes import WordTokenizer, longdoc

TASK = Task(
    "t",
    (Question("Where?", ("Port, Vesk",), metadata={"category": "multi_hop"}),),
    (Document("A", "B"),),
    source="locomo",
)
LISTING = "Lorne, Port, Oakrest, Vesk, Harbour"


async def test_reward_that_lists_of_candidates_earn_is_refused() -> None:
    score = await score_answers(TASK, [LISTING], "em")
    assert (score.reward, score.metrics["f1"]) == (0.0, 1.0)
    with pytest.raises(ConfigError, match=r"reward is 'sub_em'.*lists candidates.*em, f1, judge"):
        environment_config("longdoc", reward="sub_em")
    environments = longdoc(WordTokenizer(), reward="f1")
    with pytest.raises(ConfigError, match=r"'f1'.*'locomo'.*lists candidates.*em or judge"):
        await environments().reset(TASK)
    await environments.close()


@pytest.mark.parametrize(("reward", "source"), [("f1", "hotpotqa"), ("em", "locomo")])
def test_check_reward_accepts_a_reward_of_its_benchmark(reward: str, source: str) -> None:
    check_reward(reward, source)


@pytest.mark.parametrize(
    ("reward", "message"),
    [("rouge", "Give one of em, f1, judge, gaia"), ("gaia", "GAIA's own rule")],
)
def test_check_reward_refuses_others(reward: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"reward(=| is '){reward}.*{message}"):
        check_reward(reward, "hotpotqa")


async def test_questions_without_gold_answers_have_no_score() -> None:
    known, unknown = Question("Where?", ("Port",)), Question("Who?", ())
    judge = make(server := FakeChat("CORRECT"), judge_exact=False)
    score = await score_answers(Task("t", (known, unknown)), ["Port", "Ann"], "judge", judge)
    assert (score.reward, score.metrics["em"], score.question_metrics[1]) == (1.0, 1.0, {})
    assert len(server.bodies) == 1
    score = await score_answers(Task("t", (unknown, unknown)), ["Ann", None], "em", None)
    assert (score.reward, score.metrics, score.question_metrics) == (None, {}, ({}, {}))
    assert score.answers == ("Ann", None)


@pytest.mark.parametrize(
    ("answer", "gold", "em", "f1", "sub_em"),
    [
        ("北京大学。", "北京大学", 1, 1, 1),
        ("北京饭店", "北京大学", 0, 0.5, 0),  # by characters; by SQuAD's words it is 0
        ("2023年", "２０２３年", 1, 1, 1),
        ("“Town\u00a0Hall”", "town hall", 1, 1, 1),
        ("big town hall", "town hall", 0, 0.8, 1),
        (None, "x", 0, 0, 0),
        ("?", "!", 0, 0, 0),
    ],
)
def test_score_question_in_any_script_equals_hand_computed_values(
    answer: str | None, gold: str, em: float, f1: float, sub_em: float
) -> None:
    expected = pytest.approx({"em": em, "f1": f1, "sub_em": sub_em})
    assert score_question(Question("q", (gold,)), answer, "webwalkerqa") == expected


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("$1,700.0", "1700", True),
        ("17 apples", "17", False),
        ("inf", "17", False),
        ("B; e", "b,e", True),
        ("e, b", "b,e", False),
        ("3, x", "3.0,x", True),
        ("a.b,c", "ab,c", False),  # punctuation counts within a list
        ("  sea gull.", "Seagull", True),
        (None, "None", False),  # the original reads it as the word
        (" ", "-", False),  # the original normalises both to nothing
    ],
)
def test_gaia_score_follows_the_official_rule(answer: str | None, gold: str, right: bool) -> None:
    assert gaia_score(answer, [gold]) == gaia_score(answer, ["zzz", gold]) == float(right)
    assert score_question(Question("q", (gold,)), answer, "gaia")["gaia"] == float(right)

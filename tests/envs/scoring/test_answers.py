"""Which metrics may be rewards, scores of answers in any script, and GAIA's rule by hand."""

from __future__ import annotations

import pytest

from atommem.environment import environment_config
from atommem.envs.scoring.answers import REWARDS, check_reward, score_answers, score_question
from atommem.envs.scoring.web_scores import gaia_score
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from tests.envs.scoring.test_judge import make
from tests.fake_chat import FakeChat
from tests.fakes import WordTokenizer, longdoc

CATEGORY = {"category": "multi_hop"}
TASK = Task(
    "t",
    (Question("Where?", ("Port, Vesk",), metadata=CATEGORY),),
    (Document("A", "B"),),
    source="locomo",
)
LISTING = "Lorne, Port, Oakrest, Vesk, Harbour"


async def test_what_a_list_of_candidates_earns_is_no_reward() -> None:
    score = await score_answers(TASK, [LISTING], "em")
    assert (score.reward, score.metrics["f1"]) == (0.0, 1.0)
    assert (await score_answers(Task("u", (Question("?", ("Port",)),)), [LISTING], "em")).metrics[
        "sub_em"
    ] == 1.0
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
    check_reward("gaia", "gaia")
    for reward, message in (
        ("rouge", "Give one of em, f1, judge, gaia"),
        ("gaia", "GAIA's own rule"),
    ):
        with pytest.raises(ConfigError, match=f"reward(=| is '){reward}.*{message}"):
            check_reward(reward, "hotpotqa")


async def test_questions_without_gold_answers_have_no_score() -> None:
    known, unknown = Question("Where?", ("Port",)), Question("Who?", ())
    for judge in (None, make(server := FakeChat("CORRECT"), judge_exact=False)):
        reward = "em" if judge is None else "judge"
        score = await score_answers(Task("t", (known, unknown)), ["Port", "Ann"], reward, judge)
        assert (score.reward, score.metrics["em"], score.question_metrics[1]) == (1.0, 1.0, {})
        assert set(score.question_metrics[0]) == set(score.metrics)
        score = await score_answers(Task("t", (unknown, unknown)), ["Ann", None], reward, judge)
        assert (score.reward, score.metrics, score.question_metrics) == (None, {}, ({}, {}))
        assert score.answers == ("Ann", None)
    assert len(server.bodies) == 1, "without gold answers there is nothing to judge by"


@pytest.mark.parametrize(
    ("answer", "gold", "em", "f1", "sub_em"),
    [
        ("北京大学。", "北京大学", 1, 1, 1),
        (
            "北京饭店",
            "北京大学",
            0,
            0.5,
            0,
        ),  # 2 of 4 characters: by SQuAD's rule, one word against another, 0
        ("2023年", "２０２３年", 1, 1, 1),
        ("位于「海淀区」", "海淀区", 0, 0.75, 1),
        # English comes out as by SQuAD's rule.
        ("The Town Hall!", "town hall", 1, 1, 1),
        ("“Town\u00a0Hall”", "town hall", 1, 1, 1),
        ("big town hall", "town hall", 0, 0.8, 1),
        (None, "x", 0, 0, 0),
        ("", "x", 0, 0, 0),
        # Punctuation alone is compared as it is.
        ("!", "!", 1, 1, 1),
        ("?", "!", 0, 0, 0),
        ("。", "北京", 0, 0, 0),
    ],
)
def test_answers_in_any_script(
    answer: str | None, gold: str, em: float, f1: float, sub_em: float
) -> None:
    expected = pytest.approx({"em": em, "f1": f1, "sub_em": sub_em})
    assert score_question(Question("q", (gold,)), answer, "webwalkerqa") == expected


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("17", "17", True),
        ("$1,700.0", "1700", True),
        ("17 %", "17", True),
        ("17 apples", "17", False),
        ("seventeen", "17", False),
        ("inf", "17", False),
        ("b, e", "b,e", True),
        ("B; e", "b,e", True),
        ("e, b", "b,e", False),
        ("b", "b,e", False),
        ("3, x", "3.0,x", True),
        ("a.b,c", "ab,c", False),  # punctuation counts within a list
        ("St. Petersburg", "Saint Petersburg", False),
        ("  sea gull.", "Seagull", True),
        ("", "x", False),
        (None, "None", False),  # the original takes it for the word
        (" ", "-", False),  # the original leaves nothing of both
    ],
)
def test_gaias_rule(answer: str | None, gold: str, right: bool) -> None:
    assert gaia_score(answer, [gold]) == gaia_score(answer, ["zzz", gold]) == float(right)
    scores = score_question(Question("q", (gold,)), answer, "gaia")
    assert scores == {
        "gaia": float(right),
        **score_question(Question("q", (gold,)), answer, "webwalkerqa"),
    }

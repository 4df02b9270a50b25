"""Scores of answers in any script, and GAIA's rule by hand."""

from __future__ import annotations

import pytest

from atommem.envs.scoring.answers import check_reward, score_question
from atommem.envs.scoring.web_scores import gaia_score, spaced, web_scores
from atommem.envs.task import Question
from atommem.errors import ConfigError


def test_chinese_is_scored_by_characters() -> None:
    assert web_scores("北京大学。", ["北京大学"]) == {"em": 1.0, "f1": 1.0, "sub_em": 1.0}
    # 2 of 4 characters on either side: by SQuAD's rule, one word against another, 0.
    assert web_scores("北京饭店", ["北京大学"])["f1"] == pytest.approx(0.5)
    assert web_scores("2023年", ["２０２３年"])["em"] == 1.0
    assert web_scores("位于「海淀区」", ["海淀区"])["sub_em"] == 1.0


def test_english_comes_out_as_by_squads_rule() -> None:
    assert web_scores("The Town Hall!", ["town hall"]) == {"em": 1.0, "f1": 1.0, "sub_em": 1.0}
    assert web_scores("“Town\u00a0Hall”", ["town hall"])["em"] == 1.0
    assert web_scores("big town hall", ["town hall"])["f1"] == pytest.approx(0.8)
    assert web_scores(None, ["x"]) == {"em": 0.0, "f1": 0.0, "sub_em": 0.0}
    assert web_scores("", ["x"])["em"] == 0.0


def test_punctuation_alone_is_compared_as_it_is() -> None:
    assert spaced("...") == "..."
    assert web_scores("!", ["!"])["em"] == 1.0
    assert web_scores("?", ["!"])["em"] == 0.0
    assert web_scores("。", ["北京"])["sub_em"] == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("17", "17", True),
        ("$1,700.0", "1700", True),
        ("17 %", "17", True),
        ("17 apples", "17", False),
        ("seventeen", "17", False),
        ("b, e", "b,e", True),
        ("B; e", "b,e", True),
        ("e, b", "b,e", False),
        ("b", "b,e", False),
        ("3, x", "3.0,x", True),
        ("St. Petersburg", "Saint Petersburg", False),
        ("  sea gull.", "Seagull", True),
        ("a.b,c", "ab,c", False),  # punctuation counts within a list
        ("", "x", False),
        ("inf", "17", False),
    ],
)
def test_gaias_rule(answer: str, gold: str, right: bool) -> None:
    assert gaia_score(answer, [gold]) == float(right)
    assert gaia_score(answer, ["zzz", gold]) == float(right)


def test_no_answer_is_wrong_by_gaias_rule() -> None:
    assert gaia_score(None, ["None"]) == 0.0  # the original takes it for the word
    assert gaia_score(" ", ["-"]) == 0.0  # the original leaves nothing of both


def test_which_scores_a_source_has() -> None:
    question = Question("q", ("17",))
    assert set(score_question(question, "17", "gaia")) == {"em", "f1", "sub_em", "gaia"}
    assert set(score_question(question, "17", "webwalkerqa")) == {"em", "f1", "sub_em"}
    check_reward("gaia", "gaia")
    with pytest.raises(ConfigError, match="GAIA's own rule"):
        check_reward("gaia", "hotpotqa")

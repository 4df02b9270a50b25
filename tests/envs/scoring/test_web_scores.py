"""Scores of answers in any script, and GAIA's rule by hand."""

from __future__ import annotations

import pytest

from atommem.envs.scoring.answers import check_reward, score_question
from atommem.envs.scoring.web_scores import gaia_score, web_scores
from atommem.envs.task import Question
from atommem.errors import ConfigError


@pytest.mark.parametrize(
    ("answer", "gold", "em", "f1", "sub_em"),
    [
        ("北京大学。", "北京大学", 1, 1, 1),
        ("北京饭店", "北京大学", 0, 0.5, 0),  # 2 of 4 characters: by SQuAD's rule, one word against another, 0
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
def test_answers_in_any_script(answer: str | None, gold: str, em: float, f1: float, sub_em: float) -> None:
    assert web_scores(answer, [gold]) == pytest.approx({"em": em, "f1": f1, "sub_em": sub_em})


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


def test_which_scores_a_source_has() -> None:
    question = Question("q", ("17",))
    assert set(score_question(question, "17", "gaia")) == {"em", "f1", "sub_em", "gaia"}
    assert set(score_question(question, "17", "webwalkerqa")) == {"em", "f1", "sub_em"}
    check_reward("gaia", "gaia")
    with pytest.raises(ConfigError, match="GAIA's own rule"):
        check_reward("gaia", "hotpotqa")

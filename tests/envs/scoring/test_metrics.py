"""EM and F1 against hand-computed values and against an independent reading of the published scripts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.envs.scoring.metrics import (
    F1Rule,
    Metric,
    exact_match,
    f1,
    f1_rule,
    mean_over_questions,
    normalize,
    sub_exact_match,
)
from atommem.envs.task import Question


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Great\tGatsby!", "great gatsby"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("Ann, Theo and Abe", "ann theo and abe"),  # articles only as whole words
        ("a-b", "ab"),  # punctuation goes before the articles do
        ("rock 'n' roll", "rock n roll"),
        ("Saint\u00a0Petersburg\u2003city", "saint petersburg city"),  # Unicode spaces are white space
        ("caf\u00e9 \u2013 bar", "caf\u00e9 \u2013 bar"),  # only ASCII punctuation goes, as in the scripts
        ("\u0130", "i\u0307"),
        ("", ""),
        (" The. ", ""),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("the Beatles", ["Beatles"], 1.0),
        ("beatles!", ["The Rolling Stones", "The Beatles"], 1.0),
        ("Beatles band", ["Beatles"], 0.0),
        (None, ["Beatles"], 0.0),
        ("", ["Beatles"], 0.0),
        ("Beatles", [], 0.0),
        ("Yes.", ["yes"], 1.0),
    ],
)
def test_exact_match(prediction: str | None, answers: list[str], expected: float) -> None:
    assert exact_match(prediction, answers) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "hotpotqa", "musique"),
    [
        ("Barack Obama", ["Barack Hussein Obama"], 0.8, 0.8),  # P 2/2, R 2/3
        ("president Obama", ["Barack Obama"], 0.5, 0.5),  # P 1/2, R 1/2
        ("to be or not to be", ["be to"], 0.5, 0.5),  # counts, not sets: P 2/6, R 2/2
        ("Paris", ["London", "Paris, France"], 2 / 3, 2 / 3),  # the best over the aliases
        ("no", ["no one"], 0.0, 2 / 3),
        ("yes it is", ["yes"], 0.0, 0.5),
        ("yes", ["yes"], 1.0, 1.0),
        ("noanswer", ["noanswer given"], 0.0, 2 / 3),
        ("London", ["Paris"], 0.0, 0.0),
        (None, ["Paris"], 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0),
        ("Paris", [], 0.0, 0.0),
    ],
)
def test_f1(prediction: str | None, answers: list[str], hotpotqa: float, musique: float) -> None:
    assert f1(prediction, answers) == pytest.approx(hotpotqa)
    assert f1(prediction, answers, rule="musique") == pytest.approx(musique)


def test_rule_of_a_source() -> None:
    assert f1_rule("musique") == f1_rule("musique_full") == "musique"
    assert f1_rule("hotpotqa") == f1_rule("2wikimultihopqa") == f1_rule("") == "hotpotqa"


@pytest.mark.parametrize("rule", ["hotpotqa", "musique"])
@pytest.mark.parametrize("prediction", ["", "  ", "the", "a", "...", "a the", "\u200b", None])
def test_an_answer_that_normalises_to_nothing_is_no_free_point(prediction: str | None, rule: F1Rule) -> None:
    answers = ["", "!!!", "An"]
    assert exact_match(prediction, answers) == 0.0
    assert f1(prediction, answers, rule=rule) == 0.0


GOLDS = (["Paris"], ["yes"], ["no"], ["12 May 1921"], ["The Who", "Who"], ["Barack Hussein Obama II"])


def _mean(metric: Metric, predictions: list[str | None]) -> float:
    return mean_over_questions(metric, predictions, [Question("q", tuple(g)) for g in GOLDS])


def test_yes_everywhere_earns_only_the_yes_questions() -> None:
    assert _mean(exact_match, ["yes"] * 6) == pytest.approx(1 / 6)
    assert _mean(f1, ["yes"] * 6) == pytest.approx(1 / 6)


def test_all_candidates_in_one_answer_never_match() -> None:
    everything = "; ".join(answer for gold in GOLDS for answer in gold)
    assert _mean(exact_match, [everything] * 6) == 0.0
    # 12 tokens (the article is gone): Paris 2/13, dates 6/15, "who" 2/13, Obama 8/16; yes and no are all or nothing.
    assert _mean(f1, [everything] * 6) == pytest.approx((2 / 13 + 6 / 15 + 2 / 13 + 8 / 16) / 6)


def test_one_prediction_for_each_question() -> None:
    with pytest.raises(ValueError, match="1 predictions for 6 questions"):
        _mean(exact_match, ["yes"])
    with pytest.raises(ValueError, match="0 predictions for 0 questions"):
        mean_over_questions(exact_match, [], [])


def test_a_very_long_answer_costs_little_and_earns_little() -> None:
    start = time.perf_counter()
    long = "Paris " + "noise " * 200_000
    assert exact_match(long, ["Paris"]) == 0.0
    assert f1(long, ["Paris"]) < 1e-4
    assert time.perf_counter() - start < 5


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=3))
def test_scores_stay_in_range(prediction: str, answers: list[str]) -> None:
    em = exact_match(prediction, answers)
    for score in (f1(prediction, answers), f1(prediction, answers, rule="musique")):
        assert 0.0 <= em <= score <= 1.0
    if prediction.strip() and answers:
        assert exact_match(answers[0], answers) == float(bool(answers[0].strip()))


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("It is in Port, I think", ["Port"], 1.0),  # the answer in the prediction
        ("Barack", ["Barack Obama"], 1.0),  # the prediction in the answer
        ("Portland", ["Port"], 1.0),  # substrings, not words
        ("Rome", ["Port", "the Rome of old"], 1.0),  # every answer counts
        ("Oslo", ["Port"], 0.0),
        ("the", ["the Port"], 0.0),  # what normalises to nothing is in everything
        ("", ["Port"], 0.0),
        (None, ["Port"], 0.0),
        ("a", ["A"], 1.0),
        ("Port", ["!!"], 0.0),
    ],
)
def test_sub_exact_match(prediction: str | None, answers: list[str], expected: float) -> None:
    assert sub_exact_match(prediction, answers) == expected

"""EM, sub-EM and F1 against hand-computed values."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.envs.scoring.metrics import exact_match, f1, f1_rule, normalize, sub_exact_match


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
        (" The. ", ""),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "sub_em", "hotpotqa", "musique"),
    [
        ("beatles!", ["The Rolling Stones", "The Beatles"], 1, 1, 1, 1),
        ("Yes.", ["yes"], 1, 1, 1, 1),
        ("a", ["A"], 1, 1, 1, 1),  # what normalises to nothing is matched by the same text
        ("Barack Obama", ["Barack Hussein Obama"], 0, 0, 0.8, 0.8),  # P 2/2, R 2/3
        ("president Obama", ["Barack Obama"], 0, 0, 0.5, 0.5),  # P 1/2, R 1/2
        ("to be or not to be", ["be to"], 0, 0, 0.5, 0.5),  # counts, not sets: P 2/6, R 2/2
        ("Paris", ["London", "Paris, France"], 0, 1, 2 / 3, 2 / 3),  # the best over the aliases
        ("It is in Port, I think", ["Port"], 0, 1, 2 / 7, 2 / 7),  # the answer in the prediction
        ("Portland", ["Port"], 0, 1, 0, 0),  # substrings, not words
        ("no", ["no one"], 0, 1, 0, 2 / 3),
        ("yes it is", ["yes"], 0, 1, 0, 0.5),
        ("noanswer", ["noanswer given"], 0, 1, 0, 2 / 3),
        ("the", ["the Port"], 0, 0, 0, 0),
        ("Port", ["!!"], 0, 0, 0, 0),
        ("London", ["Paris"], 0, 0, 0, 0),
        ("Paris", [], 0, 0, 0, 0),
        # An answer that normalises to nothing is no free point.
        *((free, ["Paris", "", "!!!", "An"], 0, 0, 0, 0) for free in (None, "", "  ", "the", "...", "a the", "\u200b")),
    ],
)
def test_scores(
    prediction: str | None, answers: list[str], em: float, sub_em: float, hotpotqa: float, musique: float
) -> None:
    assert (exact_match(prediction, answers), sub_exact_match(prediction, answers)) == (em, sub_em)
    found = f1(prediction, answers), f1(prediction, answers, rule="musique")
    assert found == pytest.approx((hotpotqa, musique))


def test_rule_of_a_source() -> None:
    assert f1_rule("musique") == f1_rule("musique_full") == "musique"
    assert f1_rule("hotpotqa") == f1_rule("2wikimultihopqa") == f1_rule("") == "hotpotqa"


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
    assert em <= sub_exact_match(prediction, answers) <= 1.0
    if answers:
        assert exact_match(answers[0], answers) == float(bool(answers[0].strip()))

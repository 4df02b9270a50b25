"""EM, sub-EM and F1 against hand-computed values and a second implementation."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.scoring.metrics import F1Rule, exact_match, f1, f1_rule, sub_exact_match
from tests.envs.benchmark_rows import real_data


@pytest.mark.parametrize(
    ("prediction", "answers", "em", "sub_em", "hotpotqa", "musique"),
    [
        ("beatles!", ["The Rolling Stones", "The Beatles"], 1, 1, 1, 1),
        ("The U.S.A.", ["an usa"], 1, 1, 1, 1),
        ("Ann, Theo", ["theo Ann"], 0, 0, 1, 1),  # articles only as whole words
        ("Saint\u00a0Petersburg\u2003", ["saint petersburg"], 1, 1, 1, 1),  # Unicode spaces
        ("caf\u00e9 \u2013 bar", ["caf\u00e9 bar"], 0, 0, 0.8, 0.8),  # only ASCII punctuation goes
        ("Barack Obama", ["Barack Hussein Obama"], 0, 0, 0.8, 0.8),  # P 2/2, R 2/3
        ("to be or not to be", ["be to"], 0, 0, 0.5, 0.5),  # counts, not sets: P 2/6, R 2/2
        ("Paris", ["London", "Paris, France"], 0, 1, 2 / 3, 2 / 3),  # the best over the aliases
        ("Portland", ["Port"], 0, 1, 0, 0),  # substrings, not words
        ("yes it is", ["yes"], 0, 1, 0, 0.5),
        ("noanswer", ["noanswer given"], 0, 1, 0, 2 / 3),
        ("Port", ["!!"], 0, 0, 0, 0),
        ("Paris", [], 0, 0, 0, 0),
        # An answer that normalises to nothing earns nothing.
        (None, ["Paris", "", "!!!", "An"], 0, 0, 0, 0),
        ("the", ["Paris", "", "!!!", "An"], 0, 0, 0, 0),
    ],
)
def test_scores_equal_hand_computed_values(
    prediction: str | None,
    answers: list[str],
    em: float,
    sub_em: float,
    hotpotqa: float,
    musique: float,
) -> None:
    assert (exact_match(prediction, answers), sub_exact_match(prediction, answers)) == (em, sub_em)
    found = f1(prediction, answers), f1(prediction, answers, rule="musique")
    assert found == pytest.approx((hotpotqa, musique))


def tokens(text: str) -> list[str]:
    """Lower case; without ASCII punctuation; without a, an, the as words; split at white space."""
    letters = [character for character in text.lower() if character not in string.punctuation]
    words = []
    for is_word, run in groupby(letters, key=lambda letter: letter.isalnum() or letter == "_"):
        word = "".join(run)
        words.append(" " if is_word and word in {"a", "an", "the"} else word)
    return "".join(words).split()


def reference(prediction: str, gold: str, rule: str) -> tuple[float, float]:
    """Exact match and F1. HotpotQA's F1 takes yes, no and noanswer as a whole or not at all.

    A gold answer without tokens is matched by itself: the rule is ours.
    """
    predicted, wanted = tokens(prediction), tokens(gold)
    em = float(predicted == wanted)
    if not wanted:
        em = float(prediction.lower().split() == gold.lower().split() != [])
    whole = any(side in (["yes"], ["no"], ["noanswer"]) for side in (predicted, wanted))
    left = list(wanted)
    for token in predicted:
        if token in left:
            left.remove(token)
    same = len(wanted) - len(left)
    if not same or (rule == "hotpotqa" and whole):
        return em, em
    precision, recall = same / len(predicted), same / len(wanted)
    return em, 2 * precision * recall / (precision + recall)


def check(prediction: str, answers: Sequence[str], rule: F1Rule) -> None:
    expected = [reference(prediction, gold, rule) for gold in answers] or [(0.0, 0.0)]
    em, score = (max(scores) for scores in zip(*expected, strict=True))
    found = exact_match(prediction, answers), f1(prediction, answers, rule)
    assert found == pytest.approx((em, score), abs=1e-12), (prediction, answers)
    assert em <= sub_exact_match(prediction, answers) <= 1.0


WORDS = ["the", "An", "yes", "No.", "noanswer", "Port", "port,", "Ports", "!?", "—", "—the—"]
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


@pytest.mark.slow
@given(TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from(["hotpotqa", "musique"]))
@settings(deadline=None)
def test_scores_of_any_text_equal_the_reference(
    prediction: str, answers: list[str], rule: F1Rule
) -> None:
    check(prediction, answers, rule)


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [
        ("hotpotqa", "hotpot_dev_distractor_v1.json"),
        ("2wikimultihopqa", "dev.json"),
        ("musique", "musique_ans_v1.0_dev.jsonl"),
    ],
)
def test_scores_of_real_rows_equal_the_reference(benchmark: str, name: str) -> None:
    rows = list(get_benchmark(benchmark).read(real_data(benchmark, name)))
    rule: F1Rule = "musique" if benchmark == "musique" else "hotpotqa"
    assert f1_rule(rows[0].source) == rule
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        for prediction in (*row.answers, *other.answers, f"{row.question} {row.answers[0]}"):
            check(prediction, row.answers, rule)

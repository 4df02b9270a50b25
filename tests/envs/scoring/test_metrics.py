"""EM, sub-EM and F1 against hand-computed values, and against the published definitions followed by another road."""

from __future__ import annotations

import string
import time
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
        ("Yes.", ["yes"], 1, 1, 1, 1),
        ("The U.S.A.", ["an usa"], 1, 1, 1, 1),
        ("Ann, Theo", ["theo Ann"], 0, 0, 1, 1),  # articles only as whole words
        ("a-b", ["ab"], 1, 1, 1, 1),  # punctuation goes before the articles do
        (
            "Saint\u00a0Petersburg\u2003city",
            ["saint petersburg city"],
            1,
            1,
            1,
            1,
        ),  # Unicode spaces are white space
        (
            "caf\u00e9 \u2013 bar",
            ["caf\u00e9 bar"],
            0,
            0,
            0.8,
            0.8,
        ),  # only ASCII punctuation goes, as in the scripts
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
        *(
            (free, ["Paris", "", "!!!", "An"], 0, 0, 0, 0)
            for free in (None, "", "  ", "the", "...", "a the", "\u200b")
        ),
    ],
)
def test_scores(
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
    assert (f1_rule("musique_full"), f1_rule("2wikimultihopqa")) == ("musique", "hotpotqa")


def test_a_very_long_answer_costs_little_and_earns_little() -> None:
    start = time.perf_counter()
    long = "Paris " + "noise " * 200_000
    assert exact_match(long, ["Paris"]) == 0.0
    assert f1(long, ["Paris"]) < 1e-4
    assert time.perf_counter() - start < 5


def tokens(text: str) -> list[str]:
    """Lower case; without ASCII punctuation; without a, an, the as whole words; split at white space."""
    kept = [character for character in text.lower() if character not in string.punctuation]
    words = []
    for is_word, run in groupby(
        kept, key=lambda character: character.isalnum() or character == "_"
    ):
        word = "".join(run)
        words.append(" " if is_word and word in {"a", "an", "the"} else word)
    return "".join(words).split()


def reference(prediction: str, gold: str, rule: str) -> tuple[float, float]:
    """Exact match, and F1: HotpotQA's takes yes, no and noanswer as a whole or not at all. Ours alone: a gold answer
    that has no token is matched by itself."""
    predicted, wanted = tokens(prediction), tokens(gold)
    em = float(
        predicted == wanted if wanted else prediction.lower().split() == gold.lower().split() != []
    )
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


WORDS = (
    "the",
    "An",
    "yes",
    "No.",
    "noanswer",
    "Port",
    "port,",
    "Ports",
    "!?",
    "\u2014",
    "\u2014the\u2014",
)
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


@given(TEXTS, st.lists(TEXTS, max_size=3), st.sampled_from(["hotpotqa", "musique"]))
@settings(deadline=None)
def test_any_scores_are_those_of_the_definitions(
    prediction: str, answers: list[str], rule: F1Rule
) -> None:
    check(prediction, answers, rule)


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [
        *(("hotpotqa", f"hotpot_{split}.json") for split in ("dev_distractor_v1", "train_v1.1")),
        *(("2wikimultihopqa", f"{split}.json") for split in ("dev", "train")),
        *(
            ("musique", f"musique_{split}.jsonl")
            for split in ("ans_v1.0_dev", "ans_v1.0_train", "full_v1.0_train")
        ),
    ],
)
def test_scores_of_real_rows(benchmark: str, name: str) -> None:
    rows = list(get_benchmark(benchmark).read(real_data(benchmark, name)))
    rule: F1Rule = "musique" if benchmark == "musique" else "hotpotqa"
    assert f1_rule(rows[0].source) == rule
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        for prediction in (*row.answers, *other.answers, f"{row.question} {row.answers[0]}"):
            check(prediction, row.answers, rule)

"""EM and F1 equal the official scripts' on every row of the real samples.

The reference here follows the published definitions by another road than `atommem.envs.scoring.metrics`: it scans
characters where that uses a pattern, strikes tokens off a list where that counts them, and forms precision and recall.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import groupby

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.scoring.metrics import F1Rule, exact_match, f1, f1_rule
from tests.envs.benchmark_rows import real_data

FILES = [
    ("hotpotqa", "hotpot_dev_distractor_v1.json"),
    ("hotpotqa", "hotpot_train_v1.1.json"),
    ("2wikimultihopqa", "dev.json"),
    ("2wikimultihopqa", "train.json"),
    ("musique", "musique_ans_v1.0_dev.jsonl"),
    ("musique", "musique_ans_v1.0_train.jsonl"),
    ("musique", "musique_full_v1.0_train.jsonl"),
]


def reference_tokens(text: str) -> list[str]:
    """Lower case; without ASCII punctuation; without a, an, the as whole words; split at white space."""
    kept = [character for character in text.lower() if character not in string.punctuation]
    words = []
    for is_word, run in groupby(kept, key=lambda character: character.isalnum() or character == "_"):
        word = "".join(run)
        words.append(" " if is_word and word in {"a", "an", "the"} else word)
    return "".join(words).split()


def reference(prediction: str, gold: str, rule: str) -> tuple[float, float]:
    """Exact match, and F1: HotpotQA's and 2WikiMultihopQA's takes yes, no and noanswer as a whole or not at all;
    MuSiQue's is right without a token on either side if both have none."""
    predicted, wanted = reference_tokens(prediction), reference_tokens(gold)
    em = float(predicted == wanted)
    whole = [tokens for tokens in (predicted, wanted) if tokens in (["yes"], ["no"], ["noanswer"])]
    if (rule == "hotpotqa" and whole) or not predicted or not wanted:
        return em, em if rule == "musique" or predicted else 0.0
    left, same = list(wanted), 0
    for token in predicted:
        if token in left:
            left.remove(token)
            same += 1
    precision, recall = same / len(predicted), same / len(wanted)
    return em, 2 * precision * recall / (precision + recall) if same else 0.0


def predictions(row: QARow, other: QARow) -> Iterator[str]:
    """Right, wrong, partial, empty and aliased predictions."""
    for answer in row.answers:
        words = answer.split()
        yield answer
        yield f" the {answer.upper()} ! "
        yield f"It is {answer}, they say"
        yield " ".join(words[: max(1, len(words) // 2)])
        yield " ".join(reversed(words))
        yield f"{answer} {answer}"
        yield f"\\boxed{{{answer}}}"
    yield other.answers[0]
    yield from ("yes", "No.", "noanswer", "", "   ", "the", "!?", "\u2014", f"{row.question} {row.answers[0]}")


@pytest.mark.parametrize(("benchmark", "name"), FILES)
def test_scores_equal_the_official_ones(benchmark: str, name: str) -> None:
    rows = list(get_benchmark(benchmark).read(real_data(benchmark, name)))
    rule: F1Rule = "musique" if benchmark == "musique" else "hotpotqa"
    assert f1_rule(rows[0].source) == rule
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        for prediction in predictions(row, other):
            expected = [reference(prediction, gold, rule) for gold in row.answers]
            em, score = (max(scores) for scores in zip(*expected, strict=True))
            found = exact_match(prediction, row.answers), f1(prediction, row.answers, rule)
            assert found == pytest.approx((em, score), abs=1e-12), (prediction, row.answers)

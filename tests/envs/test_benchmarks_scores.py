"""EM and F1 equal the official scripts' on every row of the real samples.

The reference here follows the published definitions by another road than `atommem.envs.scoring.metrics`: it scans
characters where
that uses a pattern, strikes tokens off a list where that counts them, and forms precision and recall.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.scoring.metrics import exact_match, f1, f1_rule
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


def reference_em(prediction: str, gold: str) -> float:
    return 1.0 if reference_tokens(prediction) == reference_tokens(gold) else 0.0


def _overlap_f1(predicted: list[str], gold: list[str]) -> float:
    left = list(gold)
    same = 0
    for token in predicted:
        if token in left:
            left.remove(token)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def reference_f1_hotpotqa(prediction: str, gold: str) -> float:
    """HotpotQA and 2WikiMultihopQA: yes, no and noanswer are right as a whole or not at all."""
    predicted, wanted = reference_tokens(prediction), reference_tokens(gold)
    for one, other in ((predicted, wanted), (wanted, predicted)):
        if one in (["yes"], ["no"], ["noanswer"]) and one != other:
            return 0.0
    return _overlap_f1(predicted, wanted)


def reference_f1_musique(prediction: str, gold: str) -> float:
    """MuSiQue: without a token on either side, right if both have none."""
    predicted, wanted = reference_tokens(prediction), reference_tokens(gold)
    if not predicted or not wanted:
        return 1.0 if predicted == wanted else 0.0
    return _overlap_f1(predicted, wanted)


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


def check(rows: Sequence[QARow], reference_f1: Callable[[str, str], float]) -> int:
    """Compare on all rows; returns the number of comparisons."""
    compared = 0
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        assert exact_match(None, row.answers) == f1(None, row.answers, f1_rule(row.source)) == 0.0
        for prediction in predictions(row, other):
            em = max(reference_em(prediction, gold) for gold in row.answers)
            score = max(reference_f1(prediction, gold) for gold in row.answers)
            assert exact_match(prediction, row.answers) == em, (prediction, row.answers)
            assert f1(prediction, row.answers, f1_rule(row.source)) == pytest.approx(score, abs=1e-12), (
                prediction,
                row.answers,
            )
            compared += 1
    return compared


@pytest.mark.parametrize(("benchmark", "name"), FILES)
def test_scores_equal_the_official_ones(benchmark: str, name: str) -> None:
    rows = list(get_benchmark(benchmark).read(real_data(benchmark, name)))
    reference = reference_f1_musique if benchmark == "musique" else reference_f1_hotpotqa
    assert check(rows, reference) >= 16 * len(rows)

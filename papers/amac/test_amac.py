"""A-MAC: factors by hand, tests on invented turns, and conv-26 if available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.errors import DataError
from papers.amac import admission
from papers.amac.__main__ import published_rows
from papers.amac.rule import kind_of
from papers.experience import Bank, Experience
from papers.experiment import Report
from papers.inputs import StoredVectors, load_published, read_conversations
from papers.test_papers import unit_vectors
from tests.envs.benchmark_rows import real_data

PAPER = load_published("amac")


def test_kind_of_counts_substrings() -> None:
    for text, kind in {
        "I love hiking": "preference",
        "My name is Ann": "identity",  # also "is": a tie, of which the first counts
        "The manager": "identity",  # "age"
        "This": "fact",  # "is"
        "Ok!": "unknown",
        "Right now": "temporary",
    }.items():
        assert kind_of(text) == kind, text


def test_rouge_l_is_f_of_the_longest_common_subsequence() -> None:
    # "the cat ... mat" is common: 3 words of 4 and of 5.
    one, other = ["the", "cat", "on", "mat"], ["the", "black", "cat", "found", "mat"]
    assert admission.rouge_l(one, other) == pytest.approx(2 * 3 / 9)
    assert admission.rouge_l([], ["a"]) == 0
    words = admission.rouge_words("She's RUNNING, 3 dogs run")
    assert words == ["she", "s", "run", "3", "dog", "run"]


async def test_described_admission_equals_the_rule() -> None:
    """`AMac` at the admission of a bank, turn by turn, on vectors that conflict now and then."""
    rng = np.random.default_rng(0)
    kinds = ["I love it", "my name is", "is", "tomorrow", "right now", "so"]
    texts = [f"{kinds[i]} {n}" for n, i in enumerate(rng.integers(0, len(kinds), 80))]
    centres = rng.normal(size=(12, 8))
    vectors = centres[rng.integers(0, 12, 80)] + 0.35 * rng.normal(size=(80, 8))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    cosines = (vectors @ vectors.T).astype(float)
    stream = admission.Stream(cosines, admission.type_priors(texts), np.zeros(80, bool))
    bank = Bank(
        StoredVectors(texts, vectors),
        admission="papers.amac.rule:AMac(weights=0/0/.4/0/.6, threshold=.45)",
    )
    admitted = []
    for text in texts:
        operations = await bank.end(Experience(text, ""))
        written = [one for one in operations if one.kind in ("create", "update")]
        admitted.append(any(one.outcome == "applied" for one in written))
    setting = admission.Setting(0.4, 0.6, 0.45)
    assert admitted == admission.admit_as_described(stream, setting).tolist()
    assert len(bank) < sum(admitted), "some were superseded"


def test_fit_leaves_out_the_tested_conversation() -> None:
    def stream(good: bool) -> admission.Stream:
        prior = np.array([0.9, 0.2, 0.9, 0.2])
        return admission.Stream(np.eye(4), prior, (prior > 0.5) == good)

    streams = [stream(True), stream(True), stream(False)]
    choices = [admission.Setting(0, 1, 0.5), admission.Setting(0, 1, 0.1)]
    every = {
        choice: [admission.admit_as_described(one, choice) for one in streams] for choice in choices
    }
    assert admission.fit_without_each(streams, every)[2] == choices[0]


def test_leave_one_out_on_invented_conversations(tmp_path: Path) -> None:
    """Turns of more than eight words are evidence."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name in ("conv-26", "conv-26-1", "conv-26-2"):
        texts = [" ".join(rng.choice([*"abcdefghijklmno"], rng.integers(2, 12))) for _ in range(15)]
        turns = [{"dia_id": f"D1:{i}", "text": text} for i, text in enumerate(texts)]
        evidence = [turn["dia_id"] for turn in turns if len(turn["text"].split()) > 8]
        sessions = {"session_1": turns, "session_1_date_time": "1 May 2023"}
        rows.append({"sample_id": name, "conversation": sessions, "qa": [{"evidence": evidence}]})
    (tmp_path / "locomo10.json").write_text(json.dumps(rows))
    read = read_conversations(tmp_path)
    report = Report("amac", "")
    admission.leave_one_out(report, read, unit_vectors(1, 45))
    found = {str(row[0]): row for row in report.tables[0].rows}
    assert found["at least L words"][4] == pytest.approx(1.0), "as these turns were made"
    assert not report.holds, "three conversations are too few"


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no locomo10\.json.*CC BY-NC 4\.0"):
        read_conversations(tmp_path)
    (tmp_path / "locomo10.json").write_text('[{"qa": []}]')
    with pytest.raises(DataError, match="not LoCoMo's layout"):
        read_conversations(tmp_path)


def test_conv_26_has_the_papers_counts() -> None:
    first, *others = read_conversations(real_data())
    report = Report("amac", "")
    published_rows(report, PAPER, first, others)
    assert report.holds, report.verdict()
    names = {check.name for check in report.checks}
    assert {"threshold .65: admitted, right", "Random row: admitted, right"} <= names

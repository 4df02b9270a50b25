"""A-MAC: factors by hand, search and tests on invented turns, and conv-26 if available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.errors import ConfigError, DataError
from atommem.rules.amac import rouge_l
from atommem.rules.eviction import kind_of
from papers.amac import described, experiment, factors
from papers.amac.whole_conversations import leave_one_out
from papers.experience import Bank, Experience
from papers.inputs import Conversation, StoredVectors, load_published, read_conversations
from papers.report import Report
from tests.envs.benchmark_rows import real_data, write_json

PAPER = load_published("amac")


def test_types_are_those_of_substrings() -> None:
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
    assert rouge_l(
        ["the", "cat", "on", "mat"], ["the", "black", "cat", "found", "mat"]
    ) == pytest.approx(2 * 3 / 9)
    assert rouge_l([], ["a"]) == 0
    assert rouge_l(["a", "b"] * 40, ["b", "a"] * 40) == pytest.approx(2 * 79 / 160)
    assert factors.rouge_words("She's RUNNING, 3 dogs run") == [
        "she",
        "s",
        "run",
        "3",
        "dog",
        "run",
    ]


def drawn(seed: int, n: int, dim: int = 8) -> np.ndarray:
    """Unit vectors at random, (n, dim) float32."""
    return unit(np.random.default_rng(seed).normal(size=(n, dim)))


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


async def test_the_simulation_decides_as_the_rule_does() -> None:
    """`AMac` at the door of a bank, turn by turn, on vectors that conflict now and then."""
    rng = np.random.default_rng(0)
    kinds = ["I love it", "my name is", "is", "tomorrow", "right now", "so"]
    texts = [f"{kinds[i]} {n}" for n, i in enumerate(rng.integers(0, len(kinds), 80))]
    centres = rng.normal(size=(12, 8))
    vectors = unit(centres[rng.integers(0, 12, 80)] + 0.35 * rng.normal(size=(80, 8)))
    setting, alike = described.Setting(0.0, 0.4, 0.6, 0.45), (vectors @ vectors.T).astype(float)
    stream = described.Stream(alike, np.zeros(80), factors.type_priors(texts), np.zeros(80, bool))
    bank = Bank(StoredVectors(texts, vectors), admission="amac(weights=0/0/.4/0/.6, threshold=.45)")
    done = []
    for text in texts:
        operations = await bank.end(Experience(text, ""))
        done.append(
            any(op.kind in ("create", "update") and op.outcome == "applied" for op in operations)
        )
    assert done == described.admitted(stream, setting).tolist()
    assert len(bank) < sum(done), "some were superseded"


def test_a_models_utility_is_read_and_counted() -> None:
    def ask(text: str, max_tokens: int) -> str:
        return "0.9" if "turn 3." in text.partition("memory:")[2] else "hm"

    conversation = Conversation("conv-26", tuple(f"It is turn {i}." for i in range(6)), (True,) * 6)
    report = Report("amac", "")
    experiment.utility_of_a_model(report, PAPER, conversation, ask)
    assert "5 replies had no number" in report.notes[0]
    assert report.tables[0].rows[2][1] == 6


def test_a_fit_does_not_see_the_conversation_that_it_is_tested_on() -> None:
    def stream(good: bool) -> described.Stream:
        prior = np.array([0.9, 0.2, 0.9, 0.2])
        return described.Stream(np.eye(4), np.full(4, 0.5), prior, (prior > 0.5) == good)

    streams = [stream(True), stream(True), stream(False)]
    choices = [described.Setting(0, 0, 1, 0.5), described.Setting(0, 0, 1, 0.1)]
    every = {choice: [described.admitted(one, choice) for one in streams] for choice in choices}
    assert described.fit_without_each(streams, every)[2] == choices[0]


def locomo(folder: Path) -> Path:
    """Write LoCoMo's layout; turns of more than eight words are evidence."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name in ("conv-26", "conv-26-1", "conv-26-2"):
        texts = [" ".join(rng.choice([*"abcdefghijklmno"], rng.integers(2, 12))) for _ in range(15)]
        turns = [
            {"speaker": "A", "dia_id": f"D1:{i}", "text": text} for i, text in enumerate(texts)
        ]
        evidence = [turn["dia_id"] for turn in turns if len(turn["text"].split()) > 8]
        talk = {
            "speaker_a": "A",
            "speaker_b": "B",
            "session_1": turns,
            "session_1_date_time": "1 May 2023",
        }
        qa = [{"question": "q", "answer": "a", "evidence": evidence, "category": 1}]
        rows.append({"sample_id": name, "conversation": talk, "qa": qa})
    write_json(folder / "locomo10.json", rows)
    return folder


def test_whole_conversations_end_to_end_on_turns_made_up(tmp_path: Path) -> None:
    conversations = read_conversations(locomo(tmp_path))
    report = Report("amac", "")
    leave_one_out(
        report,
        conversations,
        drawn(1, sum(len(one.texts) for one in conversations)),
        lambda text: None,
    )
    rows = {str(row[0]): row for row in report.tables[0].rows}
    assert rows["at least L words"][4] == pytest.approx(1.0), "that is how these turns were made"
    assert not report.holds, "three conversations are too few"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CC BY-NC 4\.0"):
        read_conversations(None)
    with pytest.raises(DataError, match=r"has no locomo10\.json"):
        read_conversations(tmp_path)


def test_conv_26_has_the_papers_counts() -> None:
    """Bar 1 but for the whole conversations, which need a model: exact, in under a second."""
    conversations = read_conversations(real_data())
    report = Report("amac", "")
    experiment.published_rows(report, PAPER, conversations[0], conversations[1:])
    assert report.holds, report.verdict()
    assert {"threshold .65: admitted, right", "Random row: admitted, right"} <= {
        check.name for check in report.checks
    }


def test_the_search_finds_what_separates() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((60, 5))
    weights, _, score = experiment.search(features, features[:, 4] > 0.6)
    assert weights.tolist() == [0.1, 0.1, 0.1, 0.1, 0.6]
    assert score > 0.6

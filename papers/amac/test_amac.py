"""A-MAC: factors by hand, tests on invented turns, and conv-26 if available."""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import DataError
from papers import asking
from papers.amac import __main__ as command
from papers.amac import admission
from papers.amac.__main__ import published_rows
from papers.amac.baselines import Ratings, baselines_of_code, read_importance, retention
from papers.amac.candidates import split_turn
from papers.amac.rule import kind_of
from papers.experience import Bank, Experience
from papers.experiment import Journal, Report
from papers.inputs import StoredVectors, load_published, read_conversations
from papers.test_papers import ChatServer, unit_vectors
from tests.envs.benchmark_rows import real_data

PAPER = load_published("amac")


PARTS = [
    *(f"Table {n}" for n in range(1, 6)),
    *(f"Figure {n}" for n in range(1, 4)),
    *(f"equation {n}" for n in range(1, 5)),
    "algorithm 1",
    *("atomic units, temporal expressions, coreferences, low-value content (3.1)",),
    *("utility: one call, temperature 0, cached", "support of a candidate", "Sentence-BERT"),
    *("recency: .01 an hour", "type prior: patterns with parts of speech"),
    *("weights and threshold: 5 folds, grid, [.3, .6]", "conflict above .85, merge"),
    *("LoCoMo: 30 conversations, 1,500 candidates", "split 70/15/15", "Qwen 2.5"),
    *("baseline Random", "baseline MemGPT", "baseline MemoryBank", "baseline A-mem"),
    "baseline equal weights",
]
"""Every table, figure, equation and setting of the paper."""


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


def test_baselines_by_hand() -> None:
    for reply, wanted in {'{"importance": 4}': 4.0, "perhaps 2 or 5": 5.0, "{}": 3.0}.items():
        assert read_importance(reply) == wanted
    ratings = Ratings(["a", "b"])
    ratings.utility = np.array([0.83, 0.84])
    found = baselines_of_code(ratings, np.array([0.25, 0.24]))
    assert {name: flags.tolist() for name, flags in found.items()} == {
        "MemGPT": [False, True],
        "MemoryBank": [False, True],  # .2 (cos + 1) + .3 U: .499 and .5
        "A-mem": [True, True],
    }
    # Turns recall the three most similar before them, the oldest first. The last one recalls 3, 0
    # and 1; turn 3 had recalled 2 on the first day, so that its strength is 2.
    vectors = np.eye(5, dtype=np.float32)[[0, 1, 2, 3, 3]]
    kept = retention(vectors, [date(2023, 5, 1)] * 4 + [date(2023, 5, 4)])
    assert kept == pytest.approx([1, 1, np.exp(-3 / 2), 1, 1])


def test_split_turn_resolves_persons_and_days_and_drops_greetings() -> None:
    day = date(2023, 5, 8)
    text = "Hey Mel! I went to my group yesterday, and it was good. I'm sure you like it."
    assert split_turn(text, "Caroline", "Melanie", day) == [
        "Caroline went to Caroline's group on 07 May 2023",
        "it was good.",
        "Caroline is sure Melanie like it.",
    ]
    assert split_turn("Thanks, Mel!", "Caroline", "Melanie", day) == []


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


def write_conversations(folder: Path) -> None:
    """Three of 15 turns, of which those of more than eight words are evidence."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name in ("conv-26", "conv-26-1", "conv-26-2"):
        texts = [" ".join(rng.choice([*"abcdefghijklmno"], rng.integers(2, 12))) for _ in range(15)]
        turns = [{"dia_id": f"D1:{i}", "text": text} for i, text in enumerate(texts)]
        evidence = [turn["dia_id"] for turn in turns if len(turn["text"].split()) > 8]
        sessions = {"session_1": turns, "session_1_date_time": "1 May 2023"}
        rows.append({"sample_id": name, "conversation": sessions, "qa": [{"evidence": evidence}]})
    (folder / "locomo10.json").write_text(json.dumps(rows))


def test_leave_one_out_on_invented_conversations(tmp_path: Path) -> None:
    write_conversations(tmp_path)
    report = Report("amac", "")
    admission.leave_one_out(report, read_conversations(tmp_path), unit_vectors(1, 45))
    found = {str(row[0]): row for row in report.tables[-1].rows}
    assert found["at least L words"][4] == pytest.approx(1.0), "as these turns were made"
    assert not report.holds, "three conversations are too few"


def rate(prompt: str) -> str:
    """Find every text useful, but write the letter a alone."""
    text = "0.9" if "one number" in prompt else "yes" if "a" in prompt.split() else "no"
    return '{"importance": 1}' if "JSON" in prompt else text


@pytest.mark.slow
def test_every_table_is_made_with_a_models_ratings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_conversations(tmp_path)
    vectors = lambda texts, *_: unit_vectors(0, len(texts))  # noqa: E731
    monkeypatch.setattr(command, "embed_all", vectors)
    monkeypatch.setattr(command, "make_embedder", lambda config: HashingEmbedder(8))
    monkeypatch.setattr(asking, "open_policy", lambda config: ChatServer(rate))
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    chat = ["--policy", "http://m", "--api", "chat", "--model", "m", "--split"]
    arguments = parser.parse_args(["--data", str(tmp_path), *chat])
    arguments.output_dir = arguments.cache = tmp_path
    report = command.run(arguments, Journal())
    titles = " ".join(table.title for table in report.tables)
    assert all(f"Table {n}" in titles for n in range(1, 6))
    rows = {str(row[0]): row for table in report.tables for row in table.rows}
    assert rows["A-mem"][2] == 15, "its paper's: stores all"
    (table,) = (one for one in report.tables if one.title.startswith("Table 1"))
    ours = {str(row[0]): row[6] for row in table.rows}
    assert (ours["MemGPT"], ours["A-mem"]) == (15, 0), "utility .9, importance 1"
    assert 0 < rows["MemGPT"][2] < 15, "those that the model writes"
    assert rows["utility"][2] > 0, "milliseconds"
    assert (tmp_path / "amac_figures.png").stat().st_size > 5000


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no locomo10\.json.*CC BY-NC 4\.0"):
        read_conversations(tmp_path)
    (tmp_path / "locomo10.json").write_text('[{"qa": []}]')
    with pytest.raises(DataError, match="not LoCoMo's layout"):
        read_conversations(tmp_path)


def test_conv_26_has_the_papers_counts() -> None:
    first, *others = read_conversations(real_data())
    report = Report("amac", "")
    published_rows(report, PAPER, first, others, Ratings(first.texts[:100]), np.zeros(100))
    assert report.holds, report.verdict()
    names = {check.name for check in report.checks}
    assert {"threshold .65: admitted, right", "Random row: admitted, right"} <= names

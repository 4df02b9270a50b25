"""Streams: similarities by hand, the file, the examples, and a learning agent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import ConfigError, DataError
from atommem.memory.log import Entry
from papers.experience import Bank, Experience
from papers.journal import Journal
from papers.report import Report
from papers.streams import experiment
from papers.streams.agents import StreamRow, executions
from papers.streams.examples import EXAMPLES, as_lines
from papers.streams.similarities import SIMILARITIES


async def likeness(similarity: Any, query: Any, *records: Any) -> list[float]:
    """Of each record, in their order."""
    bank = Bank(HashingEmbedder(16))
    asked, *texts = (
        value if isinstance(value, str) else json.dumps(value) for value in (query, *records)
    )
    await bank.fill(Experience(text, "", 1.0) for text in texts)
    found = await bank.retrieve(asked, 9, similarity)
    return [score for _, score in sorted(found, key=lambda pair: pair[0].id)]


async def test_similarities_by_hand_and_inputs_that_do_not_fit() -> None:
    change, keys = SIMILARITIES["relative"], SIMILARITIES["keys"]
    found = await likeness(
        change, {"rate": 2.0, "by": "tcp"}, {"rate": 4.0, "by": "tcp"}, {"rate": 2.0, "by": "udp"}
    )
    assert found == pytest.approx([1 - 0.5 / 2, 0.5]), "the mean over features"
    assert await likeness(change, {"rate": 0.0}, {"rate": 0.0}, {"rate": -1.0}) == [1.0, 0.0]
    here = {
        "ego": [0.0],
        "goal": [0.0, 0.0],
        "history": [0.0],
    }  # of three keys the goal weighs most
    found = await likeness(keys, here, {**here, "ego": [1.0]}, {**here, "goal": [0.0, 0.5]})
    assert found == pytest.approx([np.exp(-1), np.exp(-2.5)], abs=1e-5)
    with pytest.raises(DataError, match="do not have the same fields"):
        await likeness(change, {"rate": 1.0}, {"flow": 1.0})
    with pytest.raises(DataError, match="JSON objects"):
        await likeness(keys, "another", "a text")


class Learner:
    """Repeats what was right before; else says what is wrong."""

    async def act(self, row: StreamRow, shown: Sequence[tuple[Entry, float]]) -> str:
        return next((output for output in executions(shown) if output == row.truth), "?")

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        return {"outcome": float(output == row.truth)}


def run(**given: Any) -> Report:
    """The experiment with these flags."""
    parser = argparse.ArgumentParser()
    experiment.add_flags(parser)
    flags = {**vars(parser.parse_args([])), "out": None, **given}
    return experiment.run(argparse.Namespace(**flags), lambda text: None, Journal())


def test_a_stream_of_a_file_runs_with_the_users_agent(tmp_path: Path) -> None:
    rows = [{"query": {"day": i % 3}, "truth": f"t{i % 3}"} for i in range(12)]
    rows.insert(0, {"query": "first", "truth": "t0", "output": "t0"})
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = run(stream=tmp_path / "own.jsonl", agent=f"{__name__}:Learner", k=20)
    found = {str(row[0]): row for row in report.tables[0].rows}
    assert found["fixed, none"][3] == 1
    assert found["add_all, none"][3] == 13
    assert found["fixed, none"][1] == pytest.approx(4 / 12), "only what was known from the first"
    with pytest.raises(ConfigError, match="without its agent"):
        run(stream=tmp_path / "own.jsonl")
    (tmp_path / "own.jsonl").write_text('{"query": "q"}')
    with pytest.raises(DataError, match="truth"):
        experiment.read_stream(tmp_path / "own.jsonl")


def test_examples_are_written_as_they_are_read(tmp_path: Path) -> None:
    assert len(run(tasks=12, out=tmp_path, evaluators=["add_all", "strict"]).tables) == 3
    for name, example in EXAMPLES.items():
        rows = example.rows(0, 60, 12)
        assert experiment.read_stream(tmp_path / f"{name}.jsonl") == rows
        assert (
            as_lines(rows) == as_lines(example.rows(0, 60, 12)) != as_lines(example.rows(1, 60, 12))
        )

"""Streams: similarities by hand, the file, and a learning agent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import DataError
from papers import streams as experiment
from papers.experience import Bank, Experience
from papers.experiment import Journal
from papers.streams import SIMILARITIES, Driver, Shown, StreamRow, Voter, executions


async def compare(similarity: Any, query: Any, *records: Any) -> list[float]:
    """Return the similarity of each record, in their order."""
    bank = Bank(HashingEmbedder(16))
    asked, *texts = (
        value if isinstance(value, str) else json.dumps(value) for value in (query, *records)
    )
    await bank.fill(Experience(text, "", 1.0) for text in texts)
    found = await bank.retrieve(asked, 9, similarity)
    return [score for _, score in sorted(found, key=lambda pair: pair[0].id)]


async def test_similarities_by_hand_and_unfitting_inputs() -> None:
    change, keys = SIMILARITIES["relative"], SIMILARITIES["keys"]
    flow = {"rate": 2.0, "by": "tcp"}
    found = await compare(change, flow, {**flow, "rate": 4.0}, {**flow, "by": "udp"})
    assert found == pytest.approx([1 - 0.5 / 2, 0.5]), "the mean over features"
    assert await compare(change, {"rate": 0.0}, {"rate": 0.0}, {"rate": -1.0}) == [1.0, 0.0]
    here = {"ego": [0.0], "goal": [0.0, 0.0], "history": [0.0]}  # the goal weighs most
    found = await compare(keys, here, {**here, "ego": [1.0]}, {**here, "goal": [0.0, 0.5]})
    assert found == pytest.approx([np.exp(-1), np.exp(-2.5)], abs=1e-5)
    with pytest.raises(DataError, match="do not have the same fields"):
        await compare(change, {"rate": 1.0}, {"flow": 1.0})
    with pytest.raises(DataError, match="JSON objects"):
        await compare(keys, "another", "a text")


async def test_voter_and_driver_by_hand() -> None:
    row = StreamRow("q", [[0.0, 0.0], [3.0, 4.0]])
    assert await Voter().act(row, []) == ""
    assert Driver().score(row, "[[0, 0], [0, 0]]") == {"outcome": 0.0, "error": 2.5}
    assert Driver().score(row, "[[0, 0], [3, 1]]")["outcome"] == 1.0


class Learner:
    """Repeats a right output of the records."""

    async def act(self, row: StreamRow, shown: Shown) -> str:
        return next((output for output in executions(shown) if output == row.truth), "?")

    def score(self, row: StreamRow, output: str) -> Mapping[str, Any]:
        return {"outcome": float(output == row.truth)}


def test_stream_of_a_file_runs_with_the_users_agent(tmp_path: Path) -> None:
    rows = [{"query": {"day": i % 3}, "truth": f"t{i % 3}"} for i in range(12)]
    rows.insert(0, {"query": "first", "truth": "t0", "output": "t0"})
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    parser = argparse.ArgumentParser()
    experiment.add_flags(parser)
    flags = ["--stream", str(path), "--agent", f"{__name__}:Learner", "--k", "20"]
    report = experiment.run(parser.parse_args(flags), Journal())
    found = {str(row[0]): row for row in report.tables[0].rows}
    assert found["fixed, none"][3] == 1
    assert found["add_all, none"][3] == 13
    assert found["fixed, none"][1] == pytest.approx(4 / 12), "only the initial record helps"
    assert {"strict, periodic", "strict, history", "strict, combined"} <= found.keys()
    path.write_text('{"query": "q"}')
    with pytest.raises(DataError, match="row 1: needs query and truth"):
        experiment.read_stream(path)

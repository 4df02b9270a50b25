"""RegAgent: retrieval by hand, the arrays against the experience bank, and Table 1."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from atommem.errors import ConfigError
from papers.experience import Bank, Experience, Verdict
from papers.experiment import Journal, Report
from papers.inputs import StoredVectors, load_published
from papers.regagent import __main__ as experiment
from papers.regagent.simulation import (
    Records,
    Rules,
    Runs,
    World,
    make_world,
    run_stream,
    similarity_follower,
)

PAPER = load_published("regagent")
FOLLOWER = similarity_follower(PAPER["follower"])


def test_nearest_is_by_cosine_and_survives_deletion() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3))
    records = Records(vectors, np.arange(40.0), np.zeros(40), 5)
    x = rng.normal(size=3)
    order = np.argsort(-(vectors @ x) / np.linalg.norm(vectors, axis=1))
    assert records.nearest(x, 4)[0].tolist() == order[:4].tolist()
    records.delete(order[:2])
    left = [float(records.output[row]) for row in records.nearest(x, 4)[0]]
    assert left == order[2:6].tolist()
    records.delete(records.nearest(x, 20)[0])  # so many that the rows are compacted
    assert (records.size, records.end) == (18, 18)
    assert [float(records.output[row]) for row in records.nearest(x, 2)[0]] == order[22:24].tolist()


def test_run_stream_stays_within_a_limit() -> None:
    world: World = make_world(1, PAPER["world"], PAPER["initial"], 150)
    for limited in ("constrained", "fifo", "random", "failures_first"):
        rules = Rules(np.inf, deletion="periodic", period=50, limit=100, limited_by=limited)
        assert run_stream(world, FOLLOWER, rules).size <= 100
    rules = Rules(np.inf, limit=100, limited_by="failures_first")
    kept = run_stream(world, FOLLOWER, rules).records
    assert kept.passed[kept.alive[: kept.end]].all()


async def test_arrays_delete_the_records_that_the_bank_deletes() -> None:
    n, initial = 150, 40
    world = make_world(3, PAPER["world"], initial, n)
    run = run_stream(world, FOLLOWER, Rules(1.0, deletion="history", n=3))
    names = [f"known {i}" for i in range(initial)] + [f"task {i}" for i in range(n)]
    vectors = np.concatenate([world.known, world.inputs])
    units = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    bank = Bank(StoredVectors(names, units), retention="history(n=3, beta=0.5)")
    await bank.fill(Experience(name, "", 1.0) for name in names[:initial])
    for name, error in zip(names[initial:], run.errors, strict=True):
        await bank.retrieve(name, 6)
        await bank.end(Experience(name, ""), Verdict(bool(error <= 1), float(error <= 1)))
    assert len(bank) == run.size
    assert run.size < initial + int((run.errors <= 1).sum()), "something was deleted"
    alive = run.records.alive[: run.records.end]
    steps = sorted(int(step) for step in run.records.created[alive] if step >= 0)
    texts = [record.text.split() for record in bank.records()]
    assert steps == sorted(int(number) for kind, number in texts if kind == "task")


def run(**settings: Any) -> Report:
    arguments = argparse.Namespace(**{"seeds": [0], **settings})
    return experiment.run(arguments, Journal())


@pytest.mark.slow
def test_every_table_is_made_and_a_short_stream_holds_nothing() -> None:
    report = run(tasks=60)
    assert len(report.tables) == 6
    assert not report.holds
    with pytest.raises(ConfigError, match="tasks=0"):
        run(tasks=0)


@pytest.mark.slow
def test_success_is_within_three_points_of_table_1() -> None:
    runs = Runs(PAPER, [0, 1], None)
    for name, row in PAPER["table1"].items():
        found = experiment.mean(runs.outcomes(name))
        assert abs(found - row["success"]) <= 3, name

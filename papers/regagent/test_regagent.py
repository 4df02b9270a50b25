"""RegAgent: retrieval by hand, the arrays held to the experience bank, and Table 1."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atommem.errors import ConfigError
from atommem.policy.contract import Completion, Sampling
from papers import inputs
from papers.experience import Bank, Experience
from papers.inputs import StoredVectors, load_published
from papers.journal import Journal
from papers.regagent import experiment
from papers.regagent.followers import similarity_follower
from papers.regagent.records import Records
from papers.regagent.runs import Runs, success
from papers.regagent.stream import Rules, run_stream
from papers.regagent.world import make_world
from papers.report import Report

PAPER = load_published("regagent")
FOLLOWER = similarity_follower(PAPER["follower"])


def world(seed: int, n: int = 400) -> object:
    return make_world(seed, PAPER["world"], PAPER["initial"], n)


def test_retrieval_is_by_cosine_and_survives_deletion() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, 3))
    records = Records(inputs, np.arange(40.0), np.zeros(40), 5)
    x = rng.normal(size=3)
    cosines = inputs @ x / np.linalg.norm(inputs, axis=1) / np.linalg.norm(x)
    order = np.argsort(-cosines)
    assert records.nearest(x, 4)[0].tolist() == order[:4].tolist()
    records.delete(order[:2])
    left = [float(records.output[row]) for row in records.nearest(x, 4)[0]]
    assert left == order[2:6].tolist()
    records.delete(records.nearest(x, 20)[0])  # so many that the rows are moved together
    assert (records.size, records.end) == (18, 18)
    assert [float(records.output[row]) for row in records.nearest(x, 2)[0]] == order[22:24].tolist()


def test_a_limit_is_kept() -> None:
    for limited in ("constrained", "fifo", "random", "failures_first"):
        rules = Rules(np.inf, deletion="periodic", period=50, limit=100, limited_by=limited)
        assert run_stream(world(1, 150), FOLLOWER, rules).size <= 100
    kept = run_stream(
        world(1, 150), FOLLOWER, Rules(np.inf, limit=100, limited_by="failures_first")
    ).records
    assert kept.passed[kept.alive[: kept.end]].all()


async def test_the_arrays_delete_what_the_experience_bank_does() -> None:
    """The rule `history` on the bank, with the outcomes of the numeric run."""
    n, initial = 150, 40
    w = make_world(3, PAPER["world"], initial, n)
    run = run_stream(w, FOLLOWER, Rules(1.0, deletion="history", n=3))
    names = [f"known {i}" for i in range(initial)] + [f"task {i}" for i in range(n)]
    inputs = np.concatenate([w.known, w.inputs])
    units = (inputs / np.linalg.norm(inputs, axis=1, keepdims=True)).astype(np.float32)
    bank = Bank(StoredVectors(names, units), retention="history(n=3, beta=0.5)", evaluator="strict")
    await bank.fill(Experience(name, "", 1.0) for name in names[:initial])
    for name, error in zip(names[initial:], run.errors, strict=True):
        await bank.retrieve(name, 6)
        await bank.end(Experience(name, "", float(error <= 1.0)))
    assert len(bank) == run.size
    assert run.size < initial + int((run.errors <= 1).sum()), "something was deleted"
    alive = run.records.alive[: run.records.end]
    steps = sorted(int(step) for step in run.records.created[alive] if step >= 0)
    assert steps == sorted(
        int(r.text.split()[1]) for r in bank.records() if r.text.startswith("task")
    )


def run(progress: Callable[[str], object] = print, **given: Any) -> Report:
    return experiment.run(
        argparse.Namespace(**{"seeds": [0], "policy": None, **given}), progress, Journal()
    )


def test_every_table_is_made_and_a_short_stream_holds_nothing() -> None:
    told: list[str] = []
    report = run(told.append, tasks=60)
    assert len(report.tables) >= 9
    assert not report.holds
    assert told
    with pytest.raises(ConfigError, match="tasks is 0"):
        run(tasks=0)


def test_a_language_model_answers_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Model:
        async def complete_chat(
            self, messages: list[dict[str, str]], sampling: Sampling
        ) -> Completion:
            heard.append(messages[0]["content"])
            last = heard[-1].rpartition("boxed{")[2].partition("}")[0]  # the most alike stands last
            return Completion(
                [], [], f"Guess: \\boxed{{{last}}}" if len(heard) > 1 else "?", "stop"
            )

        async def close(self) -> None: ...

    monkeypatch.setattr(inputs, "open_policy", lambda choice: Model())
    report = run(tasks=20, policy=["http://127.0.0.1:9"], api="chat", model="m", tokenizer=None)
    assert 20 <= len(heard) == len(set(heard)) < 100, "a greedy reply is asked for once"
    assert "5 of 100 answers had no number" in report.notes[0]
    assert report.tables[0].rows[1][2] == 120


@pytest.mark.slow
def test_table_1_as_published() -> None:
    runs = Runs(PAPER, [0, 1], None, lambda text: None)
    for name, row in PAPER["table1"].items():
        found = runs.of(runs.rules(name))
        assert abs(success(found) - row["success"]) <= 3, name
        assert replace(runs.rules(name), k=6) == runs.rules(name)

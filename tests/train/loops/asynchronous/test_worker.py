"""The sampling side: how far the worker runs ahead, what it tags, and what becomes of outages and errors."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import Any

import pytest
import torch

from atommem.errors import OutageError, PolicyError
from atommem.policy.contract import Sampling
from atommem.train.loops.asynchronous import worker as worker_module
from atommem.train.loops.asynchronous.groups import Group
from atommem.train.loops.asynchronous.samplers import CopyPolicy, CopyTransfer
from atommem.train.loops.asynchronous.worker import RolloutWorker
from tests.train.loops.asynchronous.fakes import FakeRunner, running_worker
from tests.train.toys import make_model, make_tokenizer


def right(*run: Any) -> float:
    return 1.0


def groups(worker: RolloutWorker, count: int) -> list[Group]:
    return [worker.rollout_buffer.get(timeout=10) for _ in range(count)]


def nothing_more(worker: RolloutWorker) -> None:
    with pytest.raises(queue.Empty):
        worker.rollout_buffer.get(timeout=0.05)


def test_without_staleness_it_waits_for_every_version() -> None:
    with running_worker(FakeRunner(right)) as worker:
        for version in (1, 2, 3):
            (group,) = groups(worker, 1)
            assert (group.index, group.versions) == (version - 1, ([version], [version]))
            nothing_more(worker)
            worker.update_model_version(version + 1)
        nothing_more(worker)  # that was all


def test_it_runs_ahead_by_the_staleness_and_no_further() -> None:
    with running_worker(FakeRunner(right), max_staleness=2, groups_per_version=2, total=20) as worker:
        ahead = groups(worker, 6)
        assert {min(versions) for group in ahead for versions in group.versions} == {1}
        nothing_more(worker)
        worker.update_model_version(2)
        assert [group.versions for group in groups(worker, 2)] == [([2], [2])] * 2
        nothing_more(worker)


def test_seeds_are_those_of_the_order() -> None:
    runner = FakeRunner(right)
    with running_worker(runner, max_staleness=1) as worker:
        groups(worker, 2)
    assert runner.runs == [("t0", 0, 0), ("t0", 1, 0), ("t1", 0, 1), ("t1", 1, 1)]
    assert runner.agent.sampling.seed is None  # each episode has its own copy of the settings


def test_it_goes_on_where_a_run_stopped() -> None:
    """After three updates of one group, in the middle of a version that serves two."""
    settings: dict[str, Any] = {"groups_per_version": 2, "max_staleness": 1, "total": 7, "first": lambda: 3}
    with running_worker(FakeRunner(right), **settings) as worker:
        assert [group.index for group in groups(worker, 3)] == [3, 4, 5]
        nothing_more(worker)
        worker.update_model_version(2)
        assert [group.index for group in groups(worker, 1)] == [6]
        nothing_more(worker)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RERUN_SECONDS", 0.001)


def metrics(worker: RolloutWorker) -> dict[str, float]:
    totals: dict[str, float] = {}
    while not worker.metrics_queue.empty():
        for key, value in worker.metrics_queue.get().items():
            totals[key] = totals.get(key, 0.0) + value
    return totals


@pytest.mark.usefixtures("no_waiting")
def test_an_outage_is_waited_out_and_counted() -> None:
    runner = FakeRunner(lambda task, sample, before: OutageError("server gone") if before < 6 else 1.0)
    with running_worker(runner) as worker:
        (group,) = groups(worker, 1)
        assert [episode.reward for episode in group.episodes] == [1.0, 1.0]
        assert metrics(worker)["rollout/outages_total"] == 12


@pytest.mark.usefixtures("no_waiting")
def test_an_outage_that_only_one_episode_has_ends_it_without_a_score() -> None:
    runner = FakeRunner(lambda task, sample, before: OutageError("judge unreachable") if sample == 0 else 1.0)
    with running_worker(runner) as worker:
        (group,) = groups(worker, 1)
    assert [episode.reward for episode in group.episodes] == [None, 1.0]
    assert group.episodes[0].failed
    assert sum(run[1] == 0 for run in runner.runs) == worker_module.RERUNS + 1


@pytest.mark.usefixtures("no_waiting")
def test_a_lasting_outage_is_an_error_with_its_reason() -> None:
    with running_worker(FakeRunner(lambda *run: OutageError("http://localhost:8000 refused"))) as worker:
        worker.check_health(60.0)
        time.sleep(0.1)
        with pytest.raises(OutageError, match=r"no completion has come for 0 s .* http://localhost:8000 refused"):
            worker.check_health(0.05)


@pytest.mark.parametrize("error", [PolicyError("no such model"), ZeroDivisionError("a bug")])
def test_an_error_surfaces_in_check_health(error: Exception) -> None:
    with running_worker(FakeRunner(lambda *run: error)) as worker:

        def watch() -> None:
            for _ in range(1000):
                worker.check_health(60.0)
                time.sleep(0.01)

        with pytest.raises(type(error)) as caught:
            watch()
    assert caught.value is error


def test_a_transfer_that_broke_off_does_not_hold_up_sampling() -> None:
    """A copy in the process samples on where its new weights do not arrive."""
    policy = CopyPolicy(make_model(), make_tokenizer())
    transfer = CopyTransfer(policy)
    transfer.pause()
    with pytest.raises(KeyError, match="unknown"):
        transfer.send_weights(iter([("unknown", torch.zeros(1))]))
    transfer.destroy()
    assert asyncio.run(policy.complete([1, 2, 3], Sampling(temperature=0.0, max_tokens=4))).token_ids
    transfer.destroy()  # nothing is held: nothing happens

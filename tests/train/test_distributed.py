"""Two gloo processes train as one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.train.distributed_worker import CASES, train_alike
from tests.train.harness import assert_equal_gradients, save_model, torchrun

pytestmark = pytest.mark.slow
Found = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return the results of a case: of one process, then of each of two."""
    folder = tmp_path_factory.mktemp("distributed")
    model = save_model(folder)
    torchrun("distributed_worker", folder, model)
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    everyone = [train_alike(folder / "one", model), *ranks]
    return lambda case: [results[case] for results in everyone if case in results]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(found: Found, case: str) -> None:
    alone, first, second = found(case)
    assert first["jobs"] + second["jobs"] == alone["jobs"]
    for rank in (first, second):
        assert_equal_gradients(rank["gradients"], alone["gradients"], tolerance=1e-5)
        torch.testing.assert_close(rank["weights"], alone["weights"], atol=1e-5, rtol=1e-5)
        assert rank["logged"].keys() == alone["logged"].keys()
    for key, value in alone["logged"].items():
        # Micro-batches are cut per rank.
        if key not in ("clip_ratio/low_min", "clip_ratio/high_max", "packing_ratio"):
            assert first["logged"][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_two_ranks_train_asynchronously_as_one(found: Found) -> None:
    """One rank samples for both."""
    alone, first, second = found("asynchronous")
    torch.testing.assert_close(first["weights"], alone["weights"], atol=1e-5, rtol=0)
    torch.testing.assert_close(second["weights"], first["weights"], atol=0, rtol=0)
    assert any(entry["loss"] for entry in alone["updates"])
    for expected, entry in zip(alone["updates"], first["updates"], strict=True):
        assert entry["em"] == expected["em"]
        assert entry["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)


def test_two_ranks_replace_groups_as_one(found: Found) -> None:
    alone, first, second = found("replacing")
    assert sorted(first["jobs"] + second["jobs"]) == sorted(alone["jobs"])
    assert first["replaced"] == second["replaced"] == alone["replaced"]
    assert sum(alone["replaced"]) > 0


def test_two_ranks_load_the_same_adapters(found: Found) -> None:
    """The second rank cannot reach the server a."""
    first, second = found("one lost")
    assert len(set(first["loads"]["a"])) == 3
    assert first["loads"]["b"] == first["loads"]["a"] == second["loads"]["b"]
    assert second["loads"]["a"] == []
    assert first["error"] == second["error"] == ""


def test_rank_without_servers_ends_the_run_for_all(found: Found) -> None:
    first, second = found("all lost")
    assert "No server answered" in second["error"]
    assert "see the other processes" in first["error"]

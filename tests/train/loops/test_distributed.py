"""Two gloo processes on the CPU compute the gradients of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train.harness import assert_equal_gradients, torchrun

CASES = ["mixed-token", "mixed-step", "mixed-trajectory", "one_sided-token", "shared-token", "equal-token"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """For each case: the one process, then both of two."""
    folder = tmp_path_factory.mktemp("distributed")
    for ranks in (0, 2):
        torchrun("loops.distributed_worker", ",".join(CASES), folder, ranks=ranks)
    runs = ((1, 0), (2, 0), (2, 1))
    return {case: [torch.load(folder / f"{case}-{n}-{rank}.pt") for n, rank in runs] for case in CASES}


@pytest.mark.parametrize("case", CASES[:5])
def test_gradients_equal_those_of_one_process(results: dict[str, list[dict[str, Any]]], case: str) -> None:
    alone, *ranks = results[case]
    for rank in ranks:
        assert_equal_gradients(rank["gradients"], alone["gradients"], tolerance=1e-5)
        for name, weight in alone["weights"].items():
            assert torch.allclose(rank["weights"][name], weight, atol=1e-5)


@pytest.mark.parametrize("case", CASES[:5])
def test_ranks_share_the_episodes_and_have_different_numbers_of_rows(
    results: dict[str, list[dict[str, Any]]], case: str
) -> None:
    alone, first, second = results[case]
    assert first["jobs"] + second["jobs"] == alone["jobs"]
    assert first["rows"] + second["rows"] == alone["rows"]
    assert first["rows"] != second["rows"]


def test_a_rank_may_have_no_rows_at_all(results: dict[str, list[dict[str, Any]]]) -> None:
    assert results["one_sided-token"][2]["rows"] == 0


def test_ranks_agree_that_there_is_nothing_to_learn(results: dict[str, list[dict[str, Any]]]) -> None:
    alone, *ranks = results["equal-token"]
    for rank in ranks:
        assert rank["gradients"] == {}
        assert all(torch.equal(rank["weights"][name], weight) for name, weight in alone["weights"].items())


@pytest.mark.parametrize("case", CASES)
def test_logged_numbers_are_those_of_one_process(results: dict[str, list[dict[str, Any]]], case: str) -> None:
    alone, first, second = results[case]
    assert first["logged"].keys() == second["logged"].keys() == alone["logged"].keys()
    for key, value in alone["logged"].items():
        # Micro-batches are cut per rank: two are extremes over micro-batches, one says how well they are packed.
        if key not in ("clip_ratio/low_min", "clip_ratio/high_max", "packing_ratio"):
            assert first["logged"][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
            assert second["logged"][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key

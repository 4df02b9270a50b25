"""FSDP2 as configs/accelerate/fsdp2.yaml sets it, on two gloo processes: the reference, gradients and precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train.harness import assert_equal_gradients, torchrun
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["no", "bf16", "lora", "lora_bf16"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process found, then both of two."""
    folder = tmp_path_factory.mktemp("fsdp2")
    make_model().save_pretrained(folder / "model")
    for ranks in (0, 2):
        torchrun("shipped.fsdp2_worker", folder, request.param, ranks=ranks)
    return [
        torch.load(folder / f"{request.param}-{n}-{rank}.pt", weights_only=False)
        for n, rank in ((1, 0), (2, 0), (2, 1))
    ]


def test_the_reference_is_what_rank_0_loaded(results: list[dict[str, Any]]) -> None:
    alone, *ranks = results
    for rank in ranks:
        assert rank["reference_dtypes"] == alone["reference_dtypes"]  # not kept in float32: it is not trained
        assert rank["reference"].keys() == alone["reference"].keys()
        for name, weight in alone["reference"].items():
            assert torch.equal(rank["reference"][name], weight), name
        assert rank["log"]["kl"] == 0.0


def test_gradients_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    alone, *ranks = results
    tolerance = 1e-5 if alone["reference_dtypes"] == {torch.float32} else 0.05
    for rank in ranks:
        assert_equal_gradients(rank["gradients"], alone["gradients"], tolerance=tolerance)


def test_gradients_stay_sharded_between_micro_batches(results: list[dict[str, Any]]) -> None:
    _, *ranks = results
    total = sum(gradient.numel() for gradient in ranks[0]["gradients"].values())
    assert sum(rank["held"] for rank in ranks) == total
    for rank in ranks:
        assert len(rank["unsharded"]) > 2
        assert set(rank["unsharded"]) == {0}


def test_what_is_added_up_is_added_up_in_float32(results: list[dict[str, Any]]) -> None:
    for rank in results[1:]:
        assert rank["gradient_dtypes"] == {torch.float32}
        assert rank["logps_dtypes"] == {torch.float32}

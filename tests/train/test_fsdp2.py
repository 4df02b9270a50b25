"""FSDP2 as configs/accelerate/fsdp2.yaml sets it, on two gloo processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate.utils import merge_fsdp_weights
from safetensors.torch import load_file

from atommem.errors import ConfigError
from atommem.train.checkpoints import SHARDED_MODEL, list_checkpoints
from tests.train.fsdp2_worker import KINDS, run, update
from tests.train.harness import assert_equal_gradients, torchrun
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run on two processes, and continue on one."""
    folder = tmp_path_factory.mktemp("fsdp2")
    make_model().save_pretrained(folder / "model")
    for part, ranks in (("two", 2), ("one", 1)):
        torchrun("fsdp2_worker", part, folder, ranks=ranks)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_fsdp2_update_equals_one_process(runs: Path, kind: str) -> None:
    alone = update(runs, kind)
    for rank in (0, 1):
        found = torch.load(runs / f"{rank}.pt", weights_only=False)[kind]
        torch.testing.assert_close(found["reference"], alone["reference"], atol=0, rtol=0)
        assert found["log"]["kl"] == 0.0
        tolerance = 0.05 if "bf16" in kind else 1e-5
        assert_equal_gradients(found["gradients"], alone["gradients"], tolerance)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*model.safetensors")))


def assert_close(first: Path, second: Path, tolerance: float) -> None:
    ours, theirs = weights(first), weights(second)
    # A tied head may be there twice, once as the embeddings.
    assert ours.keys() - {"lm_head.weight"} == theirs.keys() - {"lm_head.weight"}
    for name in ours.keys() & theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=tolerance, rtol=0)


def test_fsdp2_checkpoint_is_sharded_and_resumes_bit_for_bit(runs: Path, tmp_path: Path) -> None:
    checkpoint = list_checkpoints(runs / "whole")[0]
    assert (checkpoint / SHARDED_MODEL / "__1_0.distcp").is_file()
    assert not list(checkpoint.glob("*.safetensors"))
    assert_close(runs / "whole", runs / "again", 0.0)
    # accelerate's command makes the last checkpoint a model folder.
    merge_fsdp_weights(str(runs / "whole" / "checkpoint-3" / SHARDED_MODEL), str(tmp_path))
    assert_close(tmp_path, runs / "whole", 0.0)


def test_fsdp2_resumes_on_another_number_of_processes(runs: Path) -> None:
    assert_close(runs / "two-to-one", runs / "whole", 1e-5)


def test_fsdp2_checkpoint_without_fsdp_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read each other's checkpoints"):
        run(tmp_path, runs / "whole" / "checkpoint-2")

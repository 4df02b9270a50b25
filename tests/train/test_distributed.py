"""Two gloo processes train as one does: under DDP, and under FSDP2 as configs/accelerate has it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate.utils import DistributedType, merge_fsdp_weights
from safetensors.torch import load_file

from atommem.errors import ConfigError
from atommem.train.checkpoints import SHARDED_MODEL, list_checkpoints
from atommem.train.resumable_trainer import keep_in_float32
from tests.train import distributed_worker as worker
from tests.train.harness import assert_equal_gradients, save_model, torchrun
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("distributed")
    model = save_model(folder)
    torchrun("distributed_worker", "ddp", folder)
    ranks = [torch.load(folder / f"ddp-{rank}.pt", weights_only=False) for rank in (0, 1)]
    everyone = [worker.train_alike(folder / "one", model), *ranks]
    return lambda case: [results[case] for results in everyone if case in results]


@pytest.mark.parametrize("case", worker.CASES)
def test_two_ranks_equal_one_process(found, case):
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


def test_two_ranks_train_asynchronously_as_one(found):
    alone, first, second = found("asynchronous")
    # Adam enlarges rounding errors of small gradients: a hundredth of a step is allowed.
    torch.testing.assert_close(first["weights"], alone["weights"], atol=1e-4, rtol=0)
    torch.testing.assert_close(second["weights"], first["weights"], atol=0, rtol=0)
    assert any(entry["loss"] for entry in alone["updates"])
    for expected, entry in zip(alone["updates"], first["updates"], strict=True):
        assert entry["em"] == expected["em"]
        assert entry["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)


def test_two_ranks_load_the_same_adapters(found):
    first, second = found("one lost")
    versions = [name for name in first["loads"]["a"] if not name.endswith("_proj")]
    assert len(versions) == 3
    assert first["loads"]["b"] == first["loads"]["a"]
    assert second["loads"]["b"] == versions  # the first rank has checked the adapter
    assert second["loads"]["a"] == []
    assert first["error"] == second["error"] == ""


def test_rank_without_servers_ends_the_run_for_all(found):
    first, second = found("all lost")
    assert "No server answered" in second["error"]
    assert "see the other processes" in first["error"]


def test_adapter_resumes_on_two_one_and_two_ranks(tmp_path):
    torchrun("distributed_worker", "adapter", tmp_path)
    worker.resume_adapter(tmp_path / "one", tmp_path / "whole" / "checkpoint-1")
    torchrun("distributed_worker", "adapter", tmp_path)
    start = weights(tmp_path / "whole" / "checkpoint-1")
    end = weights(tmp_path / "whole")
    assert all((end[name] - start[name]).abs().max() > 1e-3 for name in end)
    assert_close(tmp_path / "one", tmp_path / "whole", 1e-6)
    assert_close(tmp_path / "two", tmp_path / "whole", 1e-6)


def test_rank_without_memory_ends_the_run_for_all(found):
    for message in found("memory"):
        assert "CUDA out of memory" in message
        assert message.endswith("memory/checkpoint-1.")


def test_rank_that_cannot_write_leaves_no_checkpoint(found):
    first, second = found("disk")
    assert "of update 2 could not be written: another process failed" in first
    assert "of update 2 could not be written: disk full. " in second
    assert "MB are free on its disk. There is no checkpoint yet" in second


def test_rank_that_gets_its_weights_only_reserves_memory():
    """Rank 0 hands out the weights: float32 copies on all ranks were 4 bytes a parameter."""
    model = torch.nn.Linear(8192, 8192, False, device="meta", dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    plugin = SimpleNamespace(cpu_ram_efficient_loading=True)
    accelerator = SimpleNamespace(
        distributed_type=DistributedType.FSDP,
        state=SimpleNamespace(fsdp_plugin=plugin),
        is_main_process=False,
    )
    process = psutil.Process()
    before = process.memory_info().rss
    keep_in_float32(model, accelerator)
    assert model.weight.dtype == torch.float32
    assert process.memory_info().rss - before < 0.5 * model.weight.numel()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp2")
    make_model().save_pretrained(folder / "model")
    torchrun("distributed_worker", "fsdp2", folder)
    return folder


@pytest.mark.parametrize("kind", worker.KINDS)
def test_fsdp2_update_equals_one_process(runs, kind):
    alone = worker.fsdp2_update(runs, kind)
    ranks = [torch.load(runs / f"fsdp2-{rank}.pt", weights_only=False)[kind] for rank in (0, 1)]
    torch.testing.assert_close(ranks[0]["updated"], ranks[1]["updated"], atol=0, rtol=0)
    for found in ranks:  # rank 0 hands out the weights
        torch.testing.assert_close(found["loaded"], alone["loaded"], atol=0, rtol=0)
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


def test_fsdp2_checkpoint_is_sharded_and_resumes_bit_for_bit(runs, tmp_path):
    checkpoint = list_checkpoints(runs / "whole")[0]
    assert (checkpoint / SHARDED_MODEL / "__1_0.distcp").is_file()
    assert not list(checkpoint.glob("*.safetensors"))
    assert_close(runs / "whole", runs / "again", 0.0)
    # accelerate's command makes the last checkpoint a model folder.
    merge_fsdp_weights(str(runs / "whole" / "checkpoint-3" / SHARDED_MODEL), str(tmp_path))
    assert_close(tmp_path, runs / "whole", 0.0)


def test_fsdp2_checkpoint_of_two_ranks_resumes_on_one(runs):
    torchrun("distributed_worker", "fsdp2 on one", runs, ranks=1)
    assert_close(runs / "one", runs / "whole", 1e-5)


def test_fsdp2_checkpoint_without_fsdp_is_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match="cannot read each other's checkpoints"):
        worker.fsdp2_run(tmp_path, runs / "whole" / "checkpoint-2")

"""FSDP2 as configs/accelerate/fsdp2.yaml sets it, on two gloo processes: the reference, gradients and precision; and
sharded checkpoints, each continued on the other number of processes, and without FSDP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atommem.errors import ConfigError
from atommem.train.resume.checkpoint import save_final
from atommem.train.resume.checkpoint_files import PARTIAL, complete_checkpoints
from atommem.train.resume.export import export
from tests.train.harness import assert_equal_gradients, torchrun
from tests.train.shipped.fsdp2_worker import FORMS, KINDS, make, run, update
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left, one, and two that go on from the one."""
    folder = tmp_path_factory.mktemp("fsdp2")
    make_model().save_pretrained(folder / "model")
    for part, ranks in (("two", 2), ("one", 1), ("resume", 2)):
        torchrun("shipped.fsdp2_worker", part, folder, ranks=ranks)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_that_of_one_process_and_stays_sharded(runs: Path, kind: str) -> None:
    alone = update(runs, kind)
    ranks = [torch.load(runs / f"{rank}.pt", weights_only=False)[kind] for rank in (0, 1)]
    assert sum(rank["held"] for rank in ranks) == sum(
        gradient.numel() for gradient in ranks[0]["gradients"].values()
    )
    for rank in ranks:
        # The reference is what rank 0 loaded, and not kept in float32: it is not trained.
        assert rank["reference_dtypes"] == alone["reference_dtypes"]
        assert rank["reference"].keys() == alone["reference"].keys()
        for name, weight in alone["reference"].items():
            assert torch.equal(rank["reference"][name], weight), name
        assert rank["log"]["kl"] == 0.0
        assert_equal_gradients(
            rank["gradients"], alone["gradients"], tolerance=0.05 if "bf16" in kind else 1e-5
        )
        # Between micro-batches gradients are in shards, and what is added up is added up in float32.
        assert len(rank["unsharded"]) > 2
        assert set(rank["unsharded"]) == {0}
        assert rank["gradient_dtypes"] == rank["logps_dtypes"] == {torch.float32}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*model.safetensors")))


def assert_close(first: Path, second: Path, tolerance: float) -> None:
    ours, theirs = weights(first), weights(second)
    # A tied head may be there twice, once as the embeddings.
    assert ours.keys() - {"lm_head.weight"} == theirs.keys() - {"lm_head.weight"}
    assert (
        max(float((ours[name] - theirs[name]).abs().max()) for name in ours.keys() & theirs)
        <= tolerance
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_process_writes_its_part_and_reads_it(runs: Path, tmp_path: Path, form: str) -> None:
    checkpoint = complete_checkpoints(runs / form)[0]
    parts = {path.name for path in (checkpoint / "pytorch_model_fsdp_0").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp"} <= parts
    assert not list(checkpoint.glob("*.safetensors"))
    assert_close(runs / form, runs / f"{form}-again", 0.0)
    export(runs / form / "checkpoint-3", tmp_path / "model")
    assert_close(tmp_path / "model", runs / form, 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_without_fsdp_one_process_goes_on(runs: Path, tmp_path: Path, form: str) -> None:
    run(tmp_path, form, runs / form / "checkpoint-2")
    assert_close(tmp_path, runs / form, 1e-5)


@pytest.mark.parametrize("name", ["one", "two-to-one", "one-to-two"])
def test_on_another_number_of_processes(runs: Path, name: str) -> None:
    assert_close(runs / name, runs / "whole", 1e-5)


def test_a_full_disk_under_one_process_ends_both_in_one_line(runs: Path) -> None:
    for rank in range(2):
        error = (runs / "full" / f"error-{rank}.txt").read_text()
        assert error.startswith("the checkpoint of update 2 could not be written: ")
        # A limit on the size of files stands for the full disk: which of both words comes depends on where it is met.
        assert "the disk is full" in error or "File too large" in error
        assert "The last good one is" in error
        assert "\n" not in error
    assert [path.name for path in complete_checkpoints(runs / "full")] == ["checkpoint-1"]
    assert not (runs / "full" / PARTIAL).exists()


def test_a_checkpoint_of_whole_weights_is_not_for_fsdp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(tmp_path, "whole", max_steps=2)
    trainer.train()
    save_final(trainer)
    monkeypatch.setattr("atommem.train.resume.sharded.writes_shards", lambda trainer: True)
    with pytest.raises(ConfigError, match="holds whole weights, and FSDP reads parts here"):
        make(tmp_path, "whole").train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

"""One model folder of any checkpoint, and the card that it gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from atommem.config import CONFIG_FILE, MemoryConfig, save_config
from atommem.errors import ConfigError
from atommem.train.resume import export as module
from atommem.train.resume.checkpoint import TRAINING_ARGS
from atommem.train.resume.checkpoint_files import MARKER, checkpoint_name, partial_folder, publish
from atommem.train.resume.export import export, main
from atommem.train.resume.faults import CheckpointError
from atommem.train.resume.sharded import MODEL_FOLDER
from tests.train.toys import make_model, make_tokenizer

FACTS = {
    "world_size": 8,
    "base_model": "Qwen/Qwen3-8B",
    "tags": ["grpo", "atommem"],
    "data": "/home/somebody/data/train.parquet",
    "learning_rate": 1e-6,
}
HISTORY = [{"step": step, "reward": step / 100, "em": 0.5} for step in range(1, 31)]


def make_checkpoint(
    folder: Path, in_parts: bool, tied: bool = False, facts: dict[str, Any] | None = None
) -> Any:
    """A checkpoint of a random model in `folder`/checkpoint-30; returns the model."""
    model = make_model()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    partial = partial_folder(folder) / checkpoint_name(30)
    model.save_pretrained(partial)
    if in_parts:
        (partial / "model.safetensors").unlink()
        parts = dcp.FileSystemWriter(partial / MODEL_FOLDER)
        dcp.save({"model": model.state_dict()}, storage_writer=parts, no_dist=True)
    make_tokenizer().save_pretrained(partial)
    save_config(partial, MemoryConfig(dialect="released"))
    (partial / TRAINING_ARGS).write_text(json.dumps(facts or FACTS))
    state = {
        "global_step": 30,
        "max_steps": 100,
        "log_history": [
            *HISTORY,
            {"step": 30, "eval_em": 0.75, "eval_em_low": 0.7, "eval_em_high": 0.8},
        ],
    }
    (partial / "trainer_state.json").write_text(json.dumps(state))
    for name in (
        "optimizer.pt",
        "rng_state_0.pth",
        "rollout_0.pt",
        "scheduler.pt",
        "training_args.bin",
    ):
        (partial / name).write_bytes(b"state")
    publish(partial, folder)
    return model


def assert_same(folder: Path, model: Any, dtype: torch.dtype = torch.float32) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == dtype
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.to(dtype)), name


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_folder_and_nothing_of_the_training(
    tmp_path: Path, in_parts: bool, tied: bool
) -> None:
    model = make_checkpoint(tmp_path, in_parts, tied)
    out = tmp_path / "exported"
    export(tmp_path / "checkpoint-30", out)
    assert_same(out, model)
    assert len(AutoTokenizer.from_pretrained(out)) == len(make_tokenizer())
    assert {path.name for path in out.iterdir()} == {
        *("README.md", "config.json", "generation_config.json", "model.safetensors", CONFIG_FILE),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) != tied
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".partial",
        "checkpoint-30",
        "exported",
    ]


@pytest.mark.parametrize("in_parts", [True, False])
def test_no_more_than_one_file_of_weights_is_in_memory(
    tmp_path: Path, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_checkpoint(tmp_path, in_parts)
    written: list[int] = []
    save_file = module.save_file

    def noting(weights: dict[str, torch.Tensor], path: Path, **kwargs: Any) -> None:
        written.append(sum(weight.nbytes for weight in weights.values()))
        save_file(weights, path, **kwargs)

    monkeypatch.setattr(module, "save_file", noting)
    arguments = ["--out", str(tmp_path / "out"), "--dtype", "bfloat16", "--max_shard_size", "4KB"]
    assert main([str(tmp_path / "checkpoint-30"), *arguments]) == 0
    assert len(written) > 2
    assert max(written) <= 4000
    assert_same(tmp_path / "out", model, torch.bfloat16)


def test_the_card(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, in_parts=True)
    export(tmp_path / "checkpoint-30", tmp_path / "notes", license_id="apache-2.0")
    card = ModelCard.load(tmp_path / "notes" / "README.md")
    assert card.data.to_dict() == {
        "base_model": "Qwen/Qwen3-8B",
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "atommem"],
    }
    wanted = [
        *("30 of 100 updates", "| reward | 0.055 | 0.255 |", "Held-out tasks, after update 30"),
        *(
            "| eval_em | 0.75 (95%: 0.7 to 0.8) |",
            "| learning_rate | 1e-06 |",
            '| dialect | "released" |',
        ),
        *(
            "| data | train.parquet |",
            "atommem serve --policy notes\n",
            "atommem eval --policy notes --data TASKS",
        ),
        *("vllm serve notes --served-model-name policy", "## Cite"),
    ]
    assert [text for text in wanted if text not in card.text] == []
    assert "arXiv 2601.08323" in card.text.partition("## Cite")[2]
    assert "somebody" not in card.text, "where files lay is nobody's business"


def test_nothing_is_made_up_in_a_card(tmp_path: Path) -> None:
    """A local base model, no data file, no evaluation."""
    make_checkpoint(tmp_path, in_parts=False, facts={"base_model": str(tmp_path)})
    export(tmp_path / "checkpoint-30", tmp_path / "notes")
    card = ModelCard.load(tmp_path / "notes" / "README.md")
    assert card.data.license == "unknown"
    assert card.data.base_model is None
    assert "Not recorded." in card.text
    assert str(tmp_path.parent) not in card.content


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, in_parts=False)
    checkpoint = tmp_path / "checkpoint-30"
    with pytest.raises(ConfigError, match="is no folder"):
        export(tmp_path / "checkpoint-31", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"is no checkpoint: .* needs no export"):
        export(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="exists: give a folder that does not"):
        export(checkpoint, tmp_path)
    (checkpoint / "model.safetensors").write_bytes(
        b"0" * (checkpoint / "model.safetensors").stat().st_size
    )
    with pytest.raises(
        CheckpointError, match=r"the contents of model\.safetensors are not what was written"
    ):
        export(checkpoint, tmp_path / "out")
    # ZeRO-3 may leave no whole weights.
    source = checkpoint.rename(partial_folder(tmp_path) / "checkpoint-31")
    for name in ("model.safetensors", MARKER):
        (source / name).unlink()
    publish(source, tmp_path)
    with pytest.raises(
        ConfigError, match=r"holds no weights that can be read here.*zero_to_fp32\.py"
    ):
        export(tmp_path / "checkpoint-31", tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""``atommem train export CHECKPOINT --out DIR``: one Hugging Face folder of any checkpoint, on a machine without GPUs.

Weights are copied file by file of the result (``--max_shard_size``), whether they lie in safetensors or in the parts
that the processes of an FSDP run wrote: those of one such file are in memory at a time, twice while it is written.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers.trainer import TRAINER_STATE_NAME

from atommem.arguments import Parser
from atommem.errors import ConfigError
from atommem.train.resume.checkpoint import check_whole, load_training_args
from atommem.train.resume.checkpoint_files import MARKER
from atommem.train.resume.faults import CheckpointError, why_not_written
from atommem.train.resume.hub import STATE_FILES
from atommem.train.resume.model_card import UNKNOWN, save_model_card
from atommem.train.resume.sharded import ALONE, MODEL_FOLDER, is_sharded

_MADE_ANEW = (*STATE_FILES, "README.md", "*.safetensors", "*.safetensors.index.json")
"""Files of a checkpoint that are not copied as they are."""

Load = Callable[[Sequence[str]], dict[str, torch.Tensor]]


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem train export``.

    Raises:
        AtomMemError: The checkpoint is damaged or none, or the folder cannot be written.
    """
    parser = Parser(prog="atommem train export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="A checkpoint-N folder.")
    parser.add_argument(
        "--out", type=Path, required=True, help="The model folder to make; must not exist."
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), help="Default: as it was saved."
    )
    parser.add_argument(
        "--license", default=UNKNOWN, help="The model's licence for its card (default: unknown)."
    )
    parser.add_argument(
        "--max_shard_size", default="5GB", help="Largest file of weights (default: 5GB)."
    )
    given = parser.parse_args(list(argv))
    dtype = getattr(torch, given.dtype) if given.dtype else None
    export(given.checkpoint, given.out, dtype, given.license, given.max_shard_size)
    call = [
        "atommem",
        "eval",
        "--policy",
        str(given.out),
        "--data",
        "TASKS",
        "--out",
        str(given.out / "eval"),
    ]
    print(f"saved to {given.out}; evaluate it: {shlex.join(call)}")
    return 0


def export(
    checkpoint: Path,
    out: Path,
    dtype: torch.dtype | None = None,
    license_id: str = UNKNOWN,
    max_shard_size: str = "5GB",
) -> None:
    """Make the model folder `out` of `checkpoint`; it is there as a whole or not at all.

    Args:
        checkpoint: Of any trainer here; a sharded one too.
        out: Does not exist yet.
        dtype: Of the weights; None keeps what was saved.
        license_id: For the card.
        max_shard_size: Largest file of weights, such as ``5GB``.

    Raises:
        ConfigError: `checkpoint` is none, has no weights, or `out` exists.
        CheckpointError: The checkpoint is damaged, or there is no room for its weights.
    """
    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint} is no folder: give a checkpoint-N folder of a run.")
    if out.exists():
        raise ConfigError(f"{out} exists: give a folder that does not.")
    if not any((checkpoint / name).exists() for name in (TRAINER_STATE_NAME, MARKER)):
        raise ConfigError(
            f"{checkpoint} is no checkpoint: give a checkpoint-N folder. The model of a finished run needs no export."
        )
    check_whole(checkpoint)
    shapes, load = (_of_parts if is_sharded(checkpoint) else _of_safetensors)(checkpoint)
    # Under the name that its card has; whoever is stopped here leaves nothing under `out` itself.
    partial = out.absolute().parent / f".partial-{out.name}" / out.name
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for path in checkpoint.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in _MADE_ANEW):
                shutil.copyfile(path, partial / path.name)
        _write_weights(partial, shapes, load, dtype, max_shard_size)
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        save_model_card(partial, load_training_args(checkpoint), state, license_id)
        partial.rename(out)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{checkpoint} could not be exported: {why_not_written(error, out)}."
        ) from error
    finally:
        shutil.rmtree(partial.parent, ignore_errors=True)


def _write_weights(
    folder: Path,
    shapes: Mapping[str, torch.Tensor],
    load: Load,
    dtype: torch.dtype | None,
    max_shard_size: str,
) -> None:
    adapter = (folder / "adapter_config.json").is_file()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if not adapter else {}
    tied = config.get("tie_word_embeddings") and "model.embed_tokens.weight" in shapes
    kept = {
        name: shapes[name].to(dtype) for name in shapes if not (tied and name == "lm_head.weight")
    }
    pattern = "adapter_model{suffix}.safetensors" if adapter else "model{suffix}.safetensors"
    size: Any = (
        sum(tensor.nbytes for tensor in kept.values()) + 1 if adapter else max_shard_size
    )  # peft reads one file
    plan = split_torch_state_dict_into_shards(kept, filename_pattern=pattern, max_shard_size=size)
    for file, names in plan.filename_to_tensors.items():
        # No name holds them: they are freed before the next ones are loaded.
        save_file(
            {
                name: tensor.to(dtype or tensor.dtype).contiguous()
                for name, tensor in load(names).items()
            },
            folder / file,
            metadata={"format": "pt"},
        )
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2) + "\n", encoding="utf-8"
        )
    if config:
        config["dtype"] = str(next(iter(kept.values())).dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _of_parts(checkpoint: Path) -> tuple[dict[str, torch.Tensor], Load]:
    """Shapes of the weights that an FSDP run's processes wrote, and what loads some of them."""
    reader = dcp.FileSystemReader(checkpoint / MODEL_FOLDER)
    found = reader.read_metadata().state_dict_metadata
    shapes = {
        name.removeprefix("model."): torch.empty(
            data.size, dtype=data.properties.dtype, device="meta"
        )
        for name, data in found.items()
        if isinstance(data, TensorStorageMetadata)
    }

    def load(names: Sequence[str]) -> dict[str, torch.Tensor]:
        weights = {name: torch.empty_like(shapes[name], device="cpu") for name in names}
        with ALONE():
            dcp.load({"model": weights}, storage_reader=reader, no_dist=True)
        return weights

    return shapes, load


def _of_safetensors(checkpoint: Path) -> tuple[dict[str, torch.Tensor], Load]:
    """Shapes of the weights in a checkpoint's safetensors files, and what loads some of them."""
    shapes, files = {}, {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                shapes[name], files[name] = file.get_tensor(name).to("meta"), path
    if not files:
        raise ConfigError(
            f"{checkpoint} holds no weights that can be read here. For DeepSpeed set zero3_save_16bit_model in the "
            "launcher's file, or use the zero_to_fp32.py that it left there."
        )

    def load(names: Sequence[str]) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = {}
        for path in {files[name]: None for name in names}:
            with safe_open(path, framework="pt") as file:
                weights |= {name: file.get_tensor(name) for name in names if files[name] == path}
        return weights

    return shapes, load

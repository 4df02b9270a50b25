"""Parts ``lora`` and ``fsdp2``: the real command with random weights.

Two updates (FSDP2: full weights, a world of one) of `configs/train/qwen3_0.6b_lora_1gpu.yaml` with
local sampling and smaller sizes, and the most memory of each phase beside what `--dry_run` said.
Rewards are random, so that there is something to train on. On a CPU the sharded run has two
processes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measured_training
import torch
from part import Part

from atommem.train.dry_run.costs import CUDA_CONTEXT
from atommem.train.train_cli import main as train_main

WITHIN = 0.1
FULL = ("--use_peft", "false", "--learning_rate", "1e-6")
MODES = {
    "lora": ("--dtype", "bfloat16"),
    "full": ("--dtype", "float32", *FULL),  # of the parts with vLLM
    "fsdp2": ("--dtype", "bfloat16", *FULL, "--beta", "0.01"),
}
TINY = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 384}


def flags_of(part: Part, mode: str, folder: Path) -> list[str]:
    # Batch, group, completion, chunk and micro-batch; words of a document.
    sizes, words = ("4", "2", "4", "800", "512"), 90
    architecture: dict[str, Any] = {**measured_training.SMALL, **TINY}
    if not part.tiny:
        sizes, words = ("16", "8", "96", "2000", "16384"), 1000
        architecture = measured_training.shipped("qwen3-0.6b")
    model = measured_training.make_model(architecture, torch.bfloat16, str(part.device))
    named = measured_training.make_inputs(folder, model, tasks=12, documents=4, words=words)
    batch, group, completion, chunk, budget = sizes
    fixed = """--config configs/train/qwen3_0.6b_lora_1gpu.yaml --use_vllm false --embedder hashing
        --templates compact --max_reads 0 --report_to none --save_strategy no --disable_tqdm true
        --warmup_steps 0"""
    own = f"""--per_device_train_batch_size {batch} --num_generations {group} --max_steps 2
        --max_completion_length {completion} --chunk_tokens {chunk} --token_budget {budget}"""
    flags = [*fixed.split(), *named, "--output_dir", str(folder / "run"), *own.split()]
    return [*flags, *(["--use_cpu"] if part.tiny else []), *MODES[mode]]


def estimate(part: Part, mode: str, flags: list[str], folder: Path) -> dict[str, float]:
    """What the dry run says, by phase; its device decides on nothing but the CUDA context."""
    supposed = {
        "--dry_run_json": str(folder / "plan.json"),
        "--dry_run_launcher": "fsdp2" if mode == "fsdp2" else "single_gpu",
        "--dry_run_processes": "2" if mode == "fsdp2" and part.tiny else "1",
        "--dry_run_device": "cpu" if part.tiny else "h100",
        "--dry_run_completion_tokens": flags[flags.index("--max_completion_length") + 1],
    }
    train_main(["grpo", *flags, "--dry_run", *(word for pair in supposed.items() for word in pair)])
    phases = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["memory"]["phases"]
    context = 0.0 if part.tiny else CUDA_CONTEXT
    return {"rollout": phases.pop("rollout") - context, "training": max(phases.values()) - context}


def sharded(part: Part, flags: list[str], folder: Path) -> dict[str, Any]:
    out, script = folder / "found.json", measured_training.__file__
    if part.tiny:
        launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        launcher += [script, str(out), "--cpu_fsdp2"]
    else:
        launcher = ["accelerate.commands.launch", "--config_file", "configs/accelerate/fsdp2.yaml"]
        launcher += ["--num_processes", "1", "--main_process_port", "0", script, str(out)]
    subprocess.run([sys.executable, "-m", *launcher, "--", *flags], check=True)
    return json.loads(out.read_text(encoding="utf-8"))


def main() -> None:
    part = Part("mode")
    mode = part.arguments.mode
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = flags_of(part, mode, folder)
        expected = estimate(part, mode, flags, folder)
        if part.device.type == "cuda":
            torch.cuda.empty_cache()
        found = sharded(part, flags, folder) if mode == "fsdp2" else measured_training.run(flags)
    for update in found["updates"]:
        part.add(
            f"update {update['step']:.0f}",
            ok=math.isfinite(update["loss"]) and 0 < update["grad_norm"] < math.inf,
            loss=update["loss"], grad_norm=update["grad_norm"], rollout_s=update["seconds/rollout"],
            train_s=update["seconds/train"], raw_over_computed=update["packing_ratio"],
        )  # fmt: skip
    for phase, bytes_ in expected.items():
        took = found["bytes"].get(phase)  # none on a CPU
        off = None if took is None else bytes_ / took - 1
        ok = None if off is None else abs(off) <= WITHIN
        figures = {"measured_gb": took and took / 1e9, "dry_run_gb": bytes_ / 1e9, "off": off}
        part.add(f"most memory in {phase}", ok=ok, **figures)


if __name__ == "__main__":
    main()

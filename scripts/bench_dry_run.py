"""Bars of `atommem train --dry_run`: memory within 10% of real runs on CPUs, every shipped recipe in under 10 s.

    python scripts/bench_dry_run.py [--quick] [--case NAME ...]

Memory: a Qwen3 model of 22M parameters with random weights is trained for two updates by the real command: in full,
with gradient checkpointing and a KL reference, with LoRA, and on two processes (gloo) under DDP and under FSDP2 with a
KL reference; in float32. Held against the estimate is the most that torch's allocator had given out in the rollout and
in the rest of the update (`measured_training.py`): it does not depend on the machine's load, as resident memory does,
and says nothing of what the interpreter and libraries take. No estimate for a GPU has been held against one: that is
`scripts/gpu_check`.

Time: CPU seconds of the whole command in a fresh interpreter, so that other work on the machine does not count.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measured_training import SMALL, make_inputs, make_model
from quick import add_quick, command_line, last_line

ROOT = Path(__file__).resolve().parent.parent
SECONDS, WITHIN = 10.0, 0.1
COMPLETION = "16"
FLAGS = [
    *(
        "--templates",
        "compact",
        "--embedder",
        "hashing",
        "--chunk_tokens",
        "400",
        "--rollout_batch_size",
        "4",
    ),
    *(
        "--max_reads",
        "0",
        "--scratchpad_tokens",
        "32",
        "--retrieve_k",
        "1",
        "--micro_batch_tokens",
        "1024",
    ),
    *("--num_generations", "2", "--per_device_train_batch_size", "4", "--max_steps", "2"),
    *("--max_completion_length", COMPLETION, "--learning_rate", "1e-5", "--save_strategy", "no"),
    *(
        "--report_to",
        "none",
        "--disable_tqdm",
        "true",
        "--use_cpu",
        "--gradient_checkpointing",
        "false",
    ),
]
# Flags, and the launcher of two processes. Each case is dominated by other parts.
CASES: dict[str, tuple[list[str], str | None]] = {
    "full": ([], None),
    "KL, checkpointed": (["--gradient_checkpointing", "true", "--beta", "0.01"], None),
    "LoRA": (["--use_peft", "--lora_target_modules", "all-linear", "--lora_dropout", "0"], None),
    "DDP": ([], "ddp"),
    "FSDP2, KL": (["--beta", "0.01"], "fsdp2"),
}


def compare(case: str, inputs: tuple[str, ...], folder: Path) -> dict[str, list[float]]:
    """For both phases of one case: megabytes estimated and measured, and by how much they differ."""
    own, launcher = CASES[case]
    plan, found = folder / "plan.json", folder / "found.json"
    flags = [*inputs, *FLAGS, *own, "--output_dir", str(folder / "run")]
    dry = [
        "--dry_run",
        "--dry_run_device",
        "cpu",
        "--dry_run_completion_tokens",
        COMPLETION,
        "--bf16",
        "false",
    ]
    dry += ["--dry_run_launcher", launcher, "--dry_run_processes", "2"] if launcher else []
    _call(["-m", "atommem.cli", "train", "grpo", *flags, *dry, "--dry_run_json", str(plan)])
    script = [str(ROOT / "scripts" / "measured_training.py"), str(found)]
    script += ["--cpu_fsdp2"] if launcher == "fsdp2" else []
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"] if launcher else []
    _call([*two, *script, "--", *flags])
    phases = json.loads(plan.read_text(encoding="utf-8"))["memory"]["phases"]
    took = json.loads(found.read_text(encoding="utf-8"))["bytes"]
    estimated = {"rollout": phases.pop("rollout"), "training": max(phases.values())}
    return {
        phase: [round(most / 1e6, 1), round(took[phase] / 1e6, 1), round(most / took[phase] - 1, 4)]
        for phase, most in estimated.items()
    }


def memory_bar(cases: list[str]) -> dict[str, dict[str, list[float]]]:
    """Print and return estimates beside measurements, case by case."""
    print(f"{'most memory, MB':<30}{'dry run':>10}{'measured':>10}{'off':>8}", flush=True)
    memory = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            inputs = make_inputs(Path(name), make_model(SMALL), tasks=6, documents=8, words=90)
            memory[case] = compare(case, inputs, Path(name))
        for phase, (estimated, measured, off) in memory[case].items():
            print(
                f"{case + ', ' + phase:<30}{estimated:>10.1f}{measured:>10.1f}{off:>8.1%}",
                flush=True,
            )
    return memory


def recipes_bar(quick: bool) -> dict[str, float]:
    """Print and return the CPU seconds of every recipe's dry run."""
    print(f"{'dry run of a recipe':<30}{'CPU s':>10}", flush=True)
    seconds = {}
    for path in sorted((ROOT / "configs" / "train").glob("*.yaml"))[: 1 if quick else None]:
        stage = path.stem.split("_")[0] if path.stem.startswith(("sft", "async")) else "grpo"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _call(["-m", "atommem.cli", "train", stage, "--config", str(path), "--dry_run"])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        seconds[path.stem] = round(used, 1)
        print(f"{path.stem:<30}{used:>10.1f}", flush=True)
    return seconds


def _call(arguments: list[str]) -> None:
    defaults = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    environment = {
        **os.environ,
        **defaults,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")]),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:6])} ... failed:\n{done.stderr[-3000:]}")


def main(argv: list[str] | None = None) -> int:
    """Print both tables and the JSON line; 0 when both bars hold."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--case", nargs="+", choices=CASES, default=list(CASES), help="only these (default: all)"
    )
    parser.add_argument(
        "--only", choices=["memory", "recipes"], help="one of the two bars (default: both)"
    )
    add_quick(parser)
    arguments = parser.parse_args(argv)
    cases = ["full"] if arguments.quick else arguments.case
    memory = memory_bar(cases) if arguments.only != "recipes" else {}
    seconds = recipes_bar(arguments.quick) if arguments.only != "memory" else {}
    worst = max(
        (abs(off) for found in memory.values() for _, _, off in found.values()), default=0.0
    )
    holds = worst <= WITHIN and all(value < SECONDS for value in seconds.values())
    return last_line(
        {
            "bench": "dry_run",
            "megabytes": memory,
            "worst": worst,
            "cpu_seconds": seconds,
            "holds": holds,
        }
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())

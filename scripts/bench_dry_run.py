"""Bars of `atommem train --dry_run`: every shipped recipe in under 10 s, and memory within 20% of a real CPU run.

    python scripts/bench_dry_run.py

A Qwen3 model of 22M parameters with random weights is trained for a few updates by the real command, in a process of
its own that watches its resident memory from before the model is loaded. What it took at its peak is held against what
the dry run said. A random policy earns nothing, and equal rewards train nothing, so rewards are drawn at random; the
work is that of any run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS, WITHIN = 10.0, 0.2
WORDS = 4000
COMPLETION = 32
# The same small run in three ways; each is dominated by other parts.
CASES: dict[str, list[str]] = {
    "full": [],
    "full, checkpointed, reference": ["--gradient_checkpointing", "true", "--beta", "0.01"],
    "LoRA": ["--use_peft", "--lora_target_modules", "all-linear", "--lora_dropout", "0"],
}


def recipe_seconds(path: Path) -> float:
    """Wall-clock of a dry run of a recipe in a fresh interpreter; infinite when it fails."""
    stage = path.stem.split("_")[0] if path.stem.startswith(("sft", "async")) else "grpo"
    started = time.perf_counter()
    command = [sys.executable, "-m", "atommem.cli", "train", stage, "--config", str(path), "--dry_run"]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return float("inf")
    return time.perf_counter() - started


def make_inputs(folder: Path) -> list[str]:
    """Model, tokenizer and tasks of random words; the flags that name them."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from atommem.envs.task import Document, Question, Task
    from atommem.envs.task_files import save_tasks

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{index}": index for index in range(3, WORDS)}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rng = random.Random(0)

    def text(count: int) -> str:
        return " ".join(f"w{rng.randrange(3, WORDS)}" for _ in range(count))

    tasks = [
        Task(f"t{index}", (Question(text(8), ("w3",)),), tuple(Document("", text(90)) for _ in range(8)))
        for index in range(6)
    ]
    save_tasks(tasks, folder / "tasks.jsonl")
    return [
        *("--model_name_or_path", str(folder / "model"), "--data", str(folder / "tasks.jsonl")),
        *(
            "--templates",
            "compact",
            "--embedder",
            "hashing",
            "--chunk_tokens",
            "800",
            "--rollout_batch_size",
            "4",
            "--max_reads",
            "0",
        ),
        *("--scratchpad_tokens", "32", "--retrieve_k", "1", "--micro_batch_tokens", "1024"),
        *("--num_generations", "4", "--per_device_train_batch_size", "8", "--max_steps", "2"),
        *("--max_completion_length", str(COMPLETION), "--learning_rate", "1e-5", "--save_strategy", "no"),
        *("--report_to", "none", "--disable_tqdm", "true", "--use_cpu"),
    ]


class Watch:
    """The highest resident memory of this process by phase, in bytes above that at the beginning."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._lock = threading.Lock()
        self.phase = "loading"
        self.peaks: dict[str, int] = {}
        self.baseline = self._process.memory_info().rss
        threading.Thread(target=self._run, daemon=True).start()

    def look(self) -> None:
        """Take one measurement."""
        used = self._process.memory_info().rss - self.baseline
        with self._lock:
            self.peaks[self.phase] = max(used, self.peaks.get(self.phase, 0))

    def _run(self) -> None:
        while True:
            self.look()
            time.sleep(0.003)


def measured_run(flags: list[str], out: Path) -> None:
    """Train by the command, in this process, and write the peaks."""
    import torch

    from atommem.environment import Score
    from atommem.envs.longdoc.environment import LongDocEnvironment
    from atommem.train.rollout.local_backend import LocalBackend
    from atommem.train.train_cli import main as train_main

    rng = random.Random(0)

    async def score(self: LongDocEnvironment) -> Score:
        return Score(rng.random(), (), {})

    LongDocEnvironment.score = score  # type: ignore[method-assign]
    torch.nn.Linear(8, 8)(torch.ones(8, 8)).sum().backward()
    watch = Watch()
    rollout: Callable[..., Any] = LocalBackend.rollout

    @contextmanager
    def marked(self: LocalBackend, trainer: Any) -> Any:
        watch.phase = "rollout"
        with rollout(self, trainer):
            yield
        watch.look()
        watch.phase = "training"

    LocalBackend.rollout = marked  # type: ignore[method-assign]
    train_main(flags)
    out.write_text(json.dumps(watch.peaks), encoding="utf-8")


def compare(case: str, flags: list[str], folder: Path) -> dict[str, float]:
    """Estimate and measurement of one case, in megabytes."""
    plan, peaks = folder / "plan.json", folder / "peaks.json"
    flags = [*flags, *CASES[case], "--output_dir", str(folder / "run")]
    dry = ["--dry_run", "--dry_run_device", "cpu", "--dry_run_completion_tokens", str(COMPLETION)]
    _call(["-m", "atommem.cli", "train", "grpo", *flags, *dry, "--dry_run_json", str(plan)])
    _call([__file__, "--measure", str(peaks), "--", *flags])
    estimated, measured = json.loads(plan.read_text())["memory"], json.loads(peaks.read_text())
    return {
        "estimated": estimated["peak"] / 1e6,
        "measured": max(measured["rollout"], measured["training"]) / 1e6,
        "estimated_rollout": estimated["phases"]["rollout"] / 1e6,
        "measured_rollout": measured["rollout"] / 1e6,
        "estimated_training": estimated["phases"]["training"] / 1e6,
        "measured_training": measured["training"] / 1e6,
    }


def _call(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=_environment(), check=True, stdout=subprocess.DEVNULL)


def _environment() -> dict[str, str]:
    # glibc keeps freed blocks below its threshold, which grows while it runs: what is freed has to be seen as freed.
    return {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def memory_bar(cases: list[str]) -> dict[str, dict[str, float]]:
    """Print and return estimates beside measurements, case by case."""
    print(f"{'peak memory, MB':<32}{'dry run':>10}{'measured':>10}{'difference':>12}   (rollout, training)", flush=True)
    memory: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        flags = make_inputs(Path(name))
        for case in cases:
            found = memory[case] = compare(case, flags, Path(name))
            off = found["estimated"] / found["measured"] - 1
            print(
                f"{case:<32}{found['estimated']:>10.0f}{found['measured']:>10.0f}{off:>12.1%}   "
                f"({found['estimated_rollout']:.0f} / {found['measured_rollout']:.0f}, "
                f"{found['estimated_training']:.0f} / {found['measured_training']:.0f})",
                flush=True,
            )
    return memory


def recipes_bar() -> dict[str, float]:
    """Print and return the seconds of every recipe's dry run; one that takes too long gets a second try."""
    print(f"{'dry run of a recipe':<32}{'seconds':>10}", flush=True)
    seconds = {}
    for path in sorted((ROOT / "configs" / "train").glob("*.yaml")):
        taken = recipe_seconds(path)
        # Too long may be other work on the machine, or files that are read for the first time.
        seconds[path.stem] = round(taken if taken < SECONDS else min(taken, recipe_seconds(path)), 1)
        print(f"{path.stem:<32}{seconds[path.stem]:>10.1f}", flush=True)
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Print both tables and the JSON line; 0 when both bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these (default: all)")
    parser.add_argument("--only", choices=["memory", "recipes"], help="one of the two bars (default: both)")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        measured_run(arguments.flags, arguments.measure)
        return 0
    memory = memory_bar(arguments.case or list(CASES)) if arguments.only != "recipes" else {}
    seconds = recipes_bar() if arguments.only != "memory" else {}
    worst = max((abs(found["estimated"] / found["measured"] - 1) for found in memory.values()), default=0.0)
    holds = worst <= WITHIN and all(value < SECONDS for value in seconds.values())
    figures = {case: {name: round(value, 1) for name, value in found.items()} for case, found in memory.items()}
    print(json.dumps({"megabytes": figures, "worst": round(worst, 3), "seconds": seconds, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())

"""Bar: a run of 30 updates that is killed (SIGKILL) at ten random moments ends as one that was left alone.

The real command (`atommem train grpo`, a tiny policy that samples real episodes) runs once without and once with
kills; after each it is started again with ``--resume``. Compared are the final parameters (largest difference at most
1e-6), the tasks of every update, and the rewards; no unfinished checkpoint may be left.

Usage: bench_resume.py [--kills N] [--updates N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.train.resume.checkpoint_files import PARTIAL, complete_checkpoints
from atommem.train.watch.callbacks import METRICS_FILE, read_metrics

TOLERANCE = 1e-6
TASKS = 20
ELEMENTS = [
    "<final_answer>\\boxed{c0}</final_answer>",
    "<final_answer>\\boxed{c1}</final_answer>",
    "<create_memory>a fact</create_memory>",
    "<read_memory>a fact</read_memory>",
    "<update_scratchpad>c0</update_scratchpad>",
    "<delete_memory>Memory 1</delete_memory>",
]


def make_inputs(folder: Path) -> None:
    """A random policy whose tokens are whole actions, so that it acts, answers and learns; and tasks for it."""
    words = ["<unk>", *ELEMENTS, "c0", "c1", "city", "<eos>", "<pad>"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
    )
    set_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=256,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            initializer_range=0.1,
        )
    )
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    memory = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=8)
    embedder = EmbedderConfig(embedder="hashing", embedder_dim=16)
    save_config(folder / "model", memory, embedder, environment_config("longdoc", chunking="documents", max_reads=0))
    tasks = [
        Task(
            f"task-{i}", (Question("which city", (f"c{i % 2}",)),), (Document("", f"c{i % 2} city"), Document("", "c1"))
        )
        for i in range(TASKS)
    ]
    save_tasks(tasks, folder / "tasks.jsonl")


def command(folder: Path, out: Path, updates: int, seed: int) -> list[str]:
    """LoRA with dropout, so that the random number generators count as well."""
    flags = f"""--model_name_or_path {folder / "model"} --data {folder / "tasks.jsonl"} --output_dir {out} --resume
        --max_steps {updates} --per_device_train_batch_size 16 --num_generations 4 --max_completion_length 4
        --use_peft --lora_r 4 --lora_dropout 0.1 --lora_target_modules q_proj v_proj
        --learning_rate 1e-2 --save_steps 2 --save_total_limit 2 --save_traces true --seed {seed}
        --use_cpu --report_to none --disable_tqdm true"""
    return [sys.executable, "-m", "atommem.train.train_cli", "grpo", *flags.split()]


def launch(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the command; its output goes to the end of `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            arguments, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


def wait_for_training(process: subprocess.Popen[bytes], out: Path) -> bool:
    """Wait until the process has begun to train (it then rewrites its metrics file); False if it ended before."""
    file = out / METRICS_FILE
    before = file.stat().st_mtime_ns if file.exists() else None
    while process.poll() is None:
        if file.exists() and file.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def uninterrupted(arguments: list[str], out: Path, log: Path) -> float:
    """Run to the end; returns the seconds that training took."""
    process = launch(arguments, log)
    wait_for_training(process, out)
    started = time.perf_counter()
    if process.wait() != 0:
        raise SystemExit(log.read_text()[-4000:])
    return time.perf_counter() - started


def logged_updates(out: Path) -> int:
    """Updates in the run's log."""
    return sum("loss" in entry for entry in read_metrics(out / METRICS_FILE))


def killed(arguments: list[str], out: Path, log: Path, moments: list[float]) -> list[int]:
    """Run, kill, resume, for each of `moments`; returns the updates that were logged at each kill.

    A moment is counted in updates since the process began to train: 2.7 is after two, and then 0.7 of the time that
    an update took.
    """
    reached = []
    for moment in moments:
        process = launch(arguments, log)
        if not wait_for_training(process, out):
            raise SystemExit(f"ended before it was killed:\n{log.read_text()[-4000:]}")
        first, began, ended = logged_updates(out), time.perf_counter(), time.perf_counter()
        while process.poll() is None and logged_updates(out) < first + int(moment):
            time.sleep(0.005)
            ended = time.perf_counter()
        time.sleep(moment % 1 * (ended - began) / max(1, int(moment)))
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise SystemExit("the run ended before it could be killed: give more --updates")
        reached.append(logged_updates(out))
        print(f"  killed {len(reached):>2}: {moment:.2f} updates after its start, {reached[-1]} in the log", flush=True)
    uninterrupted(arguments, out, log)
    return reached


def tasks_by_update(out: Path) -> dict[int, list[str]]:
    """The episodes (task and sample) of every update that was kept."""
    return {
        int(folder.name.removeprefix("step-")): sorted(path.stem for path in folder.iterdir())
        for folder in (out / "traces").iterdir()
    }


def compare(whole: Path, parts: Path, updates: int) -> dict[str, Any]:
    """What is the same in both output folders, and how far the parameters are apart."""
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (parts, whole))
    assert ours.keys() == theirs.keys()
    rewards = [
        [(entry["step"], entry["reward"]) for entry in read_metrics(folder / METRICS_FILE) if "reward" in entry]
        for folder in (parts, whole)
    ]
    tasks = tasks_by_update(parts)
    folders = {path.name for path in parts.glob("checkpoint-*")}
    return {
        "parameters": len(ours),
        "max_difference": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
        "largest_parameter": max(float(theirs[name].abs().max()) for name in theirs if "lora_B" in name),
        "same_tasks": tasks == tasks_by_update(whole) and sorted(tasks) == list(range(1, updates + 1)),
        "same_rewards": rewards[0] == rewards[1] and len(rewards[0]) == updates,
        "distinct_rewards": len({reward for _, reward in rewards[0]}),
        "partial_checkpoints": len(folders - {path.name for path in complete_checkpoints(parts)})
        + (parts / PARTIAL).exists(),
    }


def main() -> int:
    """Print what happened and the JSON line; 0 when the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_inputs(folder)
        whole, parts, log = folder / "whole", folder / "parts", folder / "log.txt"
        seconds = uninterrupted(command(folder, whole, given.updates, given.seed), whole, log)
        print(f"{given.updates} updates without interruption: {seconds:.1f} s of training", flush=True)
        rng = random.Random(given.seed)
        # Up to two updates are lost with each kill: so the last ones come near the end.
        moments = [rng.uniform(0, 2 * given.updates / given.kills) for _ in range(given.kills)]
        reached = killed(command(folder, parts, given.updates, given.seed), parts, log, moments)
        figures = compare(whole, parts, given.updates)
    figures |= {"kills": len(reached), "updates_at_kill": reached, "tolerance": TOLERANCE}
    figures["holds"] = bool(
        figures["max_difference"] <= TOLERANCE
        and figures["same_tasks"]
        and figures["same_rewards"]
        and figures["distinct_rewards"] > 3
        and figures["partial_checkpoints"] == 0
    )
    for name, value in figures.items():
        print(f"{name:<20} {value}")
    print(json.dumps(figures))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

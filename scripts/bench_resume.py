"""Does a training run that is killed (SIGKILL) at random moments end as one that was left alone?

    OMP_NUM_THREADS=1 python scripts/bench_resume.py [--forms single two two-or-one] [--kills 20]
    [--updates 40]

`atommem train grpo` with a tiny policy that samples real episodes is killed and started again with
``--resume``, in three forms, each against a run without kills:

    single      one process, LoRA with dropout: parameters within 1e-6
    two         FSDP2 on two gloo processes, sharded checkpoints: parameters exactly equal
    two-or-one  the same, resumed by turns on two processes and on one: parameters within 1e-5

Tasks and rewards of every update must be the same, and no unfinished checkpoint may be left.
accelerate takes these CPU processes for accelerators, which FSDP2 needs; NCCL is not tested.
"""

import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import last_line, read_options
from safetensors.torch import load_file

from atommem.envs.task_files import save_tasks
from atommem.servers.vllm_process import free_port
from atommem.train.checkpoints import list_checkpoints
from atommem.train.console import METRICS_FILE, read_metrics
from tests.train.harness import make_tasks, save_model

TOLERANCES = {"single": 1e-6, "two": 0.0, "two-or-one": 1e-5}
RANKS = {"single": [1], "two": [2], "two-or-one": [2, 1]}
EPISODES, SECONDS_APART = 16, 0.05
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["atommem.train.stages", "atommem.cli", "tests.train.shipped.cpu_ranks"]
)


class Command:
    """`atommem train grpo` on one or two processes, into the folder `out`."""

    def __init__(self, folder: Path, out: Path, form: str, updates: int, seed: int) -> None:
        self.out, self.log, self._is_sharded = out, folder / f"{out.name}.txt", form != "single"
        flags = f"""--model_name_or_path {folder / "model"} --data {folder / "tasks.jsonl"}
            --output_dir {out} --resume --max_steps {updates} --num_generations 4
            --max_completion_length 4 --save_steps 2 --save_total_limit 2 --save_traces true
            --seed {seed} --use_cpu --report_to none --disable_tqdm true
            --dataloader_pin_memory false"""
        if self._is_sharded:
            flags += " --learning_rate 1e-3"
        else:
            flags += " --use_peft --lora_r 4 --learning_rate 1e-2"
            flags += " --lora_target_modules q_proj v_proj"
        self._flags = flags.split()

    def start(self, ranks: int) -> list[Any]:
        """Start the processes, forked from one that has imported the libraries."""
        flags = [*self._flags, "--per_device_train_batch_size", str(EPISODES // ranks)]
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        run = []
        for rank in range(ranks):
            own = {**world, "WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = (flags, own if self._is_sharded else {}, self.log)
            run.append(FORKS.Process(target=run_rank, args=arguments))
            run[-1].start()
        return run

    def finish(self, ranks: int) -> None:
        if exit_codes(self.start(ranks)) != [0] * ranks:
            raise SystemExit(self.log.read_text()[-4000:])

    def kill(self, ranks: int, moment: float, rng: random.Random) -> int:
        """Start it, kill it `moment` updates after training began; returns the updates logged."""
        run = self.start(ranks)
        if not wait_for_training(run[0], self.out):
            raise SystemExit(f"ended before it was killed:\n{self.log.read_text()[-4000:]}")
        first = logged_updates(self.out)
        began = ended = time.perf_counter()
        while run[0].is_alive() and logged_updates(self.out) < first + int(moment):
            time.sleep(0.005)
            ended = time.perf_counter()
        time.sleep(moment % 1 * (ended - began) / max(1, int(moment)))
        for process in rng.sample(run, len(run)):
            process.kill()
            time.sleep(rng.uniform(0, SECONDS_APART) if len(run) > 1 else 0)
        if exit_codes(run)[0] == 0:
            raise SystemExit("the run ended before it could be killed: give more --updates")
        return logged_updates(self.out)


def exit_codes(run: list[Any]) -> list[int]:
    for process in run:
        process.join()
    return [process.exitcode for process in run]


def run_rank(flags: Sequence[str], world: dict[str, str], log: Path) -> None:
    """One process of the command, under FSDP2 if it is part of a `world`."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if world:
        from tests.train.shipped.cpu_ranks import launch_as_fsdp2

        os.environ.update(world)
        launch_as_fsdp2()
    from atommem.cli import main as atommem

    sys.exit(atommem(["train", "grpo", *flags]))


def wait_for_training(process: Any, out: Path) -> bool:
    """Wait until the process rewrites its metrics file; False if it ends before."""
    file = out / METRICS_FILE
    before = file.stat().st_mtime_ns if file.exists() else None
    while process.is_alive():
        if file.exists() and file.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def logged_updates(out: Path) -> int:
    return sum("loss" in entry for entry in read_metrics(out / METRICS_FILE))


def outcome(out: Path) -> dict[str, Any]:
    traces = sorted((out / "traces").iterdir())
    entries = read_metrics(out / METRICS_FILE)
    return {
        "tasks": {folder.name: sorted(path.stem for path in folder.iterdir()) for folder in traces},
        "rewards": [(entry["step"], entry["reward"]) for entry in entries if "reward" in entry],
    }


def measure(folder: Path, form: str, kills: int, updates: int, seed: int) -> dict[str, Any]:
    whole, parts = folder / f"{form}-whole", folder / f"{form}-parts"
    Command(folder, whole, form, updates, seed).finish(RANKS[form][0])
    command, rng = Command(folder, parts, form, updates, seed), random.Random(seed)
    ranks = itertools.cycle(RANKS[form])
    reached = []
    for _ in range(kills):
        # Up to two updates are lost with each kill, so the last kills come near the end.
        reached.append(command.kill(next(ranks), rng.uniform(0, 2 * updates / (kills + 2)), rng))
        print(f"  {form}: killed, {reached[-1]} updates in the log", flush=True)
    command.finish(next(ranks))
    file = next(whole.glob("*model.safetensors")).name
    ours, theirs = (load_file(out / file) for out in (parts, whole))
    difference = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    checkpoints = {path.name for path in parts.glob("checkpoint-*")}
    unfinished = checkpoints - {path.name for path in list_checkpoints(parts)}
    same = outcome(parts) == outcome(whole)
    rewards = [reward for _, reward in outcome(whole)["rewards"]]
    holds = difference <= TOLERANCES[form] and same and not unfinished
    holds &= len(rewards) == updates and len(set(rewards)) > 1
    found = {"updates_at_kill": reached, "difference": difference, "same_tasks_and_rewards": same}
    return found | {"unfinished_checkpoints": len(unfinished), "holds": holds}


def main() -> int:
    forms = ([*TOLERANCES], ["single", "two-or-one"])
    options = read_options(__doc__, forms=forms, kills=(20, 2), updates=(40, 8), seed=0)
    figures: dict[str, Any] = {"bench": "resume", "kills": options.kills}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))  # its tokens are whole actions, so that it acts and learns
        save_tasks(make_tasks(20), Path(scratch) / "tasks.jsonl")
        given = options.kills, options.updates, options.seed
        for form in options.forms:
            figures[form] = measure(Path(scratch), form, *given)
    return last_line(figures | {"holds": all(figures[form]["holds"] for form in options.forms)})


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    raise SystemExit(main())

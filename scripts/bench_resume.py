"""Bar: a run that is killed (SIGKILL) at random moments and resumed ends as one that was left alone.

The real command (`atommem train grpo`, a tiny policy that samples real episodes) is killed and started again with
``--resume``, in three forms, each against a run without kills:

    single      one process, LoRA with dropout: parameters within 1e-6
    two         FSDP2 on two gloo processes, sharded checkpoints, always resumed on two: parameters exactly equal
    two-or-one  the same, resumed by turns on one process and on two: parameters within 1e-5

Also compared are the tasks of every update and the rewards. No unfinished checkpoint may be left. Under FSDP2 the ranks
die up to 50 ms apart, the first of them at random. Then a checkpoint is damaged, in several ways, and each time both
processes have to name the file and leave every file as it is. accelerate offers FSDP2 to accelerators only: the bench
tells it that these CPU processes are some, so nothing here says how GPUs and NCCL behave. Every process is forked from
one that has imported the libraries and nothing more: a start is that of the command without its imports.

Usage: bench_resume.py [--forms single two two-or-one] [--kills N] [--updates N] [--seed N] [--quick]
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from safetensors.torch import load_file

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.servers.vllm_process import free_port
from atommem.train.checkpoints import PARTIAL, SHARDED_MODEL, list_checkpoints
from atommem.train.logs.console import METRICS_FILE, read_metrics

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.fakes import word_level
from tests.train.toys import make_model

TOLERANCES = {"single": 1e-6, "two": 0.0, "two-or-one": 1e-5}
TASKS = 20
EPISODES = 16
APART = 0.05
"""Longest time between the deaths of two ranks, seconds."""
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
    make_model(vocabulary=len(words), spread=0.1, width=32, head_dim=16).save_pretrained(
        folder / "model"
    )
    word_level(words, unk_token="<unk>").save_pretrained(folder / "model")
    memory = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=8)
    embedder = EmbedderConfig(embedder="hashing", embedder_dim=16)
    save_config(
        folder / "model",
        memory,
        embedder,
        environment_config("longdoc", chunking="documents", max_reads=0),
    )
    tasks = [
        Task(
            f"task-{i}",
            (Question("which city", (f"c{i % 2}",)),),
            (Document("", f"c{i % 2} city"), Document("", "c1")),
        )
        for i in range(TASKS)
    ]
    save_tasks(tasks, folder / "tasks.jsonl")


MODULES = [
    "atommem.train.stages",
    "atommem.cli",
    "torch.distributed.fsdp",
    "tests.train.shipped.cpu_ranks",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(MODULES)
Run = list[Any]
"""The processes of one start of the command."""


class Command:
    """`atommem train grpo` on one or two processes.

    Args:
        folder: Of the inputs and the log.
        out: The run's output folder.
        form: See the module.
        updates, seed: Settings of the run.
    """

    def __init__(self, folder: Path, out: Path, form: str, updates: int, seed: int) -> None:
        self.out, self.log, self._sharded = out, folder / f"{out.name}.txt", form != "single"
        flags = f"""--model_name_or_path {folder / "model"} --data {folder / "tasks.jsonl"} --output_dir {out} --resume
            --max_steps {updates} --num_generations 4 --max_completion_length 4 --save_steps 2 --save_total_limit 2
            --save_traces true --seed {seed} --use_cpu --report_to none --disable_tqdm true
            --dataloader_pin_memory false"""
        if self._sharded:
            flags += " --learning_rate 1e-3"
        else:  # LoRA with dropout, so that the random number generators count as well
            flags += " --use_peft --lora_r 4 --lora_dropout 0.1 --lora_target_modules q_proj v_proj --learning_rate 1e-2"
        self._flags = flags.split()

    def start(self, ranks: int) -> Run:
        """Start it; what its processes print goes to the end of the log."""
        flags = [*self._flags, "--per_device_train_batch_size", str(EPISODES // ranks)]
        world = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
        }
        run = []
        for rank in range(ranks):
            own = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} if self._sharded else {}
            run.append(FORKS.Process(target=worker, args=(flags, own, self.log)))
            run[-1].start()
        return run

    def finish(self, ranks: int) -> float:
        """Run to the end; returns the seconds that training took."""
        run = self.start(ranks)
        wait_for_training(run[0], self.out)
        started = time.perf_counter()
        if statuses(run) != [0] * ranks:
            raise SystemExit(self.log.read_text()[-4000:])
        return time.perf_counter() - started

    def kill(self, ranks: int, moment: float, rng: random.Random) -> int:
        """Start it and kill it; returns how many updates its log has by then.

        A moment is counted in updates since training began: 2.7 is after two, and then 0.7 of the time that an
        update took.
        """
        run = self.start(ranks)
        if not wait_for_training(run[0], self.out):
            raise SystemExit(f"ended before it was killed:\n{self.log.read_text()[-4000:]}")
        first, began, ended = logged_updates(self.out), time.perf_counter(), time.perf_counter()
        while run[0].is_alive() and logged_updates(self.out) < first + int(moment):
            time.sleep(0.005)
            ended = time.perf_counter()
        time.sleep(moment % 1 * (ended - began) / max(1, int(moment)))
        for process in rng.sample(run, len(run)):
            process.kill()
            time.sleep(rng.uniform(0, APART) if len(run) > 1 else 0)
        if statuses(run)[0] == 0:
            raise SystemExit("the run ended before it could be killed: give more --updates")
        return logged_updates(self.out)


def statuses(run: Run) -> list[int]:
    """The exit statuses of its processes, when all have ended."""
    for process in run:
        process.join()
    return [process.exitcode for process in run]


def worker(flags: Sequence[str], world: dict[str, str], log: Path) -> None:
    """One process of the command, under FSDP2 where it gets a `world` that it is part of."""
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
    """Wait until the process has begun to train (it then rewrites its metrics file); False if it ended before."""
    file = out / METRICS_FILE
    before = file.stat().st_mtime_ns if file.exists() else None
    while process.is_alive():
        if file.exists() and file.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def logged_updates(out: Path) -> int:
    """Updates in the run's log."""
    return sum("loss" in entry for entry in read_metrics(out / METRICS_FILE))


def tasks_by_update(out: Path) -> dict[int, list[str]]:
    """The episodes (task and sample) of every update that was kept."""
    return {
        int(folder.name.removeprefix("step-")): sorted(path.stem for path in folder.iterdir())
        for folder in (out / "traces").iterdir()
    }


def compare(whole: Path, parts: Path, updates: int) -> dict[str, Any]:
    """What is the same in both output folders, and how far the parameters are apart."""
    file = next(whole.glob("*model.safetensors")).name
    ours, theirs = (load_file(folder / file) for folder in (parts, whole))
    assert ours.keys() == theirs.keys()
    rewards = [
        [
            (entry["step"], entry["reward"])
            for entry in read_metrics(folder / METRICS_FILE)
            if "reward" in entry
        ]
        for folder in (parts, whole)
    ]
    tasks = tasks_by_update(parts)
    folders = {path.name for path in parts.glob("checkpoint-*")}
    return {
        "parameters": len(ours),
        "max_difference": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
        "same_tasks": tasks == tasks_by_update(whole)
        and sorted(tasks) == list(range(1, updates + 1)),
        "same_rewards": rewards[0] == rewards[1] and len(rewards[0]) == updates,
        "distinct_rewards": len({reward for _, reward in rewards[0]}),
        "partial_checkpoints": len(folders - {path.name for path in list_checkpoints(parts)})
        + (parts / PARTIAL).exists(),
    }


def killed(
    command: Command, kills: int, updates: int, rng: random.Random, ranks: Sequence[int]
) -> dict[str, Any]:
    """Run, kill, resume, `kills` times, on each of `ranks` by turns, and then to the end."""
    turns = itertools.cycle(ranks)
    reached, writing = [], 0
    for number in range(kills):
        # Up to two updates are lost with each kill: so the last ones come near the end.
        moment, count = rng.uniform(0, 2 * updates / (kills + 2)), next(turns)
        reached.append(command.kill(count, moment, rng))
        writing += (command.out / PARTIAL).exists()
        print(
            f"  kill {number + 1:>2} of {count}: after {moment:.2f} updates, {reached[-1]} in the log",
            flush=True,
        )
    command.finish(next(turns))
    return {"updates_at_kill": reached, "kills_while_writing": writing}


def measure(folder: Path, form: str, kills: int, updates: int, seed: int) -> dict[str, Any]:
    """The figures of one form, with whether they hold."""
    whole, parts = folder / f"{form}-whole", folder / f"{form}-parts"
    ranks = {"single": [1], "two": [2], "two-or-one": [2, 1]}[form]
    seconds = Command(folder, whole, form, updates, seed).finish(ranks[0])
    print(
        f"{form}: {updates} updates without interruption: {seconds:.1f} s of training", flush=True
    )
    figures = killed(
        Command(folder, parts, form, updates, seed), kills, updates, random.Random(seed), ranks
    )
    figures |= compare(whole, parts, updates) | {"kills": kills, "tolerance": TOLERANCES[form]}
    figures["holds"] = bool(
        figures["max_difference"] <= TOLERANCES[form]
        and figures["same_tasks"]
        and figures["same_rewards"]
        and figures["distinct_rewards"] > (1 if updates < 10 else 3)
        and figures["partial_checkpoints"] == 0
    )
    return figures


def truncate(file: Path) -> None:
    """As after a copy that was cut off."""
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    """One bit in the middle, at the same size."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: list[tuple[str, Callable[[Path], Any]]] = [
    (f"{'optimizer_0'}/__1_0.distcp", truncate),
    (f"{SHARDED_MODEL}/__0_0.distcp", flip),
    (f"{'optimizer_0'}/.metadata", Path.unlink),
    ("rng_state_1.pth", flip),
]


def contents(folder: Path) -> dict[str, int]:
    """A checksum of every file."""
    return {
        str(path): zlib.crc32(path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }


def damaged(folder: Path, seed: int, updates: int, count: int) -> list[dict[str, Any]]:
    """Damage the last checkpoint of a finished FSDP2 run, beside a whole one and alone, and resume it."""
    source = next(
        path for path in (folder / "two-whole", folder / "two-or-one-whole") if path.exists()
    )
    found = []
    for number, (name, harm) in enumerate(DAMAGES[:count]):
        out = folder / f"damaged-{number}"
        shutil.copytree(source, out)
        older, last = list_checkpoints(out)[-2:]
        if alone := number % 2 == 0:
            shutil.rmtree(older)
        harm(last / name)
        before = contents(out)
        command = Command(folder, out, "two", updates + 2, seed)
        status = statuses(command.start(2))
        text = command.log.read_text()
        held = (
            status == [2, 2]
            and text.count(f"{last} is damaged: ") >= 2
            and name in text
            and (alone or f"--resume_from_checkpoint {older} continues" in text)
            and contents(out) == before
        )
        print(
            f"damaged: {harm.__name__} {name}, {'alone' if alone else 'beside a whole one'}: {held}",
            flush=True,
        )
        found.append({"file": name, "how": harm.__name__, "named_and_untouched": held})
    return found


def main() -> int:
    """Print what happened and the JSON line; 0 when the bar holds."""
    parser = command_line(__doc__)
    parser.add_argument("--forms", nargs="+", choices=list(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    add_quick(parser, forms=["two-or-one"], kills=1, updates=6)
    given = parser.parse_args()
    figures: dict[str, Any] = {"bench": "resume", "quick": given.quick}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_inputs(folder)
        for form in given.forms:
            figures[form] = measure(folder, form, given.kills, given.updates, given.seed)
        checked = [figures[form]["holds"] for form in given.forms]
        if given.forms != ["single"]:
            figures["damaged"] = damaged(
                folder, given.seed, given.updates, 1 if given.quick else len(DAMAGES)
            )
            checked += [one["named_and_untouched"] for one in figures["damaged"]]
    for form in given.forms:
        for name, value in figures[form].items():
            print(f"{form:<12} {name:<20} {value}")
    figures["holds"] = all(checked)
    return last_line(figures)


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    raise SystemExit(main())

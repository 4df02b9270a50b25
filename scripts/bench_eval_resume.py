"""Bar: an evaluation that is killed (SIGKILL) at twenty random moments ends as one that was left alone.

    python scripts/bench_eval_resume.py [--tokenizer DIR] [--kills N] [--seed N]

The real command (`atommem eval`, 200 episodes, greedy) runs against a simulated server in another process
(scripts/simulated_server.py), once left alone and once killed again and again, and started again with the same command.
Compared are the records of all episodes, the summary and every trace, apart from seconds. The server notes every
request on arrival; after a kill, none may come for an episode whose line was in ``episodes.jsonl`` by then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import models
from quick import ATOMMEM, add_quick, command_line, flags, last_line
from simulated_server import SimulatedServer

from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import save_tasks
from atommem.policy.contract import Sampling
from atommem.session import request_sampling

TASKS, SAMPLES = 100, 2
WORLD = WorldConfig(questions=(1, 2), distractors=4, facts_per_document=1)
LATENCY, CONCURRENCY, IN_FLIGHT = 0.05, 8, 12
MOST_STEPS = 64
SEED = 0
PATIENCE = 300.0
SETTINGS = {
    "temperature": 0,
    "seed": SEED,
    "samples_per_task": SAMPLES,
    "max_in_flight": IN_FLIGHT,
    "embedder": "hashing",
    "templates": "full",
    "chunk_tokens": 60,
    "max_reads": 0,
}

Key = tuple[str, int]


class Command:
    """`atommem eval` on the bench's tasks, as often as it is started."""

    def __init__(self, server: SimulatedServer, tokenizer: Path, data: Path, out: Path) -> None:
        self.out = out
        self._server = server
        given = {"policy": server.url, "tokenizer": tokenizer, "data": data, "out": out, **SETTINGS}
        self._arguments = [*ATOMMEM, "eval", *flags(given)]

    def start(self) -> subprocess.Popen[bytes]:
        """A process of it; its output goes to a file beside the folder."""
        with self.out.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                self._arguments, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def run(self) -> None:
        """Run it to its end."""
        status = self.start().wait(timeout=PATIENCE)
        if status != 0:
            raise RuntimeError(
                f"the evaluation ended with status {status}: {self.out.with_suffix('.log')}"
            )

    def kill_after(self, requests: int, seconds: float) -> bool:
        """Start it, and kill it `seconds` after so many further requests. False if it ended before."""
        before = len(self.requests())
        process = self.start()
        deadline = time.monotonic() + PATIENCE
        while len(self.requests()) < before + requests and process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no request came: {self.out.with_suffix('.log')}")
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL

    def requests(self) -> list[str]:
        """The seeds of all requests that have come, in order."""
        assert self._server.log is not None
        return self._server.log.read_text().splitlines() if self._server.log.exists() else []

    def finished(self) -> set[Key]:
        """The episodes whose lines are whole."""
        path = self.out / "episodes.jsonl"
        content = path.read_text() if path.exists() else ""
        records = [
            json.loads(line) for line in content.splitlines(keepends=True) if line.endswith("\n")
        ]
        return {(record["task_id"], record["sample"]) for record in records}


def seeds_of(keys: Iterable[Key]) -> dict[str, Key]:
    """Which episode a request is of: every request has a seed of its own."""
    sampling = Sampling(temperature=0.0, seed=SEED)
    return {
        str(request_sampling(sampling, f"{task_id}/{sample}", step).seed): (task_id, sample)
        for task_id, sample in keys
        for step in range(MOST_STEPS)
    }


def without_seconds(value: Any) -> Any:
    """A JSON value without what a clock measured."""
    if isinstance(value, dict):
        return {key: without_seconds(item) for key, item in value.items() if key != "seconds"}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def contents(out: Path) -> dict[str, Any]:
    """All that an evaluation left, apart from seconds: by file name; the lines of ``episodes.jsonl`` sorted."""
    files: dict[str, Any] = {}
    for path in sorted(file for file in out.rglob("*") if file.is_file()):
        text = path.read_text()
        if path.suffix == ".jsonl":
            lines = [json.dumps(without_seconds(json.loads(line))) for line in text.splitlines()]
            files[str(path.relative_to(out))] = sorted(lines) if path.parent == out else lines
        else:
            files[str(path.relative_to(out))] = without_seconds(json.loads(text))
    return files


def main() -> int:
    """Run both, compare, print the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--tasks", type=int, default=TASKS)
    add_quick(parser, kills=1, tasks=5)
    options = parser.parse_args()
    tokenizer = options.tokenizer or models.smollm2()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "tasks.jsonl"
        tasks = list(generate(WORLD, options.tasks, SEED))
        save_tasks(tasks, data)
        episodes = {(task.id, sample) for task in tasks for sample in range(SAMPLES)}
        seeds = seeds_of(episodes)
        with SimulatedServer(tokenizer, LATENCY, CONCURRENCY, folder / "calm.requests") as server:
            calm = Command(server, tokenizer, data, folder / "calm")
            calm.run()
            calls = len(calm.requests())
        assert len(set(calm.requests())) == calls, (
            "a request was made twice although nothing went wrong"
        )
        # What an episode has done is lost when it is killed: about half of the requests between two kills are for that.
        most = 3 * calls // max(options.kills, 6)
        rng = random.Random(options.seed)
        repeated, kills, finished_at_kills = 0, 0, []
        with SimulatedServer(tokenizer, LATENCY, CONCURRENCY, folder / "killed.requests") as server:
            killed = Command(server, tokenizer, data, folder / "killed")
            done: set[Key] = set()
            for index in range(options.kills):
                seen = len(killed.requests())
                # One in five dies while it loads what is there.
                loading = index % 5 == 4
                kills += killed.kill_after(
                    0 if loading else rng.randint(1, most),
                    rng.uniform(0.5, 3.0) if loading else rng.uniform(0.0, 0.1),
                )
                repeated += sum(seeds[seed] in done for seed in killed.requests()[seen:])
                done = killed.finished()
                finished_at_kills.append(len(done))
                print(
                    f"kill {index + 1:>2}: {len(done):>3} of {len(episodes)} episodes finished",
                    flush=True,
                )
            seen = len(killed.requests())
            killed.run()
            requests = killed.requests()
            repeated += sum(seeds[seed] in done for seed in requests[seen:])
        left, right = contents(folder / "calm"), contents(folder / "killed")
        different = sorted(
            name for name in left.keys() | right.keys() if left.get(name) != right.get(name)
        )
    print(f"files that differ: {', '.join(different) or 'none'}")
    result = {
        "episodes": len(episodes),
        "kills": kills,
        "finished_at_kills": finished_at_kills,
        "calls": calls,
        "calls_with_kills": len(requests),
        "repeated_calls_of_finished_episodes": repeated,
        "files": len(left),
        "different_files": len(different),
        "seconds": round(time.monotonic() - began, 1),
    }
    result["holds"] = (
        len(left["episodes.jsonl"]) == len(episodes) == 200
        and kills == options.kills >= 20
        and not repeated
        and not different
        and 0 < finished_at_kills[-1] < len(episodes)
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

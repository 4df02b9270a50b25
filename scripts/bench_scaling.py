"""Does the cost of training grow linearly with the length of the stream?

    python scripts/bench_scaling.py [--documents 50 100 200 400] [--updates 6]

GRPO on streams of 50 to 400 documents, everything else the same: a group of 16 episodes that read chunks of 64 tokens,
with a tiny random model on CPU, every size in a process of its own. Reported for each: seconds per episode (rollout
and training, the median of the updates after the first), and the peak memory of the process; and over all of those
updates the slope of log seconds over log documents, with its 95% interval: 1 is linear, below it is a cost that does
not grow, 2 is quadratic. The last line is one JSON object; the exit code is 0 if and only if its "holds" is true: the
interval ends at 1.10 at most, and the peak memory at the most documents is at most 1.10 of that at the fewest.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from peak_memory import peak_megabytes
from quick import add_quick, command_line, in_a_process, last_line
from scipy import stats
from toy_training import WORLD, toy_trainer

from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task

GROUP = 16
MOST_SLOPE, MOST_GROWTH = 1.10, 1.10


def make_task(documents: int) -> Task:
    """A task whose stream has so many documents: those of many worlds, one after the other."""
    tasks = list(generate(WORLD, documents, 0))
    stream = list(chain.from_iterable(task.documents for task in tasks))
    return replace(tasks[0], documents=tuple(stream[:documents]))


def measure(documents: int, updates: int) -> dict[str, Any]:
    """Run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = toy_trainer(
            {
                "output_dir": folder,
                "per_device_train_batch_size": GROUP,
                "num_generations": GROUP,
                "num_train_epochs": updates + 1,
                "learning_rate": 1e-6,
                "micro_batch_tokens": 1024,
            },
            [make_task(documents)],
            {"chunk_tokens": 64, "max_reads": 0, "max_tokens": 16},
        )
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry][1:]
    seconds = [(entry["seconds/rollout"] + entry["seconds/train"]) / GROUP for entry in logged]
    return {"seconds": seconds, "peak_mb": peak_megabytes(), "steps": logged[-1]["steps"]}


def main(argv: list[str] | None = None) -> int:
    """Run all sizes."""
    parser = command_line(__doc__)
    parser.add_argument("--documents", nargs="+", type=int, default=[50, 100, 200, 400])
    parser.add_argument("--updates", type=int, default=6)
    add_quick(parser, documents=[4, 8, 16], updates=2)
    arguments = parser.parse_args(argv)
    rows = []
    for documents in arguments.documents:
        row = in_a_process(measure, documents, arguments.updates)
        rows.append(row)
        print(
            f"{documents:4} documents  {row['steps']:5.0f} steps  {np.median(row['seconds']):6.3f} s per episode  "
            f"peak {row['peak_mb']:5.0f} MB"
        )
    documents = np.repeat(arguments.documents, [len(row["seconds"]) for row in rows])
    fit = stats.linregress(
        np.log(documents), np.log(np.concatenate([row["seconds"] for row in rows]))
    )
    margin = stats.t.ppf(0.975, len(documents) - 2) * fit.stderr
    growth = rows[-1]["peak_mb"] / rows[0]["peak_mb"]
    holds = bool(fit.slope + margin <= MOST_SLOPE and growth <= MOST_GROWTH)
    result = {
        "bench": "scaling",
        "documents": arguments.documents,
        "seconds_per_episode": [round(float(np.median(row["seconds"])), 4) for row in rows],
        "peak_mb": [round(row["peak_mb"]) for row in rows],
        "slope": round(float(fit.slope), 3),
        "slope_95": [round(float(fit.slope - margin), 3), round(float(fit.slope + margin), 3)],
        "memory_growth": round(growth, 3),
        "holds": holds,
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

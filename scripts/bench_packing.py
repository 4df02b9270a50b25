"""What does it cost to make an update's rows into packed micro-batches, beside a GPU that waits for them?

    PYTHONPATH=. python scripts/bench_packing.py [--steps 30] [--rounds 3] [--quick]

One group of 16 episodes of 30 steps: at each step the 16 share a prompt of 4,000 tokens and have 100 of their own
(scratchpad, entries) and 200 sampled ones. Timed in one thread, of lists of token ids as episodes hold them, per raw
token (prompts and completions before anything is shared):

    rows      lists to rows, equal ones merged
    order     rows in lexicographic order, and what each shares with the row before it
    plan      cut into micro-batches of 16,384 unique tokens, with everything that `MicroBatchPlanner.plan` does
              (in one process: no exchange of rows)
    pack      the trie, its tensors, and those of the loss
    flex      the block mask of `flex_attention`, here on the CPU
    kernel    the paths of keys for TRL's FlashAttention-3 kernel, in its place (the total counts both)

and TRL's `TreeRow` (add and pack) on two of the micro-batches. Other shapes are printed beside it, the unfavourable
ones too: nothing shared, long completions, and prompts of 300 tokens, where a row costs as much as its tokens do. Token
ids are random, and steps share nothing with each other (in real prompts they share the system prompt). Reported are the
medians of the rounds, in wall-clock time; "processor" is the process's own time for all phases, for a machine that is
busy with other things. The last line is one JSON object, and the exit code is 0 if and only if its "holds" is true: all
phases together at most 0.5 us a raw token at the first shape. ``--quick``: three steps, one round, the first shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from quick import add_quick, command_line, last_line
from trl.experimental.async_grpo.packing import TreeRow

from atommem.train.objective.rows import Row, Tokens, merge_equal_rows
from atommem.train.packing.planning import MicroBatchPlanner
from atommem.train.packing.planning import lexicographic
from atommem.train.packing.tree import flex_mask, kernel_arguments
from atommem.train.packing.micro_batch import pack_rows, shared_prefixes

MOST = 0.5
"""Microseconds a raw token."""
BUDGET = 16_384
PAIR_COST = 8e-6
"""Of Qwen3-8B, about."""
VOCABULARY = 151_000


@dataclass(frozen=True)
class Shape:
    """A group's rows: tokens that a step's rows share, that a row has of its own in its prompt, and that it sampled."""

    name: str
    shared: int
    own: int
    sampled: int
    group: int = 16


SHAPES = (
    Shape("4k prompts", 4000, 100, 200),
    Shape("4k prompts, nothing shared", 0, 4100, 200),
    Shape("4k prompts, 2,000 sampled", 4000, 100, 2000),
    Shape("300-token prompts", 200, 100, 50),
)


def episode_lists(
    shape: Shape, steps: int, rng: np.random.Generator
) -> list[tuple[list[int], list[int], list[float]]]:
    """(prompt ids, completion ids, log-probabilities) of every step of the group's episodes."""

    def ids(count: int) -> list[int]:
        return list(map(int, rng.integers(0, VOCABULARY, count)))

    chunks = [ids(shape.shared) for _ in range(steps)]
    logprobs = [-0.5] * shape.sampled
    return [
        (chunk + ids(shape.own), ids(shape.sampled), logprobs)
        for _ in range(shape.group)
        for chunk in chunks
    ]


def measure(shape: Shape, steps: int) -> dict[str, float]:
    """Microseconds a raw token of each phase."""
    lists = episode_lists(shape, steps, np.random.default_rng(0))
    raw = sum(len(prompt) + len(completion) for prompt, completion, _ in lists)
    cpu = torch.device("cpu")
    took = dict.fromkeys(("rows", "order", "plan", "pack", "flex", "kernel", "processor"), 0.0)

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        started, busy = time.perf_counter(), time.process_time()
        yield
        took[phase] += 1e6 * (time.perf_counter() - started) / raw
        took["processor"] += 1e6 * (time.process_time() - busy) / raw

    with timed("rows"):
        rows = merge_equal_rows([Row(*lists_, 0, 1.0, 1.0) for lists_ in lists])
    with timed("order"):
        shared_prefixes(lexicographic(rows))  # which `plan` does again, twice
    with timed("plan"):
        micro_batches = MicroBatchPlanner(PAIR_COST, BUDGET, True, 0).plan(rows)
    trees: list[Any] = []
    for batch in micro_batches:
        with timed("pack"):
            packed = pack_rows(batch)
            Tokens.of(batch, cpu)
        trees.append(packed.tree)
    for phase, make in (("flex", flex_mask), ("kernel", kernel_arguments)):
        with timed(phase):
            for tree in trees:
                make(tree, cpu)
    total = sum(took.values()) - took["processor"]
    unique = sum(tree.length for tree in trees)
    return took | {
        "total": total,
        "trl": trl_cost(micro_batches[:2]),
        "packing_ratio": raw / unique,
        "raw": raw,
    }


def trl_cost(micro_batches: list[list[Row]]) -> float:
    """Microseconds a raw token of TRL's trie."""
    raw, started = 0, time.perf_counter()
    for rows in micro_batches:
        trie = TreeRow()
        for row in rows:
            mask = np.arange(len(row)) >= len(row.prompt_ids)
            trie.add(
                {
                    "input_ids": row.ids,
                    "completion_mask": mask,
                    "old_log_probs": mask * 0.0,
                    "advantage": 0.0,
                    "group_id": 0,
                }
            )
            raw += len(row)
        trie.pack()
    return 1e6 * (time.perf_counter() - started) / raw


def main(argv: list[str] | None = None) -> int:
    """Print the table and the JSON line; 0 when the bar holds."""
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    add_quick(parser, steps=3, rounds=1)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    PartialState(cpu=True)  # the planner asks it for the other processes
    figures = {}
    for shape in SHAPES[:1] if arguments.quick else SHAPES:
        rounds = [measure(shape, arguments.steps) for _ in range(arguments.rounds)]
        medians = {
            name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]
        }
        figures[shape.name] = medians
        print(
            f"{shape.name}: " + ", ".join(f"{name} {value:,g}" for name, value in medians.items()),
            flush=True,
        )
    first = figures[SHAPES[0].name]
    return last_line(
        {"us_per_raw_token": figures, "steps": arguments.steps, "holds": first["total"] <= MOST}
    )


if __name__ == "__main__":
    raise SystemExit(main())

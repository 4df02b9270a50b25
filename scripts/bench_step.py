"""One whole update as the authors' code does it, against ours: the same weights, tasks and completions.

    python scripts/bench_step.py [--model DIR] [--notes 24] [--trained_steps 1 5]

SmolLM2-135M in float32: a group of 16 episodes that read 8 chunks of 900 tokens, sampled by vLLM on CPU, with vectors
from a server of all-MiniLM-L6-v2, then the passes of one GRPO update with a KL term.

    theirs   memory before the chunk; all episodes wait for each other at every step; a request for every vector, each
             after the last one; log-probabilities computed anew before the update, as verl does; every row in a pass
             of its own length, for their trainer takes padding out
    ours     what `atommem train` does: chunk first, no barrier, vectors micro-batched, one token trie

Both get what a setting could give them: the server's prefix cache, no gradient checkpointing (theirs has it on), and
the query's vector only when it changes (theirs asks at every step). Weights are not sent to the server: vLLM on CPU
cannot take them.

Completions are forced: the server computes the prompt and samples as many tokens as the script has, and the script's
words are what the episode goes on with and what is trained on. They come from the request's seed, which is the same in
both: a scratchpad, an entry and a query of random words, `--notes` tokens each of the first two. Longer notes are less
favourable to us, for they are nobody's shared prefix.

The limit is what the ratio would be if a token cost the same everywhere: tokens that went through the model, those of
training counted three times. It does not: a token attends to all that stand before it, shared or not, and the head has
a row for every completion token, however rows are packed. ``training_limit`` is the ratio of the passes' FLOPs, both
counted: what packing can reach in training. Beside the seconds on the clock stand those of the processor, of all
processes together: on a machine that others use too, they are what can be compared. With `--trained_steps` only the
rows of these steps are trained on, and the seconds are scaled by the tokens of all. The last line is one JSON object;
"holds" is true for a ratio of at least 5 on the bar's shape.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import psutil
import torch
from accelerate import Accelerator
from bench_barrier import Barrier
from bench_embedding import embedding_server
from bench_rollout import ONE_LAYER, WORDS, Measured, Wrapped, long_task, rollout, serve
from quick import add_quick, command_line, last_line
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig
from trl.trainer.utils import add_fused_lm_head

from atommem.embedding.batched import MicroBatcher
from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.embedding.http import HttpEmbedder
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.train.dry_run.architecture import measure
from atommem.train.dry_run.timeline import forward_flops
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.loops.update_step import Batch, UpdateStep
from atommem.train.objective.loss import PolicyLoss
from atommem.train.objective.rows import Row, episode_rows
from atommem.train.packing.micro_batch import pad_rows, shared_prefixes
from atommem.train.packing.planning import lexicographic

GROUP, CHUNK, STEPS, RETRIEVE_K = 16, 900, 8, 6
LEAST_RATIO = 5.0
TRIE_TOKENS = 8192
TRAINING = 3
"""What a forward and backward pass costs, in forward passes."""


class Clock:
    """Seconds since it was made, on the clock and of the processor: of this process and all that it has started."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._processor()

    @staticmethod
    def _processor() -> float:
        me = psutil.Process()
        times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def read(self) -> np.ndarray:
        """(2,)"""
        return np.array([time.perf_counter() - self._wall, self._processor() - self._cpu])


class Scripted(Wrapped):
    """The server works as long as for the script's tokens; the completion is the script's."""

    def __init__(self, policy: Policy, tokenizer: Any, notes: int) -> None:
        super().__init__(policy)
        self._tokenizer = tokenizer
        self._notes = notes

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """What the request's seed says, when the server has sampled as much."""
        rng = random.Random(sampling.seed)
        pad, entry, query = (
            " ".join(rng.choices(WORDS, k=count)) for count in (self._notes, self._notes, 4)
        )
        text = (
            f"<update_scratchpad>{pad}</update_scratchpad>\n<create_memory>{entry}</create_memory>\n"
            f"<read_memory>{query}</read_memory>"
        )
        ids = [
            *self._tokenizer.encode(text, add_special_tokens=False),
            self._tokenizer.eos_token_id,
        ]
        await self.policy.complete(prompt_ids, Sampling(1.0, max_tokens=len(ids)))
        return Completion(ids, [0.0] * len(ids), text, "stop")


class OneAfterAnother:
    """An embedder that sends every text by itself, after the last one: a loop over episodes that waits for each."""

    def __init__(self, embedder: Embedder) -> None:
        self.id, self.dim = embedder.id, embedder.dim
        self.calls = 0
        self._embedder = embedder
        self._turn = asyncio.Lock()

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """As the embedder does, text by text."""
        rows = []
        for text in texts:
            async with self._turn:
                rows.append(await self._embedder.embed([text], kind))
                self.calls += 1
        return np.concatenate(rows)

    async def close(self) -> None:
        """The embedder's."""
        await self._embedder.close()


class Bench:
    """The two recipes on the same model, task and servers."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, server: Any, embeddings: str
    ) -> None:
        self.options = options
        self.server = server
        self.embeddings = embeddings
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.shape = measure(ModelConfig(model_name_or_path=str(folder)))
        # On --quick the server has one layer and random weights: it is shown that things run, not how fast.
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        self.model.config.use_cache = False
        add_fused_lm_head(self.model, outputs=("log_probs", "entropy"))
        self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def sample(self, ours: bool) -> tuple[np.ndarray, int, Measured]:
        """The episodes of one group; seconds, and calls of the embedder."""
        options = self.options
        task = long_task(self.tokenizer, options.chunk * options.steps)
        http = HttpEmbedder(self.embeddings, "minilm", max_in_flight=16 if ours else 1)
        embedder: Any = MicroBatcher(http) if ours else OneAfterAnother(http)

        def around(policy: Policy) -> Policy:
            scripted = Scripted(policy, self.tokenizer, options.notes)
            return scripted if ours else Barrier(scripted, options.group)

        clock = Clock()
        measured = asyncio.run(
            rollout(
                self.server,
                self.tokenizer,
                [(task, sample) for sample in range(options.group)],
                layout="prefix" if ours else "paper",
                chunk_tokens=options.chunk,
                steps=options.steps,
                max_tokens=512,
                around=around,
                embedder=embedder,
                retrieve_k=RETRIEVE_K,
            )
        )
        return clock.read(), embedder.calls, measured

    def train(self, rows: list[Row], ours: bool) -> tuple[dict[str, np.ndarray], int]:
        """The passes over `rows`: seconds by phase, and the tokens that went through the model once."""
        seconds = {name: np.zeros(2) for name in ("old_log_probs", "reference", "training")}
        computed = 0
        # A budget of one token: every row is a micro-batch of its own, and nothing is padded.
        step = UpdateStep(
            Accelerator(cpu=True),
            self.model,
            PolicyLoss(0.2, 0.28, beta=0.001),
            TRIE_TOKENS if ours else 1,
            self.tokenizer.pad_token_id,
            prefix_sharing=ours,
            reference=self.reference,
        )
        score_reference = step._reference_logps

        def reference_logps(model: Any, inputs: Any) -> torch.Tensor:
            nonlocal computed
            clock = Clock()
            found = score_reference(model, inputs)
            seconds["reference"] += clock.read()
            computed += inputs.computed
            return found

        step._reference_logps = reference_logps  # type: ignore[method-assign]
        self.model.train()
        self.model.zero_grad()
        if not ours:
            clock = Clock()
            with torch.no_grad():
                for row in rows:
                    pad_rows([row], self.tokenizer.pad_token_id).score(self.model)
            seconds["old_log_probs"] = clock.read()
        clock = Clock()
        step.run(self.model, Batch(rows, float(sum(len(row.completion_ids) for row in rows))))
        seconds["training"] = clock.read() - seconds["reference"]
        return seconds, computed

    def flops(self, rows: list[Row], ours: bool) -> float:
        """Of one forward pass over `rows`, attention and head included."""
        ordered = lexicographic(rows)
        shared = shared_prefixes(ordered) if ours else [0] * len(rows)
        ends = zip(map(len, ordered), shared, strict=True)
        pairs = sum(length * (length + 1) - common * (common + 1) for length, common in ends) / 2
        tokens = sum(map(len, rows)) - sum(shared)
        return forward_flops(
            self.shape, tokens, sum(len(row.completion_ids) for row in rows), pairs / tokens
        )

    def rows(self, measured: Measured) -> tuple[list[Row], float]:
        """The rows that are trained on, and how many times as many tokens all rows have."""
        advantages = [1.0 if index % 2 else -1.0 for index in range(len(measured.episodes))]
        for episode in measured.episodes:
            episode.reward = 0.0  # they end at the step limit, before they answer
        everything = episode_rows(measured.episodes, advantages, "token")
        chosen = [
            row
            for index, row in enumerate(everything)
            if not self.options.trained_steps
            or index % self.options.steps in self.options.trained_steps
        ]
        return chosen, sum(map(len, everything)) / sum(map(len, chosen))


def main() -> int:
    """Measure both, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of SmolLM2 (unset: of scripts/models.py)"
    )
    parser.add_argument(
        "--minilm", type=Path, help="folder of MiniLM (unset: of scripts/models.py)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench_step"))
    parser.add_argument("--group", type=int, default=GROUP)
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--notes", type=int, default=24, help="words of a note, of one token each (%(default)s)"
    )
    parser.add_argument(
        "--trained_steps",
        nargs="+",
        type=int,
        help="train on these steps (from 0) only (unset: all)",
    )
    add_quick(parser, group=2, chunk=100, steps=2, notes=4)
    options = parser.parse_args()
    tune_lm_head_for_cpu("cpu")
    folder = options.model or models.smollm2()
    window = options.chunk + 1500
    phases: dict[str, dict[str, np.ndarray]] = {}
    passes, tokens, calls, flops = {}, {}, {}, {}
    with (
        embedding_server(options.minilm or models.minilm()) as embeddings,
        serve(
            folder, options.out / "server.log", window, *(ONE_LAYER if options.quick else ())
        ) as server,
    ):
        bench = Bench(options, folder, server, embeddings)
        completions: dict[str, list[list[int]]] = {}
        for name, ours in (("theirs", False), ("ours", True)):
            seconds, calls[name], measured = bench.sample(ours)
            completions[name] = [
                step.token_ids for episode in measured.episodes for step in episode.steps
            ]
            rows, scale = bench.rows(measured)
            trained, computed = bench.train(rows, ours)
            flops[name] = bench.flops(rows, ours)
            phases[name] = {
                "rollout": seconds,
                **{phase: scale * value for phase, value in trained.items()},
            }
            tokens[name] = scale * computed
            forwards = (1 if ours else 2) + TRAINING
            passes[name] = (
                measured.computed_tokens + measured.completion_tokens + forwards * tokens[name]
            )
            shown = "  ".join(
                f"{phase} {wall:.1f} ({cpu:.1f})" for phase, (wall, cpu) in phases[name].items()
            )
            print(
                f"{name:<8}seconds (of the processor): {shown}; the server computed {measured.computed_tokens} prompt "
                f"tokens, the embedder had {calls[name]} calls",
                flush=True,
            )
    assert completions["theirs"] == completions["ours"], "the two must have the same completions"
    theirs, ours_total = (
        np.sum(list(phases[name].values()), axis=0) for name in ("theirs", "ours")
    )
    without_old = theirs - phases["theirs"]["old_log_probs"]
    ratio, limit = theirs / ours_total, passes["theirs"] / passes["ours"]
    result = {
        "bench": "step",
        "shape": {
            key: getattr(options, key)
            for key in ("group", "chunk", "steps", "notes", "trained_steps")
        },
        "seconds": {name: _rounded(phases[name], 0) for name in phases},
        "cpu_seconds": {name: _rounded(phases[name], 1) for name in phases},
        "ratio": round(float(ratio[0]), 2),
        "ratio_cpu": round(float(ratio[1]), 2),
        "ratio_without_old_log_probs": [
            round(float(value), 2) for value in without_old / ours_total
        ],
        "ratio_by_phase": {
            phase: [
                round(float(value), 2) for value in phases["theirs"][phase] / phases["ours"][phase]
            ]
            for phase in ("rollout", "reference", "training")
        },
        "tokens": {"raw": round(tokens["theirs"]), "unique": round(tokens["ours"])},
        "token_ratio": round(tokens["theirs"] / tokens["ours"], 2),
        "training_limit": round(flops["theirs"] / flops["ours"], 2),
        "embedder_calls": calls,
        "limit": round(limit, 2),
        "share_of_limit": round(float(ratio[0]) / limit, 2),
    }
    shape = (options.group, options.chunk, options.steps)
    result["holds"] = bool(ratio[0] >= LEAST_RATIO and shape == (GROUP, CHUNK, STEPS))
    return last_line(result)


def _rounded(phases: dict[str, np.ndarray], which: int) -> dict[str, float]:
    return {name: round(float(value[which]), 1) for name, value in phases.items()}


if __name__ == "__main__":
    raise SystemExit(main())

"""One whole update by the recipe of the authors' code against ours, on the same completions.

    python scripts/bench_step.py [--model DIR] [--notes 24] [--trained_steps 1 5]

SmolLM2-135M in float32: a group of 16 episodes that read 8 chunks of 900 tokens, sampled by vLLM on
CPU, with vectors of all-MiniLM-L6-v2, then the passes of one GRPO update with a KL term.

    theirs   memory before the chunk; all episodes wait for each other at every step; every text
             embedded by itself; log-probabilities computed again before the update, as verl does;
             every row in a pass of its own length
    ours     what `atommem train` does: chunk first, no barrier, vectors in micro-batches, one token
             trie

Both have the server's prefix cache, no gradient checkpointing, and the query's vector only when it
changes; no weights are sent. Completions are forced to a script of random words, so that both train
on the same. Longer --notes are less favourable to us: they share no prefix. The limit is the ratio
if all tokens cost the same, those of training three times. CPU seconds stand beside the clock's.
With --trained_steps only these steps are trained on, and the seconds are scaled by all tokens.

The bar is a ratio of at least 5 on this shape.
"""

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
from bench_rollout import ONE_LAYER, WORDS, Rollout, Wrapped, long_task, rollout, serve
from common import last_line, read_options
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.utils import add_fused_lm_head

from atommem.embedding.embedder import HashingEmbedder, MicroBatcher
from atommem.embedding.models import SentenceTransformerEmbedder
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.loops.update_step import Batch, UpdateStep
from atommem.train.objective.loss import PolicyLoss
from atommem.train.objective.rows import Row, episode_rows
from atommem.train.packing.micro_batch import pad_rows

LEAST_RATIO, TRIE_TOKENS = 5.0, 8192
TRAINING = 3  # cost of a forward and backward pass in forward passes


class Clock:
    """Seconds since it was made: of the clock, and CPU seconds of this process and its children."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> np.ndarray:
        me = psutil.Process()
        times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
        return np.array([time.perf_counter(), sum(each.user + each.system for each in times)])

    def read(self) -> np.ndarray:
        return self._now() - self._start


class Scripted(Wrapped):
    """The server works as long as for the script's tokens; the completion is the script's.

    With `episodes`, every request waits until all episodes have made theirs.
    """

    def __init__(self, policy: Policy, tokenizer: Any, notes: int, episodes: int | None) -> None:
        super().__init__(policy)
        self._tokenizer, self._notes = tokenizer, notes
        self._barrier = None if episodes is None else asyncio.Barrier(episodes)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if self._barrier is not None:
            await self._barrier.wait()
        rng = random.Random(sampling.seed)
        lengths = (self._notes, self._notes, 4)
        pad, entry, query = (" ".join(rng.choices(WORDS, k=count)) for count in lengths)
        text = f"<update_scratchpad>{pad}</update_scratchpad>\n<create_memory>{entry}"
        text += f"</create_memory>\n<read_memory>{query}</read_memory>"
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        ids = [*ids, self._tokenizer.eos_token_id]
        await self.policy.complete(prompt_ids, Sampling(1.0, max_completion_length=len(ids)))
        return Completion(ids, [0.0] * len(ids), text, "stop")


class OneAfterAnother:
    """An embedder that embeds every text by itself, after the last one."""

    def __init__(self, embedder: Any) -> None:
        self.id, self.dim = embedder.id, embedder.dim
        self._embedder, self._turn = embedder, asyncio.Lock()

    async def embed(self, texts: Sequence[str], kind: Any) -> np.ndarray:
        rows = []
        for text in texts:
            async with self._turn:
                rows.append(await self._embedder.embed([text], kind))
        return np.concatenate(rows)

    async def close(self) -> None:
        await self._embedder.close()


class Recipes:
    def __init__(self, options: argparse.Namespace, folder: Path, server: Any) -> None:
        self.options, self.server = options, server
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        self.model.config.use_cache = False
        add_fused_lm_head(self.model, outputs=("log_probs", "entropy"))
        self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    def sample(self, ours: bool) -> tuple[np.ndarray, Rollout]:
        options = self.options
        task = long_task(self.tokenizer, options.chunk * options.steps)
        inner: Any = HashingEmbedder(64)
        if not options.quick:
            inner = SentenceTransformerEmbedder(options.minilm or models.fetch("minilm"))
        embedder: Any = MicroBatcher(inner) if ours else OneAfterAnother(inner)
        episodes = None if ours else options.group
        clock = Clock()
        work = rollout(
            self.server,
            self.tokenizer,
            [(task, sample) for sample in range(options.group)],
            wrap=lambda policy: Scripted(policy, self.tokenizer, options.notes, episodes),
            steps=options.steps,
            embedder=embedder,
            layout="prefix" if ours else "paper",
            chunk_tokens=options.chunk,
            max_completion_length=512,
        )
        measured = asyncio.run(work)
        return clock.read(), measured

    def train(self, rows: list[Row], ours: bool) -> tuple[np.ndarray, int]:
        computed = 0
        # A budget of one token makes every row a micro-batch of its own, and nothing is padded.
        parts = Accelerator(cpu=True), self.model, PolicyLoss(0.2, 0.28, beta=0.001)
        sizes = TRIE_TOKENS if ours else 1, self.tokenizer.pad_token_id
        step = UpdateStep(*parts, *sizes, prefix_sharing=ours, reference=self.reference)
        score_reference = step._reference_logps

        def reference_logps(model: Any, inputs: Any) -> torch.Tensor:
            nonlocal computed
            computed += inputs.computed
            return score_reference(model, inputs)

        step._reference_logps = reference_logps  # type: ignore[method-assign]
        self.model.train()
        self.model.zero_grad()
        clock = Clock()
        if not ours:
            with torch.no_grad():
                for row in rows:
                    pad_rows([row], self.tokenizer.pad_token_id).score(self.model)
        step.run(self.model, Batch(rows, float(sum(len(row.completion_ids) for row in rows))))
        return clock.read(), computed

    def rows(self, measured: Rollout) -> tuple[list[Row], float]:
        """The rows that are trained on, and how many times as many tokens all rows have."""
        advantages = []
        for index, episode in enumerate(measured.episodes):
            advantages.append([1.0 if index % 2 else -1.0] * len(episode.steps))
            episode.reward = 0.0  # they end at the step limit, before they answer
        rows = episode_rows(measured.episodes, advantages, "token")
        steps, trained = self.options.steps, self.options.trained_steps
        chosen = [row for index, row in enumerate(rows) if index % steps in trained]
        return chosen, sum(map(len, rows)) / sum(map(len, chosen))


def main() -> int:
    options = read_options(
        __doc__,
        **{"group": (16, 2), "chunk": (900, 100), "steps": (8, 2), "notes": 24},
        **{"model": Path, "minilm": Path, "output_dir": Path("runs/bench_step")},
        trained_steps=([*range(8)], [0]),
    )
    folder = options.model or models.fetch("smollm2")
    tune_lm_head_for_cpu("cpu")
    seconds: dict[str, dict[str, np.ndarray]] = {}
    passes, tokens, completions = {}, {}, {}
    one_layer = ONE_LAYER if options.quick else ()
    with serve(folder, options.output_dir / "server.log", 2048, *one_layer) as server:
        recipes = Recipes(options, folder, server)
        for name in ("theirs", "ours"):
            ours = name == "ours"
            sampling, measured = recipes.sample(ours)
            completions[name] = [step.token_ids for one in measured.episodes for step in one.steps]
            rows, scale = recipes.rows(measured)
            training, computed = recipes.train(rows, ours)
            seconds[name] = {"rollout": sampling, "training": scale * training}
            tokens[name] = scale * computed
            sampled = measured.computed_tokens + measured.completion_tokens
            passes[name] = sampled + ((1 if ours else 2) + TRAINING) * tokens[name]
            print(f"{name}: seconds and CPU seconds {seconds[name]}", flush=True)
    assert completions["theirs"] == completions["ours"], "both must have the same completions"
    total = {name: np.sum(list(parts.values()), axis=0) for name, parts in seconds.items()}
    ratio = total["theirs"] / total["ours"]
    result = {n: {p: v.round(1).tolist() for p, v in of.items()} for n, of in seconds.items()}
    holds = bool(options.quick or ratio[0] >= LEAST_RATIO)
    ratios = {"ratio": ratio[0], "ratio_cpu": ratio[1]}
    ratios |= {"token_ratio": tokens["theirs"] / tokens["ours"]}
    ratios |= {"limit": passes["theirs"] / passes["ours"]}
    rounded = {name: round(float(value), 2) for name, value in ratios.items()}
    return last_line({"bench": "step", "seconds": result, **rounded, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

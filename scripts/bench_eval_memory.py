"""Bar: an episode on 800 documents with 10 questions takes under 100 MB, chunking and retrieval under 2% of its time.

    python scripts/bench_eval_memory.py [--tokenizer DIR] [--embedder_model DIR]

The real loop (`atommem.eval.runner.evaluate`, chunks of 4,000 tokens, 6 retrieved entries, traces) runs one such
episode alone
against a simulated server that takes `LATENCY` seconds for each call. That is fast: a prompt of some 4,500 tokens and a
completion of 100, at 20,000 and 150 tokens a second, take 0.9 s. Then it runs `TOGETHER` at the same time.

Memory is the growth of the process's resident set, at its highest, beyond what it has after a small episode that loads
everything. Chunking is cutting the text by tokens, retrieval is the search of the store. Embedding is reported beside
them: `HashingEmbedder` unless ``--embedder_model`` names a sentence-transformers folder.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
from agents import make_agent
from bench_eval_overhead import InLoop
from peak_memory import forget_peak, peak_megabytes
from quick import add_quick, command_line, last_line
from simulated_server import Simulation
from transformers import AutoTokenizer

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder
from atommem.envs.longdoc.environment import LongDocEnvironments
from atommem.envs.longdoc.longdoc_config import LongDocConfig
from atommem.envs.synthetic.world import WorldConfig, make_task
from atommem.envs.task import Document, Task
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate

DOCUMENTS, QUESTIONS, TOGETHER = 800, 10, 16
LATENCY = 0.5
MOST_MEGABYTES, MOST_FRACTION = 100.0, 0.02
WORLD = WorldConfig(questions=(QUESTIONS, QUESTIONS), distractors=30, filler=9)


def make_long_task(index: int, documents: int) -> Task:
    """A task of the synthetic world with the documents of other tasks behind its own."""
    texts: list[Document] = []
    number = 0
    while len(texts) < documents:
        texts += make_task(WORLD, index, number).documents
        number += 1
    titled = (
        replace(text, title=f"Notice {place}")
        for place, text in enumerate(texts[:documents], start=1)
    )
    return replace(make_task(WORLD, index, 0), documents=tuple(titled))


class Chunking(LongDocEnvironments):
    """Measures `chunks`: seconds on the clock, and of the processor."""

    seconds = cpu_seconds = 0.0

    def chunks(self, task: Task) -> list[str]:
        """The chunks of `task`."""
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return super().chunks(task)
        finally:
            self.seconds += time.perf_counter() - began
            self.cpu_seconds += time.thread_time() - cpu


async def measure(
    tokenizer: Any, embedder: Embedder, tasks: Sequence[Task], out: Path, latency: float
) -> dict[str, float]:
    """Seconds and memory of an evaluation whose episodes are all in flight together."""
    policy = InLoop(Simulation(tokenizer.backend_tokenizer, latency, 4096), tokenizer)
    agent = make_agent(policy, embedder, tokenizer, temperature=0.0, seed=0)
    agent.environments = environments = Chunking(LongDocConfig(), tokenizer)
    gc.collect()
    forget_peak()
    before, began = peak_megabytes(), time.perf_counter()
    result = await evaluate(tasks, EpisodeRunner(agent), out, progress=False)
    seconds, grown = time.perf_counter() - began, peak_megabytes() - before
    assert result.failed == 0, result.records
    await environments.close()
    activity = agent.activity.take()
    calls = sum(record.sums["steps"] for record in result.records)
    return {
        "seconds": seconds,
        "calls": calls,
        "prompt_tokens_per_call": sum(record.prompt_tokens for record in result.records) / calls,
        "megabytes": grown * 2**20 / 1e6,
        "chunking_seconds": environments.seconds,
        "chunking_cpu_seconds": environments.cpu_seconds,
        "retrieval_seconds": activity.get("retrieve", 0.0),
        "embedding_seconds": activity.get("embed", 0.0),
    }


def main() -> int:
    """Measure, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument(
        "--embedder_model", help="a sentence-transformers folder (unset: HashingEmbedder)"
    )
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--together", type=int, default=TOGETHER, help="episodes at the same time")
    add_quick(parser, documents=30, together=2)
    options = parser.parse_args()
    documents, count = options.documents, options.together
    tokenizer: Any = AutoTokenizer.from_pretrained(options.tokenizer or models.smollm2())
    model = options.embedder_model
    embedder = make_embedder(
        EmbedderConfig(*(("sentence_transformer", model) if model else ("hashing",)))
    )
    tasks = [make_long_task(index, documents) for index in range(1 + count)]
    tokens = (
        len(tokenizer.encode(" ".join(document.text for document in tasks[0].documents)))
        / documents
    )
    with tempfile.TemporaryDirectory() as out:
        asyncio.run(measure(tokenizer, embedder, [make_long_task(99, 80)], Path(out, "small"), 0.0))
        alone = asyncio.run(measure(tokenizer, embedder, tasks[:1], Path(out, "alone"), LATENCY))
        together = asyncio.run(
            measure(tokenizer, embedder, tasks[1:], Path(out, "together"), LATENCY)
        )
    fraction = (alone["chunking_seconds"] + alone["retrieval_seconds"]) / alone["seconds"]
    for name, part in (("alone", alone), (f"{count} together", together)):
        print(f"{name:<12}" + "  ".join(f"{key} {value:.3f}" for key, value in part.items()))
    result: dict[str, Any] = {
        "documents": documents,
        "questions": QUESTIONS,
        "tokens_per_document": round(tokens, 1),
        "alone": {key: round(value, 4) for key, value in alone.items()},
        "together": {
            "episodes": count,
            **{key: round(value, 4) for key, value in together.items()},
        },
        "megabytes": round(alone["megabytes"], 1),
        "megabytes_each_together": round(together["megabytes"] / count, 1),
        "chunking_and_retrieval_fraction": round(fraction, 5),
        "embedding_fraction": round(alone["embedding_seconds"] / alone["seconds"], 5),
    }
    result["holds"] = (
        documents >= DOCUMENTS
        and result["megabytes"] < MOST_MEGABYTES
        and result["megabytes_each_together"] < MOST_MEGABYTES
        and fraction < MOST_FRACTION
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

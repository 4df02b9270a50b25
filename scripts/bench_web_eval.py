"""Does a real model go through the web environment end to end, on a corpus, with every ending named?

    VLLM_PYTHON=/path/to/python OMP_NUM_THREADS=2 python scripts/bench_web_eval.py

SmolLM2-135M-Instruct, served by vLLM, asks a corpus (the sample corpus of 2WikiMultihopQA and the paragraphs of the
sample questions, words alone) with `atommem eval --environment web --tools corpus` for 20 of the sample questions, at
most 8 calls each, temperature 0.7, from worked turns in place of instructions. A model of this size answers next to
nothing: that the machinery survives it is what is claimed, no score.

Every episode must be recorded with an ending that has a name, none may fail or go beyond its calls, and every trace is
replayed: the recorded completions, given again to a new episode on the corpus that was opened anew, must lead to the
same observations, memory, operations and prompt lengths at every step, and to the same score.

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import models
from agents import make_agent
from bench_corpus import sample_pages
from quick import add_quick, command_line, flags, last_line
from vllm_process import ROOT, VllmServer

from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.task import Question, Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.corpus import build_corpus
from atommem.episode import Episode, Step
from atommem.episode_runner import EpisodeRunner
from atommem.eval.eval_cli import main as evaluate
from atommem.observation import StopReason
from atommem.policy.contract import Completion, Sampling
from atommem.policy.opening import load_tokenizer
from atommem.trace import read_trace

BENCHMARK = "2wikimultihopqa"
TEMPLATES = str(ROOT / "configs" / "templates" / "chatml_browsing.yaml")
"""Worked turns: from a description of the tools a model of this size makes no call (0 in 180 steps)."""
CALLS, CHUNK_TOKENS, MAX_TOKENS, RESULTS, SCRATCHPAD, EMBEDDER = 8, 512, 192, 3, 256, 256
MODEL_NAME = "smollm2"


class Recorded:
    """Gives the completions of an episode again, one after the other."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)
        self.prompts: list[int] = []

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """The next of them."""
        step = next(self._steps)
        self.prompts.append(len(prompt_ids))
        return Completion(step.token_ids, step.logprobs, step.text, step.finish_reason)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Nothing to free."""


def settings(corpus: Path) -> dict[str, Any]:
    """Of environment, memory and sampling."""
    return {
        "environment": "web",
        "tools": ["corpus"],
        "corpus": str(corpus),
        "max_calls": CALLS,
        "chunk_tokens": CHUNK_TOKENS,
        "search_results": RESULTS,
        "templates": TEMPLATES,
        "scratchpad_tokens": SCRATCHPAD,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.7,
    }


def make_tasks(data: Path, count: int) -> list[Task]:
    """Questions without their documents."""
    rows = get_benchmark(BENCHMARK).read(data / BENCHMARK / "dev.json")
    asked = (
        Task(row.id, (Question(row.question, row.answers, row.id),), source=BENCHMARK)
        for row in rows
    )
    return list(islice(asked, count))


def run(url: str, model: Path, corpus: Path, tasks: list[Task], out: Path) -> int:
    """`atommem eval`; its exit status."""
    path = out.with_name("tasks.jsonl")
    save_tasks(tasks, path)
    of = {"policy": url, "model": MODEL_NAME, "tokenizer": model, "data": path, "out": out}
    with contextlib.redirect_stdout(io.StringIO()):
        return evaluate(
            flags({**of, "embedder": "hashing", "embedder_dim": EMBEDDER, **settings(corpus)})
        )


async def replay(task: Task, recorded: Episode, tokenizer: Any, corpus: Path) -> list[str]:
    """What of a trace does not come again."""
    policy = Recorded(recorded.steps)
    agent = make_agent(policy, HashingEmbedder(EMBEDDER), tokenizer, **settings(corpus))
    again = await EpisodeRunner(agent).run(task)
    await agent.environments.close()
    ends = ("stop_reason", "reward", "answers", "metrics")
    wrong = [
        f"{task.id}: {name} differs"
        for name in ends
        if getattr(again, name) != getattr(recorded, name)
    ]
    if len(again.steps) != len(recorded.steps):
        return [*wrong, f"{task.id}: {len(again.steps)} steps instead of {len(recorded.steps)}"]
    for before, now, length in zip(recorded.steps, again.steps, policy.prompts, strict=True):
        same = {
            name: getattr(before, name) == getattr(now, name)
            for name in ("observation", "operations", "actions")
        }
        same["view"] = [item.text for item in before.view.retrieved] == [
            item.text for item in now.view.retrieved
        ]
        same["scratchpad"] = before.view.scratchpad == now.view.scratchpad
        same["prompt"] = before.prompt_tokens in (0, length)
        wrong += [
            f"{task.id}, step {now.index}: {name} differs"
            for name, equal in same.items()
            if not equal
        ]
    return wrong


def check(tasks: list[Task], out: Path, model: Path, corpus: Path) -> dict[str, Any]:
    """Figures of the evaluation in `out`, with ``problems``."""
    tokenizer = load_tokenizer(str(model))
    problems: list[str] = []
    endings: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    steps = 0
    for task in tasks:
        episode = read_trace(out / "traces" / f"{task.id}.0.jsonl").episode
        endings[str(episode.stop_reason)] += 1
        made = [
            action.kind
            for step in episode.steps
            for action in step.actions
            if action.arguments is not None
        ]
        refused = [problem.reason for step in episode.steps for problem in step.problems]
        calls.update(["carried out" for _ in made] + [f"refused: {reason}" for reason in refused])
        steps += len(episode.steps)
        if episode.stop_reason not in {*StopReason} - {StopReason.FAILED}:
            problems.append(f"{task.id} ended as {episode.stop_reason}: {episode.error}")
        left = [number for step in episode.steps for number in step.observation.values("left")]
        if left != sorted(left, reverse=True) or any(
            not 0 <= int(number) <= CALLS for number in left
        ):
            problems.append(f"{task.id}: calls left were {left}")
        problems += asyncio.run(replay(task, episode, tokenizer, corpus))
    return {"endings": dict(endings), "steps": steps, "written": dict(calls), "problems": problems}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument(
        "--benchmarks", type=Path, default=ROOT.parent / "shared" / "data", metavar="FOLDER"
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="unset: SmolLM2, of scripts/models.py"
    )
    parser.add_argument("--n", type=int, default=20, help="questions")
    parser.add_argument("--out", type=Path, help="keep traces, corpus and the server's log here")
    add_quick(parser, n=1)
    args = parser.parse_args()
    model = args.model or models.smollm2()
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        corpus, tasks = out / "corpus", make_tasks(args.benchmarks, args.n)
        pages = build_corpus(sample_pages(args.benchmarks), corpus)["pages"]
        server = VllmServer(
            model,
            out / "server.log",
            env={"VLLM_CPU_KVCACHE_SPACE": "2"},
            served_model_name=MODEL_NAME,
        )
        with server:
            started = time.perf_counter()
            status = run(server.url, model, corpus, tasks, out / "eval")
            seconds = time.perf_counter() - started
        result = check(tasks, out / "eval", model, corpus)
        summary = json.loads((out / "eval" / "summary.json").read_text())
    if status:
        result["problems"].append(f"atommem eval ended with status {status}")
    for problem in result["problems"]:
        print(problem)
    em = summary["metrics"]["em"]["mean"] if "em" in summary["metrics"] else None
    result |= {"questions": len(tasks), "pages": pages, "em": em, "seconds": round(seconds)}
    result["holds"] = not result["problems"]
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

"""Tasks of the synthetic world through `atommem serve`, with the question as a goal and blind, beside `atommem eval`.

    python scripts/bench_serve_tasks.py --policy runs/blind/mixture_0/grpo [--n 300]

Each task is a conversation: its documents are one item, the question is asked after it; with the goal in its metadata
the question is shown while reading, without it the policy reads blind. The same tasks go through the evaluation's loop
(`questions_shown: reading` and `answering`). Both decode greedily, so what differs is what serving does otherwise: its
vectors are float16, and requests are batched by when they come. Without --policy the mixture's is trained first
(`bench_blind.py`).

The last line is one JSON object; exit status 0 if EM is within .02 of the evaluation's in both ways, on 300 tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
from bench_blind import WAYS, measure, trained
from quick import add_quick, command_line, last_line
from serve_gateways import serving

from atommem.demo.recipe import MIXED
from atommem.envs.scoring.answers import score_answers
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task

CLOSE = 0.02
AT_ONCE = 32


async def served(url: str, tasks: Sequence[Task], way: str) -> tuple[float, list[str | None]]:
    """EM and answers of tasks through the API."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=3, timeout=600)
    slots = asyncio.Semaphore(AT_ONCE)

    async def answered(task: Task) -> str | None:
        question = task.questions[0].text
        parts: Any = [{"type": "input_text", "text": document.text} for document in task.documents]
        async with slots:
            goal = {"goal": question} if way == "reading" else {}
            conversation = await client.conversations.create(
                metadata=goal, items=[{"type": "message", "role": "user", "content": parts}]
            )
            given = await client.responses.create(conversation=conversation.id, input=question)
            return given.output_text if given.status == "completed" else None

    answers = list(await asyncio.gather(*map(answered, tasks)))
    scored = [
        await score_answers(task, [answer], "em")
        for task, answer in zip(tasks, answers, strict=True)
    ]
    await client.close()
    return sum(score.metrics["em"] for score in scored) / len(tasks), answers


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, evaluate, compare; print the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--policy", type=Path, help="its folder (runs/blind/mixture_0/grpo)")
    parser.add_argument("--n", type=int, default=300, help="tasks (%(default)s)")
    parser.add_argument(
        "--task_seed", type=int, default=1_000_004, help="of the tasks; no demo's (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/serve_tasks"))
    add_quick(parser, n=4)
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    blind = Path("runs/blind_quick" if given.quick else "runs/blind")
    policy = given.policy or trained("mixture", 0, blind, given.quick)
    tasks = list(generate(MIXED.world, given.n, given.task_seed))
    evaluated = asyncio.run(measure(policy, given.n, given.task_seed, temperature=0.0))
    ways = {}
    with serving(["--policy", str(policy), "--temperature", "0"], given.out) as url:
        for way in WAYS:
            started = time.perf_counter()
            em, answers = asyncio.run(served(url, tasks, way))
            theirs = {
                record.task_id: record.questions[0].answer for record in evaluated[way].records
            }
            ways[way] = {
                "em_served": round(em, 4),
                "em_evaluated": round(evaluated[way].em, 4),
                "other_answers": sum(
                    theirs[task.id] != given for task, given in zip(tasks, answers, strict=True)
                ),
                "seconds": round(time.perf_counter() - started, 1),
            }
            print(f"{way}: served {em:.3f}, evaluated {evaluated[way].em:.3f}", flush=True)
    close = all(abs(way["em_served"] - way["em_evaluated"]) <= CLOSE for way in ways.values())
    holds = close and given.n >= 300
    return last_line(
        {
            "bench": "serve_tasks",
            "n": given.n,
            "temperature": 0,
            **ways,
            "bar": CLOSE,
            "holds": holds,
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""A LoCoMo conversation, fed session by session to `atommem serve`, then asked; scored as `atommem eval` does.

    python scripts/bench_serve_locomo.py --benchmarks FOLDER [--questions 20]
    python scripts/bench_serve_locomo.py --benchmarks FOLDER --document 60000

SmolLM2-135M-Instruct behind the vLLM that `atommem serve --vllm` starts, at a context of 2,048 tokens, MiniLM as the
embedder, the unmodified client of OpenAI. Each session of the dialogue is an item, read before the next one comes; no
question is known while it is read (`questions_shown: answering`). Then questions from all over the file's list are
asked, and the answers scored by `atommem eval`'s scorer. The same questions go to a conversation that has read nothing:
what a model of this size gets by guessing. It was trained for none of this, and its scores say nothing of a trained
policy. What is held is that all of it went through: every session read, no part of it left out, every question asked,
every step in the log with its tokens, no prompt over the context.

With ``--document`` it is one text of at least so many tokens instead, made of paragraphs of MuSiQue, given as one item,
and three questions on its beginning, middle and end. Without FOLDER an invented conversation of one session will do,
which measures nothing.

The last line is one JSON object; exit status 0 if that holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import models
import openai
from quick import add_quick, command_line, flags, last_line
from serve_gateways import serving
from vllm_process import vllm_python

from atommem.envs.benchmarks.locomo import read_locomo
from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.scoring.answers import score_answers
from atommem.envs.task import Document, Question, Task
from atommem.policy.opening import load_tokenizer
from atommem.trace import step_of

CONTEXT = 2048
SETTINGS = {
    "questions_shown": "answering",
    "templates": "chatml_examples",
    "chunk_tokens": "500",
    "scratchpad_tokens": "128",
    "entry_tokens": "96",
    "query_tokens": "48",
    "retrieve_k": "4",
    "max_reads": "1",
    "max_tokens": "96",
    "temperature": "0",
}


INVENTED = {
    "sample_id": "invented",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bob",
        "session_1_date_time": "1:00 pm on 2 May, 2023",
        "session_1": [
            {"speaker": "Ann", "dia_id": "D1:1", "text": "I have moved to Rome."},
            {"speaker": "Bob", "dia_id": "D1:2", "text": "My boat is called Vesk."},
        ],
    },
    "qa": [
        {"question": "Where did Ann move?", "answer": "Rome", "evidence": ["D1:1"], "category": 4}
    ],
}


def conversation_of(path: Path, number: int) -> tuple[Task, list[tuple[str, list[Document]]]]:
    """A conversation of the file with all of its questions, and its sessions: date and turns."""
    task = list(read_locomo(path, questions=10_000))[number]
    return task, [
        (date, list(turns)) for date, turns in groupby(task.documents, lambda turn: turn.title)
    ]


def document_of(
    path: Path, tokens: int, count: Callable[[str], int]
) -> tuple[Task, list[tuple[str, list[Document]]]]:
    """A text of at least `tokens` tokens out of the file's paragraphs, and three of its rows' questions."""
    rows, paragraphs, length = [], [], 0
    for row in get_benchmark("musique").read(path):
        rows.append(row)
        for paragraph in row.paragraphs:
            paragraphs.append(Document(paragraph.title, f"{paragraph.title}\n{paragraph.text}"))
            length += count(paragraphs[-1].text)
        if length >= tokens:
            break
    asked = [
        Question(row.question, row.answers, id=row.id, metadata={"category": row.metadata["type"]})
        for row in (rows[0], rows[len(rows) // 2], rows[-1])
    ]
    task = Task(f"musique-{length}-tokens", tuple(asked), tuple(paragraphs))
    return task, [("", paragraphs)]


def all_steps(url: str, conversation: str) -> list[dict[str, Any]]:
    """The steps of a conversation, as its log has them."""
    steps: list[dict[str, Any]] = []
    after = 0
    while True:
        page = httpx.get(
            f"{url}/v1/conversations/{conversation}/steps",
            params={"after": after, "limit": 100},
            timeout=60,
        ).json()
        steps += page["data"]
        if not page["has_more"]:
            return steps
        after = page["data"][-1]["version"]


def shown(step: dict[str, Any]) -> str:
    """The text that was in front of the policy at a step of reading."""
    return "".join(step_of(step).observation.values("chunk"))


def squeezed(text: str) -> str:
    """`text` without white space, which is cut at."""
    return "".join(text.split())


def ask(
    client: openai.OpenAI, conversation: str, questions: Sequence[Question]
) -> list[str | None]:
    """The answers; None where none was given."""
    answers: list[str | None] = []
    for question in questions:
        given = client.responses.create(
            model="smollm2", conversation=conversation, input=question.text
        )
        answers.append(given.output_text if given.status == "completed" else None)
    return answers


def scores(task: Task, answers: Sequence[str | None]) -> dict[str, Any]:
    """EM and F1 as `atommem eval` has them, and F1 by category."""
    score = asyncio.run(score_answers(task, answers, "em"))
    by_category: dict[str, list[float]] = {}
    for question, metrics in zip(task.questions, score.question_metrics, strict=True):
        by_category.setdefault(str(question.metadata["category"]), []).append(metrics["f1"])
    found = {name: round(value, 4) for name, value in score.metrics.items()}
    answered = sum(answer is not None for answer in answers)
    return {
        **found,
        "answered": answered,
        "f1_by_category": {k: round(fmean(v), 4) for k, v in by_category.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Feed, ask, score; print the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--benchmarks", type=Path, help="folder with locomo/locomo10.json")
    parser.add_argument(
        "--conversation", type=int, default=0, help="which of the file (%(default)s)"
    )
    parser.add_argument("--sessions", type=int, help="only the first so many; all by default")
    parser.add_argument(
        "--document", type=int, metavar="TOKENS", help="read one text of so many tokens instead"
    )
    parser.add_argument(
        "--questions", type=int, default=20, help="how many are asked (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/serve_locomo"))
    add_quick(parser, sessions=1, questions=1)
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "invented.json"
    file.write_text(json.dumps([INVENTED]), encoding="utf-8")
    if given.benchmarks is not None:
        file = given.benchmarks / "locomo" / "locomo10.json"
    model = models.smollm2()
    tokenizer = load_tokenizer(str(model))
    if given.document:
        file = given.benchmarks / "musique" / "musique_ans_v1.0_dev.jsonl"
        task, sessions = document_of(file, given.document, lambda text: len(tokenizer.encode(text)))
    else:
        task, sessions = conversation_of(file, given.conversation)
    every = max(1, len(task.questions) // given.questions)
    task = replace(task, questions=task.questions[::every][: given.questions])
    sessions = sessions[: given.sessions]
    os.environ["VLLM_PYTHON"] = vllm_python()
    settings = {
        "policy": model,
        "embedder": "sentence_transformer",
        "embedder_model": models.minilm(),
        **SETTINGS,
    }
    settings |= {"chunk_tokens": "900"} if given.document else {}
    with serving([*flags(settings), f"--vllm=--max-model-len {CONTEXT}"], given.out) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2, timeout=3600)
        conversation = client.conversations.create(metadata={"conversation": task.id}).id
        started, took, given_text = time.perf_counter(), [], []
        for number, (date, turns) in enumerate(sessions, 1):
            text = "\n".join([date, *(turn.text for turn in turns)]).strip()
            given_text.append(text)
            item: Any = {
                "type": "message",
                "role": "user",
                "content": text,
                "name": f"session {number}",
            }
            begun = time.perf_counter()
            client.conversations.items.create(conversation, items=[item])
            took.append(time.perf_counter() - begun)
            print(f"session {number}/{len(sessions)}: {took[-1]:.1f} s", flush=True)
        reading = all_steps(url, conversation)
        answers = ask(client, conversation, task.questions)
        steps = all_steps(url, conversation)
        held = httpx.get(f"{url}/v1/conversations/{conversation}/memory", timeout=60).json()
        empty = client.conversations.create().id
        guesses = ask(client, empty, task.questions)
    seconds = time.perf_counter() - started
    longest = max(step["prompt_tokens"] + len(step["token_ids"]) for step in steps)
    sources = {step["observation"]["origin"].partition(",")[0] for step in reading}
    checks = {
        "every session was read": len(sources) == len(sessions),
        "no part of it was left out": squeezed("".join(map(shown, reading)))
        == squeezed("".join(given_text)),
        "every question was asked": len(answers) == len(task.questions) > 0,
        "all steps are in the log": [step["index"] for step in steps] == list(range(len(steps))),
        "with their tokens": all(
            len(step["prompt_ids"]) == step["prompt_tokens"] for step in steps
        ),
        "no prompt over the context": longest <= CONTEXT,
        "nobody knew the questions while reading": not any(
            question.text in json.dumps(step["observation"])
            for step in reading
            for question in task.questions
        ),
    }
    for name, holds in checks.items():
        print(f"  {'yes' if holds else 'NO '}  {name}")
    result = {
        "bench": "serve_locomo",
        "conversation": task.id,
        "sessions": len(sessions),
        "turns": sum(len(turns) for _, turns in sessions),
        "reading_steps": len(reading),
        "steps": len(steps),
        "stream_tokens": sum(step["prompt_tokens"] for step in reading),
        "longest_prompt_and_completion": longest,
        "entries": len(held["entries"]),
        "seconds": round(seconds, 1),
        "seconds_a_session": round(fmean(took), 2),
        "scores": scores(task, answers),
        "scores_without_reading": scores(task, guesses),
        "checks": checks,
        "holds": all(checks.values()),
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

"""Streams with scripted replies, for a method here and its authors' own code alike, and what becomes of them here.

Every name in a stream is a word like ``q17`` that stands nowhere else, so that what a prompt shows can be compared
whatever its wording is. An outcome holds:

- ``shown``: for every call while reading, the words that its prompt shows, sorted;
- ``answer``: what the questions are answered from, in its order;
- ``store``: the texts that are kept in the end, sorted (MemAgent: its memory).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from atommem.config import MemoryConfig
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task
from atommem.eval.methods import make_method
from atommem.memory.log import replay
from atommem.policy.contract import Sampling
from tests.eval.methods.toys import make_setup
from tests.fakes import ListPolicy, WordEmbedder

METHODS = ("a_mem", "mem0", "memagent")
K, CHUNK_WORDS = 4, 20
WORD = re.compile(r"\bq\d+")  # A-Mem joins fields without a blank


def words_of(text: str) -> list[str]:
    """The words of a stream in a text, each once, in the order in which they first come."""
    return list(dict.fromkeys(WORD.findall(text)))


def vector_of(text: str) -> np.ndarray:
    """A unit vector that follows from the words of a text, whatever stands between them; shape (64,), float32."""
    total = np.zeros(64)
    for word in WORD.findall(text) or [text]:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(64)
    return (total / np.linalg.norm(total)).astype(np.float32)


def make_case(method: str, seed: int, size: int) -> dict[str, Any]:
    """A stream of `size` texts and the replies to all calls while it is read, in the order of the authors' calls."""
    draw, count = random.Random(f"{method} {seed}"), iter(range(10**9))

    def new(least: int = 1, most: int = 3) -> list[str]:
        return [f"q{next(count)}" for _ in range(draw.randint(least, most))]

    def old(known: Sequence[str]) -> str:
        return draw.choice(known) if known and draw.random() < 0.3 else f"q{next(count)}"

    texts = [" ".join(new(4, 12)) for _ in range(size)]
    known = [word for text in texts for word in text.split()]
    replies: list[str] = []
    for place in range(size):
        if method == "a_mem":
            described = {"keywords": new(), "context": " ".join(new()), "tags": new()}
            evolved = {
                "should_evolve": place > 0 and draw.random() < 0.8,
                "actions": draw.sample(["strengthen", "update_neighbor"], draw.randint(0, 2)),
                "suggested_connections": [draw.randrange(place) for _ in range(draw.randint(0, 3))]
                if place
                else [],
                "tags_to_update": new(0, 3),
                "new_context_neighborhood": [" ".join(new()) for _ in range(draw.randint(0, 6))],
                "new_tags_neighborhood": [new(0, 3) for _ in range(draw.randint(0, 6))],
            }
            # Its code has replies forced to be JSON, and reads the first of the two without words around it.
            replies += [_worded(draw, described, around=False), _worded(draw, evolved)]
        elif method == "mem0":
            facts: list[Any] = [f"{old(known)} {old(known)}" for _ in range(draw.randint(0, 6))]
            shaped = [
                draw.choice([fact, fact, {"fact": fact}, {"text": fact}, {"other": fact}])
                for fact in facts
            ]
            reply = _worded(draw, {"facts": shaped})
            replies.append(reply)
            if "{" in reply and any(
                isinstance(fact, str) or "other" not in fact for fact in shaped
            ):
                decided = [
                    _decision(draw, f"{old(known)} {old(known)}") for _ in range(draw.randint(0, 9))
                ]
                broken: Any = draw.choice([None, {}, "q", 3, decided[:1] and decided[0]])
                replies.append(
                    _worded(draw, {"memory": broken if draw.random() < 0.1 else decided})
                )
        else:
            replies.append(" ".join(new(1, 12)))
    if method == "memagent":
        words = len(" ".join(texts).split())
        replies = [*replies, *(" ".join(new()) for _ in range(words))][: -(-words // CHUNK_WORDS)]
    questions = [" ".join([draw.choice(known), draw.choice(known), *new(1, 1)]) for _ in range(3)]
    return {
        "method": method,
        "texts": texts,
        "questions": questions,
        "replies": replies,
        "k": K,
        "chunk": CHUNK_WORDS,
    }


def _worded(draw: random.Random, value: Any, around: bool = True) -> str:
    """A value as models write it: bare, between fences, with words around it; or nothing that can be read."""
    text = json.dumps(value)
    forms = [
        text,
        text,
        text,
        f"```json\n{text}\n```",
        f"Here it is: {text}" if around else text,
        "nothing",
        "",
    ]
    return draw.choice(forms if draw.random() < 0.5 else [text])


def _decision(draw: random.Random, text: str) -> Any:
    decision: dict[str, Any] = {
        "id": draw.choice([*map(str, range(6)), *map(str, range(3)), 0, "new", None]),
        "text": draw.choice([text] * 8 + ["", None]),
        "event": draw.choice(["ADD", "ADD", "UPDATE", "UPDATE", "DELETE", "NONE", "add", None]),
    }
    if draw.random() < 0.1:
        del decision[draw.choice(list(decision))]
    return decision if draw.random() < 0.95 else draw.choice(["ADD", 3, None, [decision]])


class WordVectors(WordEmbedder):
    """`vector_of` as an embedder; queries and entries alike, as most of the authors' code has it."""

    id = "words of a stream"

    async def embed(self, texts: Sequence[str], kind: str) -> np.ndarray:
        return np.stack([vector_of(text) for text in texts])


def run(case: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a case here; where it asks for more or fewer replies than there are, how many."""
    replies, method = list(case["replies"]), case["method"]
    if method == "a_mem":
        del replies[1]  # the first note has no neighbours, and nothing is asked of it
    chunking = (
        {"chunking": "documents"} if method != "memagent" else {"chunk_tokens": case["chunk"]}
    )
    environment, memory = (
        environment_config("longdoc", max_reads=0, **chunking),
        MemoryConfig(retrieve_k=case["k"]),
    )
    setup, own = make_setup(
        environment=environment, embedder=WordVectors(), memory=memory, sampling=Sampling()
    )
    policy = ListPolicy(own.tokenizer, [*replies, "\\boxed{x}"])
    questions = tuple(Question(question, ("x",)) for question in case["questions"])
    documents = tuple(Document("", text) for text in case["texts"])
    task = Task("t", questions, documents)
    if method == "memagent":
        task = Task("t", questions, context=" ".join(case["texts"]))
    episode = None
    with suppress(IndexError):
        episode = asyncio.run(make_method(method, replace(setup, policy=policy)).run(task))
    if episode is None or policy.texts:
        return {"asked": len(policy.prompts), "replies": len(replies)}
    contents = replay(operation for step in episode.steps for operation in step.operations)
    last = episode.steps[-1].view
    asked = (
        {word for question in case["questions"] for word in words_of(question)}
        if method == "memagent"
        else set()
    )
    return {
        "shown": [sorted({*words_of(prompt)} - asked) for prompt in policy.prompts[:-1]],
        "answer": words_of("\n".join([last.scratchpad, *(item.text for item in last.retrieved)])),
        "store": sorted(
            [
                *(entry.text for entry in contents.entries.values()),
                *[contents.scratchpad] * bool(asked),
            ]
        ),
    }


def digest(outcome: dict[str, Any]) -> str:
    """What tells two outcomes apart."""
    return hashlib.sha256(json.dumps(outcome, sort_keys=True).encode()).hexdigest()[:16]

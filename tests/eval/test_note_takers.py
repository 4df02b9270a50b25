"""The baselines that keep notes, against recordings of their authors' own code and by hand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import ProblemReason
from atommem.config import MemoryConfig
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.eval.methods import make_method
from atommem.eval.methods.generative_agents import stream_scores
from atommem.memory.log import replay
from atommem.policy.contract import Sampling
from tests.eval.toys import TASK, make_setup, right
from tests.fakes import ListPolicy, WordEmbedder

NAMES = ("a_mem", "generative_agents", "mem0")
# Streams with scripted replies, and the outcomes of the authors' code (A-Mem, mem0, MemAgent).
RECORDED = json.loads(Path(__file__).with_name("authors.json").read_text())
WORD = re.compile(r"\bq\d+")


def words_of(text: str) -> list[str]:
    """The words of a recorded stream in a text, each once."""
    return list(dict.fromkeys(WORD.findall(text)))


class StreamEmbedder(WordEmbedder):
    """Vectors that depend on the words of a recorded stream only."""

    async def embed(self, texts: Sequence[str], kind: str) -> np.ndarray:
        rows = []
        for text in texts:
            total = np.zeros(64)
            for word in WORD.findall(text) or [text]:
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
                total += np.random.default_rng(seed).standard_normal(64)
            rows.append((total / np.linalg.norm(total)).astype(np.float32))
        return np.stack(rows)


@pytest.mark.parametrize(
    "case", RECORDED, ids=[f"{case['method']}-{at % 4}" for at, case in enumerate(RECORDED)]
)
async def test_method_shows_and_stores_what_the_authors_code_does(case: dict[str, Any]) -> None:
    method, replies, texts = case["method"], case["replies"], case["texts"]
    chunking: dict[str, Any] = {"chunking": "documents"}
    questions = tuple(Question(question, ("x",)) for question in case["questions"])
    task = Task("t", questions, tuple(Document("", text) for text in texts))
    in_question = set[str]()
    if method == "a_mem":
        del replies[1]  # the authors' code asks for the neighbours of the first note too
    if method == "memagent":
        chunking = {"chunk_tokens": 20}
        task = Task("t", questions, context=" ".join(texts))
        in_question = {word for text in case["questions"] for word in words_of(text)}
    setup, own = make_setup(
        environment=environment_config("longdoc", max_reads=0, **chunking),
        embedder=StreamEmbedder(),
        memory=MemoryConfig(retrieve_k=4),
        sampling=Sampling(),
    )
    policy = ListPolicy(own.tokenizer, [*replies, "\\boxed{x}"])
    episode = await make_method(method, replace(setup, policy=policy)).run(task)
    assert not policy.texts, "it asked for fewer replies"
    contents = replay(operation for step in episode.steps for operation in step.operations)
    store = [entry.text for entry in contents.entries.values()]
    store += [contents.scratchpad] * (method == "memagent")
    last = episode.steps[-1].view
    assert case["outcome"] == {
        "shown": [sorted({*words_of(prompt)} - in_question) for prompt in policy.prompts[:-1]],
        "answer": words_of("\n".join([last.scratchpad, *(item.text for item in last.retrieved)])),
        "store": sorted(store),
    }


def store_of(episode: Episode) -> list[str]:
    entries = replay(operation for step in episode.steps for operation in step.operations).entries
    return [entry.text for entry in entries.values()]


def test_stream_scores_equal_those_by_hand() -> None:
    # Recency 0.99^2, 0.99, 1 scales to 0, (0.99 - 0.9801) / 0.0199, 1; relevance is constant.
    scores = stream_scores([1, 9, 5], [0.3, 0.3, 0.3])
    assert scores == pytest.approx([0.0, 0.5 * (0.99 - 0.9801) / 0.0199 + 2.0, 0.5 + 1.0])
    assert stream_scores([5], [0.2]) == pytest.approx([0.0])
    assert np.argmax(stream_scores([5, 5], [0.9, 0.1])) == 0


async def test_generative_agents_beyond_the_threshold_reflect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atommem.eval.methods.generative_agents.THRESHOLD", 15)

    reply = json.dumps(
        {
            "questions": ["What grows ?", "Who is who ?", "Why ?", "a fourth"],
            "insights": [{"insight": f"insight {n}"} for n in range(7)],
            "importance": 8,
        }
    )
    setup, policy = make_setup(
        lambda prompt: right(prompt) if "Answer every question" in prompt else reply
    )
    episode = await make_method("generative_agents", setup).run(TASK)
    # After the second and the fourth document: questions, three times insights, and 15 ratings.
    assert len(policy.prompts) == 4 + 2 * (1 + 3 + 3 * 5) + 1
    assert len(store_of(episode)) == 4 + 2 * 15


@pytest.mark.parametrize(
    ("reply", "malformed"),
    [
        ('Here you are: {"facts": ["x"], "should_evolve": true} - done', False),
        ("nothing", True),
        ('{"facts": ' * 1100, True),
        ('{"facts": [1, {}], "memory": 3, "importance": [], "tags": [{}], "actions": 1}', False),
    ],
)
@pytest.mark.parametrize("name", NAMES)
async def test_method_with_any_reply_finishes_and_records_malformed_json(
    name: str, reply: str, malformed: bool
) -> None:
    setup, _ = make_setup(
        lambda prompt: right(prompt) if "Answer every question" in prompt else reply
    )
    episode = await make_method(name, setup).run(TASK)
    assert episode.reward == 1.0
    for step in episode.steps:
        if step.observation.phase == "reading":
            reasons = [problem.reason for problem in step.problems]
            assert (ProblemReason.NOT_JSON in reasons) == malformed
    assert len(store_of(episode)) == (0 if name == "mem0" else 4)


@pytest.mark.parametrize("name", [*NAMES, "rag"])
async def test_outage_while_reading_fails_the_episode(name: str) -> None:
    setup, policy = make_setup(lambda prompt: OutageError("gone"))
    assert (await make_method(name, setup).run(TASK)).error == "gone"
    policy.script = lambda prompt: '{"facts": ["x"]}'
    setup.embedder.fail = OutageError("no embeddings")  # type: ignore[attr-defined]
    assert (await make_method(name, setup).run(TASK)).error == "no embeddings"

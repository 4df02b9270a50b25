"""One scripted policy, one stream: training, evaluation and serving show, write and answer the same, token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding import make_embedder
from atommem.environment import environment_config, make_environments
from atommem.envs.chunking import chunk_task, joined_text
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.eval.methods import Setup, make_method
from atommem.memory.log import Operation
from atommem.policy.contract import Sampling
from atommem.policy.scripted import ScriptedPolicy
from atommem.serve.served_policy import HalfPrecision
from atommem.train.rollout.episodes import Rollouts
from tests.fakes import WordTokenizer
from tests.serve.servers import make_conversations, note_taker, running, scripted

MEMORY = MemoryConfig(retrieve_k=3, entry_tokens=12)
EMBEDDER = EmbedderConfig(embedder="hashing")


def without_source(operations: Any) -> list[Operation]:
    """A served text's chunks are known by its name, too."""
    pieces = [None if item.source is None else item.source.piece for item in operations]
    return [
        item
        if piece is None
        else replace(item, source=replace(item.source, piece=piece.rpartition(", ")[2]))
        for item, piece in zip(operations, pieces, strict=True)
    ]


@pytest.mark.parametrize("shown", ["reading", "answering"])
@pytest.mark.parametrize("chunking", ["documents", "tokens"])
async def test_training_evaluation_and_serving_are_one(
    shown: str, chunking: str, tmp_path: Path
) -> None:
    tokenizer = WordTokenizer()
    world = {"chunking": chunking, "chunk_tokens": 30, "questions_shown": [shown]}
    environment = environment_config("longdoc", **world)
    embedder = HalfPrecision(make_embedder(EMBEDDER))
    task = next(generate(WorldConfig(), 1, 3))
    policy = ScriptedPolicy(tokenizer, note_taker)

    limits = {"max_completion_length": 200, "episode_max_tokens": None, "episode_max_seconds": None}
    args: Any = SimpleNamespace(temperature=1.0, template_kwargs={}, **limits)
    trained = (
        await Rollouts(args, tokenizer, embedder, MEMORY, environment).runner(policy).run(task)
    )

    environments = make_environments(environment, tokenizer)
    setup = Setup(policy, embedder, tokenizer, environments, MEMORY, Sampling(max_tokens=200))  # type: ignore[arg-type]
    evaluated = await make_method("atommem", setup).run(task)
    assert [step.token_ids for step in evaluated.steps] == [
        step.token_ids for step in trained.steps
    ]
    assert [step.operations for step in evaluated.steps] == [
        step.operations for step in trained.steps
    ]
    assert evaluated.answers == trained.answers

    settings = {"retrieve_k": 3, "entry_tokens": 12, "max_tokens": 200, **world}
    served_policy = scripted(policy=policy, tokenizer=tokenizer, **settings)
    with running(make_conversations(tmp_path / "log.db", served_policy)) as server:
        client, (question,) = server.client(), task.questions
        goal = {"goal": question.text} if shown == "reading" else {}
        texts = chunk_task(task, tokenizer, "documents", 0, False)
        texts = texts if chunking == "documents" else [joined_text(task)]
        parts: Any = [{"type": "input_text", "text": text} for text in texts]
        conversation = client.conversations.create(
            metadata=goal, items=[{"role": "user", "content": parts}]
        ).id
        answer = client.responses.create(
            model="scripted", conversation=conversation, input=question.text
        )
        with server.http() as http:
            steps = http.get(
                f"/v1/conversations/{conversation}/steps", params={"limit": 100}
            ).json()["data"]
        log = server.conversations.log.load(conversation, "local", "none", True).operations

    assert len(steps) == len(trained.steps) > 3
    assert [step["prompt_ids"] for step in steps] == [step.prompt_ids for step in trained.steps]
    assert [step["token_ids"] for step in steps] == [step.token_ids for step in trained.steps]
    operations = [item for step in trained.steps for item in step.operations]
    assert without_source(log) == without_source(operations)
    assert answer.output_text == trained.answers[0]

"""One scripted policy: training, evaluation and serving show, write and answer the same tokens."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding import make_embedder
from atommem.environment import environment_config, make_factory
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import chunk_task, joined_text
from atommem.eval.methods import Setup, make_method
from atommem.memory.log import Operation
from atommem.policy.contract import Sampling
from atommem.run import RunConfig
from atommem.train.rollout.rollouts import Rollouts
from tests.fakes import ScriptedPolicy, WordTokenizer
from tests.serve.servers import items, make_conversations, note_taker, running, scripted

MEMORY = MemoryConfig(retrieve_k=3, entry_tokens=12)


def without_names(operations: Iterable[Operation]) -> list[Operation]:
    """Sources without the name of the text or question, which only a served one has."""
    found = []
    for item in operations:
        if item.source and (piece := item.source.piece):
            chunk = None if piece.startswith("msg_q") else piece.split(", ")[-1]
            item = replace(item, source=replace(item.source, piece=chunk))
        found.append(item)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("shown", "chunking"), [("reading", "tokens"), ("answering", "documents")])
async def test_training_evaluation_and_serving_give_the_same_tokens(shown, chunking, tmp_path):
    tokenizer = WordTokenizer()
    world = {"chunking": chunking, "chunk_tokens": 30, "questions_shown": [shown]}
    environment = environment_config("longdoc", **world)
    embedder = make_embedder(EmbedderConfig(embedder="hashing"))
    task = next(generate(WorldConfig(), 1, 3))
    policy = ScriptedPolicy(tokenizer, note_taker)

    sampling = Sampling(max_completion_length=200)
    run = RunConfig(memory=MEMORY, environment=environment, sampling=sampling)
    limits = {"episode_max_tokens": None, "episode_max_seconds": None, "max_inflight_tasks": -1}
    args: Any = SimpleNamespace(**limits)
    trained = await Rollouts(args, run, tokenizer, embedder).runner(policy).run(task)

    factory = make_factory(environment, tokenizer)
    setup = Setup(run, policy, embedder, factory)
    evaluated = await make_method("atommem", setup).run(task)
    for one, other in zip(evaluated.steps, trained.steps, strict=True):
        assert one.token_ids == other.token_ids
        assert one.operations == other.operations
    assert evaluated.answers == trained.answers

    settings = {"retrieve_k": 3, "entry_tokens": 12, "max_completion_length": 200, **world}
    model = scripted(policy=policy, **settings)
    (question,) = task.questions
    texts = chunk_task(task, tokenizer, "documents", 0)
    texts = texts if chunking == "documents" else [joined_text(task)]
    goal = {"goal": question.text} if shown == "reading" else {}
    with running(make_conversations(tmp_path / "log.db", model)) as server, server.http() as http:
        body = {**items(*texts), "metadata": goal}
        name = http.post("/v1/conversations", json=body).raise_for_status().json()["id"]
        answer = server.client().responses.create(
            model="scripted", conversation=name, input=question.text
        )
        steps = http.get(f"/v1/conversations/{name}/steps", params={"limit": 100}).json()["data"]
        served = server.conversations.log.load(name, "local", "none")[1].operations

    assert len(steps) == len(trained.steps) > 3
    assert [step["prompt_ids"] for step in steps] == [step.prompt_ids for step in trained.steps]
    assert [step["token_ids"] for step in steps] == [step.token_ids for step in trained.steps]
    assert question.text in steps[-1]["prompt"]
    operations = [item for step in trained.steps for item in step.operations]
    assert without_names(served) == without_names(operations)
    assert answer.output_text == trained.answers[0]

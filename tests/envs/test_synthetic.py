"""The synthetic world and its expert."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.environment import EnvironmentFactory
from atommem.envs.longdoc.environment import MODES
from atommem.envs.synthetic import world
from atommem.envs.synthetic.expert import Expert, ExpertPolicy, Faults
from atommem.envs.synthetic.world import PROSES, RELATIONS, WorldConfig, generate, get_prose
from atommem.envs.task import Task
from atommem.episode import Episode
from atommem.memory.log import Outcome
from atommem.policy.contract import Sampling
from tests.fakes import WordTokenizer, longdoc, make_episode_runner


def solve(task: Task, question_index: int) -> str:
    """Return the answer from all statements, without code of the expert."""
    value: dict[tuple[str, str], str] = {}
    prose = get_prose(task.metadata["prose"])
    for document in task.documents:
        for statement in prose.statements(document.text):
            if statement.kind != "withdrawal":
                value[statement.relation, statement.subject] = statement.value
    name, hops = prose.asked(task.questions[question_index].text)
    for relation in RELATIONS[-hops:]:
        name = value[relation, name]
    return name


@pytest.mark.parametrize("prose", PROSES)
@pytest.mark.parametrize("hops", [1, 4])
def test_answer_follows_from_the_documents(prose, hops):
    knobs: dict[str, Any] = {"questions": (1, 3), "corrections": 0.5, "filler": 1}
    for task in generate(WorldConfig(prose=prose, hops=(hops, hops), **knobs), 30, seed=1):
        gold = tuple(document for document in task.documents if document.gold)
        for index, question in enumerate(task.questions):
            assert question.answers == (solve(task, index),)
            assert question.answers == (solve(replace(task, documents=gold), index),)
            assert question.metadata["hops"] == hops


def test_task_depends_on_config_seed_and_index_only():
    tasks = list(generate(WorldConfig(), 9, seed=3))
    assert list(generate(WorldConfig(), 5, seed=3)) == tasks[:5]
    assert world.make_task(WorldConfig(), 4, 4).documents != tasks[4].documents


def run_expert(
    expert: Any, factory: EnvironmentFactory, tasks: Iterable[Task], **memory: Any
) -> list[Episode]:
    tokenizer = WordTokenizer()
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(2048),
        factory=factory,
        memory=MemoryConfig(**memory),
        sampling=Sampling(seed=0, max_completion_length=400),
    )
    return asyncio.run(runner.run_all([(task, 0) for task in tasks]))


def play(config: WorldConfig, faults: Faults | None = None, mode: str = "reading") -> list[Episode]:
    expert = Expert(get_prose(config.prose), get_dialect("paper"), faults)
    factory = longdoc(WordTokenizer(), max_reads=4, questions_shown=mode)
    tasks = generate(config, 6, seed=11)
    return run_expert(expert, factory, tasks, capacity=config.capacity)


def em(episodes: list[Episode]) -> float:
    return sum(episode.metrics["em"] for episode in episodes) / len(episodes)


ERRATA = {"hops": (3, 3), "opening": 1.0, "corrections": 0.6, "errata": True}
SEVERAL = {"hops": (1, 4), "questions": (2, 4), "corrections": 0.6}


@pytest.mark.parametrize(
    ("knobs", "prose", "mode"),
    [
        ({"hops": (4, 4), "early": 1.0, "distractors": 3}, "compact", "reading"),
        ({"hops": (2, 2), "distractors": 9, "capacity": 2}, "compact", "reading"),
        *((ERRATA, prose, "reading") for prose in PROSES),
        *((SEVERAL, "plain", mode) for mode in MODES),
    ],
)
def test_expert_without_faults_answers_every_question(knobs, prose, mode):
    episodes = play(WorldConfig(**knobs, prose=prose), mode=mode)
    assert em(episodes) == 1.0
    steps = [step for episode in episodes for step in episode.steps]
    assert not any(step.problems for step in steps)
    assert {o.outcome for step in steps for o in step.operations} == {Outcome.APPLIED}


def stopping(faults: Faults, **knobs: Any) -> tuple[list[Task], list[Episode]]:
    """Tasks, and the episodes of an expert that stops reading, all right in the end."""
    tasks = list(generate(WorldConfig(prose="compact", corrections=0.0, **knobs), 8, seed=11))
    expert = Expert(get_prose("compact"), get_dialect("paper"), faults)
    episodes = run_expert(expert, longdoc(WordTokenizer(), max_reads=0, early_stop=True), tasks)
    assert em(episodes) == 1.0
    return tasks, episodes


@pytest.mark.parametrize(
    ("evidence", "least", "most"), [("early", 0.1, 0.5), ("late", 0.85, 1.0), ("mixed", 0.5, 0.85)]
)
def test_expert_that_stops_reads_as_far_as_the_evidence(evidence, least, most):
    tasks, episodes = stopping(Faults(stop=0.0), distractors=9, evidence=evidence)
    read = sum(len(episode.steps) - 1 for episode in episodes)
    assert least < read / sum(len(task.documents) for task in tasks) < most


def test_expert_that_stops_without_an_answer_reads_on():
    _, episodes = stopping(Faults(stop=0.0, wait=1.0), distractors=3, evidence="late")
    for episode in episodes:
        asked = [step for step in episode.steps if step.observation.question == 0]
        assert len(asked) > 2
        assert not any(step.text for step in asked[:-1])


@pytest.mark.parametrize(
    ("fault", "knobs"),
    [
        ("create", {"early": 1.0}),
        ("read", {"early": 1.0}),
        ("update", {"corrections": 1.0}),
        ("scratchpad", {"hops": (3, 3), "opening": 1.0}),
        ("delete", {"distractors": 9, "capacity": 3, "early": 1.0}),
    ],
)
def test_each_fault_lowers_em(fault, knobs):
    assert em(play(WorldConfig(**knobs), Faults(**{fault: 1.0}))) <= 0.5

"""The expert, run through the one loop: an upper bound without faults, and worse by what it forgets."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from atommem.config import MemoryConfig
from atommem.demo.recipe import FULL
from atommem.dialects import get_dialect
from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.expert import Expert, Faults
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import PROSES, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Task
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Outcome
from atommem.policy.contract import Sampling
from atommem.policy.scripted import ScriptedPolicy
from tests.fakes import WordTokenizer, longdoc, make_episode_runner, reading


def play(
    config: WorldConfig,
    faults: Faults | None = None,
    *,
    n: int = 6,
    dialect: str = "paper",
    templates: str = "full",
    disabled: tuple[str, ...] = (),
    capacity: int | None = None,
    seed: int = 0,
    questions_shown: str = "reading",
    retrieve_k: int = 6,
) -> list[Episode]:
    tokenizer = WordTokenizer()
    expert = Expert(get_prose(config.prose), get_dialect(dialect, templates), faults)
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(2048),
        environments=longdoc(tokenizer, max_reads=4, questions_shown=questions_shown),
        memory=MemoryConfig(
            dialect=dialect,
            templates=templates,
            capacity=capacity,
            disabled_actions=list(disabled),
            retrieve_k=retrieve_k,
        ),
        sampling=Sampling(seed=seed),
    )
    tasks: list[Task] = list(generate(config, n, seed=11))
    return asyncio.run(runner.run_all([(task, 0) for task in tasks]))


def em(episodes: list[Episode]) -> float:
    return sum(episode.metrics["em"] for episode in episodes) / len(episodes)


def operations(episodes: list[Episode]) -> Counter[str]:
    return Counter(f"{o.kind} {o.outcome}" for episode in episodes for step in episode.steps for o in step.operations)


def texts_of(episodes: list[Episode]) -> list[list[str]]:
    return [[step.text for step in episode.steps] for episode in episodes]


CLAIMED = {
    "one hop": WorldConfig(hops=(1, 1), corrections=0.8),
    "two hops": WorldConfig(),
    "three hops, opening, errata": WorldConfig(hops=(3, 3), opening=1.0, corrections=0.6, errata=True),
    "four hops, all early": WorldConfig(hops=(4, 4), early=1.0, distractors=3),
    "several questions": WorldConfig(hops=(1, 4), questions=(2, 4), distractors=3, corrections=0.6),
    "one fact a document": WorldConfig(hops=(2, 3), facts_per_document=1, corrections=0.6, filler=2),
    "tight capacity": WorldConfig(hops=(2, 2), distractors=9, capacity=3),
    "no entry to spare": WorldConfig(hops=(2, 2), distractors=9, capacity=2),
    "capacity and all else": WorldConfig(
        hops=(1, 3), questions=(1, 2), distractors=9, capacity=7, corrections=0.5, facts_per_document=3
    ),
}


@pytest.mark.parametrize("prose", PROSES)
@pytest.mark.parametrize("name", CLAIMED)
def test_without_faults_it_answers_every_question(name: str, prose: str) -> None:
    config = WorldConfig(**{**vars(CLAIMED[name]), "prose": prose})
    episodes = play(config, capacity=config.capacity)
    assert em(episodes) == 1.0
    assert {step.problems for episode in episodes for step in episode.steps} == {()}
    outcomes = {o.outcome for episode in episodes for step in episode.steps for o in step.operations}
    assert outcomes == {Outcome.APPLIED}


@pytest.mark.parametrize("mode", ["answering", "arriving"])
@pytest.mark.parametrize("name", [name for name in CLAIMED if CLAIMED[name].capacity is None])
def test_without_faults_it_answers_questions_that_it_did_not_see_while_it_read(name: str, mode: str) -> None:
    episodes = play(CLAIMED[name], questions_shown=mode)
    assert em(episodes) == 1.0
    outcomes = {o.outcome for episode in episodes for step in episode.steps for o in step.operations}
    assert outcomes == {Outcome.APPLIED}


def test_four_entries_in_view_will_do_for_the_demo_s_world() -> None:
    assert em(play(FULL.world, questions_shown="answering", retrieve_k=4, n=60)) == 1.0
    assert em(play(FULL.world, Faults(create=0.5), questions_shown="answering", retrieve_k=4, n=60)) <= 0.5


def test_it_speaks_other_dialects() -> None:
    episodes = play(WorldConfig(), dialect="released", templates="compact")
    assert em(episodes) == 1.0
    assert "<add_memory>" in "".join(step.text for step in episodes[0].steps)


# What an operation is worth where its knob is up: without the fault 1.0 (above), with it much less.
@pytest.mark.parametrize(
    ("fault", "config"),
    [
        (Faults(create=1.0), WorldConfig(early=1.0)),
        (Faults(read=1.0), WorldConfig(early=1.0)),
        (Faults(update=1.0), WorldConfig(corrections=1.0)),
        (Faults(scratchpad=1.0), WorldConfig(hops=(3, 3), opening=1.0)),
        (Faults(delete=1.0), WorldConfig(distractors=9, capacity=3, early=1.0)),
    ],
    ids=["create", "read", "update", "scratchpad", "delete"],
)
def test_every_fault_costs_answers(fault: Faults, config: WorldConfig) -> None:
    assert em(play(config, fault, capacity=config.capacity)) <= 0.5


def test_a_knob_at_zero_makes_its_operation_unnecessary() -> None:
    assert em(play(WorldConfig(corrections=0.0), Faults(update=1.0))) == 1.0
    assert em(play(WorldConfig(distractors=9), Faults(delete=1.0))) == 1.0


def test_faults_come_at_their_rate_and_repeat_with_the_seed() -> None:
    config = WorldConfig(corrections=0.0)
    whole = operations(play(config, n=40))["create applied"]
    half = play(config, Faults(create=0.5), n=40)
    assert 0.4 * whole < operations(half)["create applied"] < 0.6 * whole
    again = play(config, Faults(create=0.5), n=40)
    other = play(config, Faults(create=0.5), n=40, seed=1)
    assert texts_of(half) == texts_of(again) != texts_of(other)


def test_faults_do_not_hang_on_names() -> None:
    """A name that is forgotten in one episode is remembered in another: else a policy would learn the names."""
    config = WorldConfig(hops=(1, 1), distractors=0, corrections=0.0, names=2)
    stored: dict[bool, set[str]] = {True: set(), False: set()}
    for episode in play(config, Faults(create=0.5), n=40):
        name = episode.steps[0].observation.values("questions")[0]
        stored[episode.metrics["em"] == 1.0].add(name)
    assert stored[True] == stored[False]


def test_disabled_operations_cost_what_their_fault_does() -> None:
    config = WorldConfig(corrections=1.0, early=1.0)
    assert em(play(config, disabled=("update",))) <= 0.2
    assert em(play(config, disabled=("create", "read", "update", "delete"))) <= 0.2


@pytest.mark.parametrize(
    ("size", "capacity", "looked_for"),
    [(1, 3, False), (2, 3, True), (1, None, True)],
    ids=["the whole store is shown", "an entry is not shown", "the size is not told"],
)
def test_what_a_view_of_the_whole_store_does_not_show_is_not_looked_for(
    size: int, capacity: int | None, looked_for: bool
) -> None:
    prose = get_prose("compact")
    shown = (Retrieved(1, 1, "Linvin Fengate home", 0.5),)
    view = MemoryView(query="Linvin", retrieved=shown, size=size, capacity=capacity)
    observation = reading("Copperclock made home ?", chunk="Brenani struck")
    text = Expert(prose, get_dialect("paper")).act(observation, view)
    assert ("<read_memory> Brenani </read_memory>" in text) == looked_for
    assert ("Brenani struck" in text) == looked_for


def test_completions_end_as_a_models_do_and_replay_from_a_script() -> None:
    """The expert's texts, played back by `ScriptedPolicy`, give the same episode."""
    (episode,) = play(WorldConfig(), n=1)
    assert all(step.token_ids[-1] == WordTokenizer.eos_token_id for step in episode.steps)
    tokenizer = WordTokenizer()
    texts = iter([step.text for step in episode.steps])
    runner = make_episode_runner(
        policy=ScriptedPolicy(tokenizer, lambda prompt: next(texts)),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(2048),
        environments=longdoc(tokenizer, max_reads=4),
        memory=MemoryConfig(),
        sampling=Sampling(),
    )
    (task,) = generate(WorldConfig(), 1, seed=11)
    assert asyncio.run(runner.run(task)).answers == episode.answers


@pytest.mark.parametrize("name", ["create", "read", "update", "delete", "scratchpad"])
def test_a_fault_that_is_no_probability_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"fault {name} is 1.2"):
        Faults(**{name: 1.2})

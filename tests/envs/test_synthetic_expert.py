"""The expert, run through the one loop: an upper bound without faults, and worse by what it forgets."""

from __future__ import annotations

import asyncio

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.expert import Expert, Faults
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import PROSES, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.memory.operations import Outcome
from atommem.policy.contract import Sampling
from tests.fakes import WordTokenizer, longdoc, make_episode_runner


def play(
    config: WorldConfig, faults: Faults | None = None, *, n: int = 6, seed: int = 0, questions_shown: str = "reading"
) -> list[Episode]:
    tokenizer = WordTokenizer()
    expert = Expert(get_prose(config.prose), get_dialect("paper"), faults)
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(2048),
        environments=longdoc(tokenizer, max_reads=4, questions_shown=questions_shown),
        memory=MemoryConfig(capacity=config.capacity),
        sampling=Sampling(seed=seed),
    )
    return asyncio.run(runner.run_all([(task, 0) for task in generate(config, n, seed=11)]))


def em(episodes: list[Episode]) -> float:
    return sum(episode.metrics["em"] for episode in episodes) / len(episodes)


def created(episodes: list[Episode]) -> int:
    return sum(item.kind == "create" for episode in episodes for step in episode.steps for item in step.operations)


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


@pytest.mark.parametrize(
    ("name", "prose", "mode"),
    [
        *((name, prose, "reading") for name in CLAIMED for prose in PROSES),
        *(
            (name, "plain", mode)
            for name in CLAIMED
            for mode in ("answering", "arriving")
            if not CLAIMED[name].capacity
        ),
    ],
)
def test_without_faults_it_answers_every_question(name: str, prose: str, mode: str) -> None:
    episodes = play(WorldConfig(**{**vars(CLAIMED[name]), "prose": prose}), questions_shown=mode)
    assert em(episodes) == 1.0
    assert {step.problems for episode in episodes for step in episode.steps} == {()}
    outcomes = {o.outcome for episode in episodes for step in episode.steps for o in step.operations}
    assert outcomes == {Outcome.APPLIED}


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
    assert em(play(config, fault)) <= 0.5


def test_faults_come_at_their_rate_and_repeat_with_the_seed() -> None:
    config = WorldConfig(corrections=0.0)
    half = play(config, Faults(create=0.5), n=20)
    assert 0.35 < created(half) / created(play(config, n=20)) < 0.65
    again, other = (play(config, Faults(create=0.5), seed=seed) for seed in (0, 1))
    written = [[[step.text for step in episode.steps] for episode in some] for some in (half[:6], again, other)]
    assert written[0] == written[1] != written[2]
    with pytest.raises(ConfigError, match=r"fault create is 1\.2"):
        Faults(create=1.2)

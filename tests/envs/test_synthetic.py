"""The synthetic world: determinism, what each knob does, answers that follow from the text; and its expert."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.questions_shown import MODES
from atommem.envs.synthetic.expert import Expert, Faults
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import PROSES, RELATIONS, Prose, Statement, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate, make_task
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.envs.web.site.expert import BrowsingExpert
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.memory.log import Outcome
from atommem.policy.contract import Sampling
from tests.fakes import WordTokenizer, command, longdoc, make_episode_runner


def stream(task: Task) -> list[list[Statement]]:
    prose = get_prose(task.metadata["prose"])
    return [prose.statements(document.text) for document in task.documents]


def solve(task: Task, question_index: int) -> str:
    """The answer by reading everything: an oracle that shares nothing with the expert."""
    value: dict[tuple[str, str], str] = {}
    for statement in itertools.chain.from_iterable(stream(task)):
        if statement.kind != "withdrawal":
            value[statement.relation, statement.subject] = statement.value
    name, hops = get_prose(task.metadata["prose"]).asked(task.questions[question_index].text)
    for relation in RELATIONS[-hops:]:
        name = value[relation, name]
    return name


@pytest.mark.parametrize("prose", PROSES)
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_the_answer_follows_from_the_documents(prose: str, hops: int) -> None:
    config = WorldConfig(
        prose=prose, hops=(hops, hops), questions=(1, 3), corrections=0.5, filler=1
    )
    for task in generate(config, 30, seed=1):
        for index, question in enumerate(task.questions):
            assert question.answers == (solve(task, index),)
            assert question.metadata["hops"] == hops


def test_a_task_depends_on_config_seed_and_index_only() -> None:
    config = WorldConfig()
    assert list(generate(config, 5, seed=3)) == list(generate(config, 9, seed=3))[:5]
    assert make_task(config, 3, 4) == list(generate(config, 5, seed=3))[4]
    assert make_task(config, 4, 4).documents != make_task(config, 3, 4).documents


def test_gold_documents_are_enough_and_needed() -> None:
    config = WorldConfig(hops=(3, 3), corrections=1.0, facts_per_document=1)
    for task in generate(config, 20, seed=2):
        gold = [document for document in task.documents if document.gold]
        assert len(gold) == 4  # three links and the correction
        only_gold = Task(task.id, task.questions, tuple(gold), metadata=task.metadata)
        assert solve(only_gold, 0) == task.questions[0].answers[0]


def test_early_decides_whether_facts_come_before_they_are_known_to_matter() -> None:
    for early, expected in ((0.0, 0), (1.0, 40)):
        found = 0
        for task in generate(WorldConfig(early=early, corrections=0.0), 40, seed=5):
            told = {
                (s.relation, s.subject): (at, s.value)
                for at, s in enumerate(itertools.chain(*stream(task)))
            }
            made, person = told["made", get_prose("plain").asked(task.questions[0].text)[0]]
            found += told["home", person][0] < made
        assert found == expected


@pytest.mark.parametrize("errata", [False, True])
def test_corrections_stand_in_a_later_document(errata: bool) -> None:
    for task in generate(WorldConfig(corrections=1.0, errata=errata), 30, seed=7):
        told, corrected = set(), []
        for statements in stream(task):
            corrected += [s.subject for s in statements if s.kind == "correction"]
            assert {s.subject for s in statements if s.kind == "correction"} <= told
            assert not (errata and corrected) or {s.kind for s in statements} == {"correction"}
            told |= {s.subject for s in statements if s.relation == "home"}
        assert len(corrected) == 5


@pytest.mark.parametrize("per_document", [1, 3])
def test_never_more_facts_matter_than_the_capacity(per_document: int) -> None:
    config = WorldConfig(distractors=10, capacity=4, facts_per_document=per_document)
    for task in generate(config, 30, seed=9):
        live: set[str] = set()
        told = 0
        for statements in stream(task):
            for statement in statements:
                if statement.kind == "withdrawal":
                    live.remove(
                        statement.subject
                    )  # nothing is withdrawn twice, or before it was told
                elif statement.kind == "correction":
                    assert statement.subject in live
                # Who made another work than the one asked about never mattered.
                elif statement.relation == "home" or statement.subject in task.questions[0].text:
                    live.add(statement.subject)
                    told += 1
            assert len(live) <= 4
        assert told > 4
        assert task.questions[0].answers == (solve(task, 0),)


@pytest.mark.parametrize("prose", PROSES)
def test_prose_reads_back_what_it_writes(prose: str) -> None:
    said: Prose = get_prose(prose)
    statements = [Statement("fact", "Vesko", relation, "Oakrest") for relation in RELATIONS]
    statements += [
        Statement("correction", "Vesko", "home", "Fenford"),
        Statement("withdrawal", "Vesko"),
    ]
    for seed in range(8):
        text = " ".join(said.sentence(statement, random.Random(seed)) for statement in statements)
        assert said.statements(text) == statements
    assert said.statements(" ".join(said.filler)) == []
    for hops in (1, 2, 3, 4):
        assert said.asked(said.question("Vesko", hops)) == ("Vesko", hops)
    assert "Oakrest" in said.answer(statements[3])


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_command_writes_the_generated_tasks(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic, out = command("data"), tmp_path / f"tasks{suffix}"
    knobs = [
        "--prose",
        "compact",
        "--hops",
        "1-3",
        "--questions",
        "2",
        "--corrections",
        "0.8",
        "--errata",
    ]
    assert synthetic(["synthetic", "--n", "7", "--seed", "3", "--out", str(out), *knobs]) == 0
    config = WorldConfig(
        prose="compact", hops=(1, 3), questions=(2, 2), corrections=0.8, errata=True
    )
    assert load_tasks(out) == list(generate(config, 7, seed=3))
    provenance = json.loads((tmp_path / f"{out.name}.json").read_text())
    assert (provenance["world"]["corrections"], provenance["seed"]) == (0.8, 3)
    assert str(out) in capsys.readouterr().out
    for options, message in (
        (["--n", "0"], "n=0"),
        (["--n", "1", "--hops", "9"], "hops is 9-9"),
    ):
        assert synthetic(["synthetic", "--out", str(out), *options]) == 2
        assert message in capsys.readouterr().err


def runner_of(
    expert: Expert | BrowsingExpert, tokenizer: WordTokenizer, **settings: Any
) -> EpisodeRunner:
    """Who runs an expert's episodes."""
    policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    return make_episode_runner(
        policy=policy, tokenizer=tokenizer, embedder=HashingEmbedder(2048), **settings
    )


def play(
    config: WorldConfig,
    faults: Faults | None = None,
    *,
    n: int = 6,
    seed: int = 0,
    questions_shown: str = "reading",
) -> list[Episode]:
    tokenizer = WordTokenizer()
    expert = Expert(get_prose(config.prose), get_dialect("paper"), faults)
    environments = longdoc(tokenizer, max_reads=4, questions_shown=questions_shown)
    how = {"memory": MemoryConfig(capacity=config.capacity), "sampling": Sampling(seed=seed)}
    runner = runner_of(expert, tokenizer, environments=environments, **how)
    return asyncio.run(runner.run_all([(task, 0) for task in generate(config, n, seed=11)]))


def em(episodes: list[Episode]) -> float:
    return sum(episode.metrics["em"] for episode in episodes) / len(episodes)


def created(episodes: list[Episode]) -> int:
    return sum(
        item.kind == "create"
        for episode in episodes
        for step in episode.steps
        for item in step.operations
    )


CLAIMED = {
    "one hop": WorldConfig(hops=(1, 1), corrections=0.8),
    "two hops": WorldConfig(),
    "three hops, opening, errata": WorldConfig(
        hops=(3, 3), opening=1.0, corrections=0.6, errata=True
    ),
    "four hops, all early": WorldConfig(hops=(4, 4), early=1.0, distractors=3),
    "several questions": WorldConfig(hops=(1, 4), questions=(2, 4), distractors=3, corrections=0.6),
    "one fact a document": WorldConfig(
        hops=(2, 3), facts_per_document=1, corrections=0.6, filler=2
    ),
    "tight capacity": WorldConfig(hops=(2, 2), distractors=9, capacity=3),
    "no entry to spare": WorldConfig(hops=(2, 2), distractors=9, capacity=2),
    "capacity and all else": WorldConfig(
        hops=(1, 3),
        questions=(1, 2),
        distractors=9,
        capacity=7,
        corrections=0.5,
        facts_per_document=3,
    ),
}


@pytest.mark.parametrize(
    ("name", "prose", "mode"),
    [
        *((name, prose, "reading") for name in CLAIMED for prose in PROSES),
        *(
            (name, "plain", mode)
            for name, it in CLAIMED.items()
            for mode in MODES[1:]
            if not it.capacity
        ),
    ],
)
def test_without_faults_it_answers_every_question(name: str, prose: str, mode: str) -> None:
    episodes = play(WorldConfig(**{**vars(CLAIMED[name]), "prose": prose}), questions_shown=mode)
    assert em(episodes) == 1.0
    assert {step.problems for episode in episodes for step in episode.steps} == {()}
    outcomes = {
        o.outcome for episode in episodes for step in episode.steps for o in step.operations
    }
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
    written = [
        [[step.text for step in episode.steps] for episode in some]
        for some in (half[:6], again, other)
    ]
    assert written[0] == written[1] != written[2]

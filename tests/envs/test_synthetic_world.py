"""The synthetic world: determinism, what each knob does, and answers that follow from the text."""

from __future__ import annotations

import itertools
import random

import pytest

from atommem.envs.synthetic.prose import PROSES, RELATIONS, Prose, Statement, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate, make_task
from atommem.envs.task import Task
from atommem.errors import ConfigError


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
    config = WorldConfig(prose=prose, hops=(hops, hops), questions=(1, 3), corrections=0.5, filler=1)
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


def order_of(task: Task) -> dict[str, tuple[int, int]]:
    """Where each asked fact and the correction stand: (document, place)."""
    name, hops = get_prose(task.metadata["prose"]).asked(task.questions[0].text)
    said = {
        (s.kind, s.relation, s.subject): ((d, p), s.value)
        for d, statements in enumerate(stream(task))
        for p, s in enumerate(statements)
    }
    places = {}
    for relation in RELATIONS[-hops:]:
        places[relation], value = said["fact", relation, name]
        if relation == "home" and ("correction", "home", name) in said:
            places["correction"] = said["correction", "home", name][0]
        name = value
    return places


def test_early_decides_whether_facts_come_before_they_are_known_to_matter() -> None:
    for early, expected in ((0.0, 0), (1.0, 40)):
        tasks = generate(WorldConfig(early=early, corrections=0.0), 40, seed=5)
        assert sum(order_of(task)["home"] < order_of(task)["made"] for task in tasks) == expected


@pytest.mark.parametrize("errata", [False, True])
def test_corrections_stand_in_a_later_document(errata: bool) -> None:
    config = WorldConfig(corrections=1.0, errata=errata)
    for task in generate(config, 30, seed=7):
        kinds = [[s.kind for s in statements] for statements in stream(task)]
        places = order_of(task)
        assert places["correction"][0] > places["home"][0]
        assert sum(row.count("correction") for row in kinds) == 5
        if errata:
            first = next(i for i, row in enumerate(kinds) if "correction" in row)
            assert all(set(row) == {"correction"} for row in kinds[first:])


@pytest.mark.parametrize("per_document", [1, 3])
def test_never_more_facts_matter_than_the_capacity(per_document: int) -> None:
    config = WorldConfig(distractors=10, capacity=4, facts_per_document=per_document)
    for task in generate(config, 30, seed=9):
        live: set[str] = set()
        told = 0
        for statements in stream(task):
            for statement in statements:
                if statement.kind == "withdrawal":
                    live.remove(statement.subject)  # nothing is withdrawn twice, or before it was told
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
    statements += [Statement("correction", "Vesko", "home", "Fenford"), Statement("withdrawal", "Vesko")]
    for seed in range(8):
        text = " ".join(said.sentence(statement, random.Random(seed)) for statement in statements)
        assert said.statements(text) == statements
    assert said.statements(" ".join(said.filler)) == []
    for hops in (1, 2, 3, 4):
        assert said.asked(said.question("Vesko", hops)) == ("Vesko", hops)
    assert said.answer(None) == said.answer(None)
    assert "Oakrest" in said.answer(statements[3])


def test_unknown_prose_and_foreign_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of plain, compact"):
        get_prose("verse")
    with pytest.raises(ConfigError, match="is no question of the plain prose"):
        get_prose("plain").asked("Why?")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prose": "verse"}, "prose is 'verse'"),
        ({"hops": (3, 2)}, "hops is 3-2"),
        ({"questions": (0, 1)}, "questions is 0-1"),
        ({"corrections": -0.1}, "corrections is -0.1"),
        ({"distractors": 60}, "names is 80"),
        ({"hops": (1, 3), "questions": (1, 2), "capacity": 5}, "give at least 6"),
    ],
)
def test_wrong_knobs_are_named(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorldConfig(**wrong)

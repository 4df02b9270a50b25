"""The synthetic world: determinism, what each knob does, and answers that follow from the text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from atommem.envs.synthetic.prose import PROSES, RELATIONS, Prose, Statement, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate, make_task
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.errors import ConfigError
from tests.fakes import command


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
    assert "Oakrest" in said.answer(statements[3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_prose("verse"), "give one of plain, compact"),
        (lambda: get_prose("plain").asked("Why?"), "is no question of the plain prose"),
        (lambda: WorldConfig(prose="verse"), "prose is 'verse'"),
        (lambda: WorldConfig(hops=(3, 2)), "hops is 3-2"),
        (lambda: WorldConfig(questions=(0, 1)), "questions is 0-1"),
        (lambda: WorldConfig(corrections=-0.1), "corrections is -0.1"),
        (lambda: WorldConfig(distractors=60), "names is 80"),
        (lambda: WorldConfig(hops=(1, 3), questions=(1, 2), capacity=5), "give at least 6"),
    ],
)
def test_what_cannot_be_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_command_writes_the_generated_tasks(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic, out = command("data"), tmp_path / f"tasks{suffix}"
    knobs = ["--prose", "compact", "--hops", "1-3", "--questions", "2", "--corrections", "0.8", "--errata"]
    assert synthetic(["synthetic", "--n", "7", "--seed", "3", "--out", str(out), *knobs]) == 0
    config = WorldConfig(prose="compact", hops=(1, 3), questions=(2, 2), corrections=0.8, errata=True)
    assert load_tasks(out) == list(generate(config, 7, seed=3))
    provenance = json.loads((tmp_path / f"{out.name}.json").read_text())
    assert (provenance["world"]["corrections"], provenance["seed"]) == (0.8, 3)
    assert str(out) in capsys.readouterr().out
    for options, message in ((["--n", "0"], "n is 0"), (["--n", "1", "--hops", "9"], "hops is 9-9")):
        assert synthetic(["synthetic", "--out", str(out), *options]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        synthetic(["synthetic", "--n", "1", "--out", str(out), "--hops", "one"])
    assert "'one' is not a number or a range" in capsys.readouterr().err

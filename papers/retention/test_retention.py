"""Rules on labelled streams, needs of synthetic tasks, and the claims, by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.synthetic.world import WorldConfig, generate, get_prose
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from atommem.memory.log import Entry, Source
from atommem.memory.rules import Candidate, StoreState, make_rule
from atommem.memory.store import VectorStore
from papers.retention.__main__ import main
from papers.retention.rules import RULE_PATHS
from papers.retention.streams import (
    Stream,
    embed_streams,
    keep,
    labelled,
    needs_of,
    read_streams,
    score,
)
from papers.retention.table import ORACLE, UNLIMITED, fill, markdown
from papers.retention.worlds import ArmComparison, em, near_specialist

TEXTS = tuple(
    f"in {1990 + i} Ann moved to town number {i} with her dog" if i % 3 == 0 else f"oh well {i}"
    for i in range(30)
)
EVIDENCE = (*((i,) for i in range(0, 30, 3)), (0, 3))
ASKED = tuple(f"where in {1990 + places[0]}?" for places in EVIDENCE)
SMALL = Stream("small", TEXTS, ASKED, EVIDENCE)
OTHER = Stream("other", TEXTS[::-1], ASKED, tuple(tuple(29 - i for i in e) for e in EVIDENCE))


@pytest.mark.parametrize(
    ("name", "rated", "evicted"),
    [("ebbinghaus", None, 2), ("redundancy", None, 1), ("novelty", 0.0, 2), ("type_prior", 0.9, 2)],
)
def test_rules_rate_and_evict(name: str, rated: float | None, evicted: int) -> None:
    rows = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    held = VectorStore(2)
    held.add([1, 2, 3], rows)
    entries = {
        key: Entry(key, "text", key, key, last_shown=last, score=score)
        for key, last, score in ((1, 9, 0.9), (2, 4, 0.1), (3, 8, 0.5))
    }
    state = StoreState(entries, held, 10, 3, (0,))
    rule, candidate = (
        make_rule("retention", RULE_PATHS[name]),
        Candidate("I love my job", rows[0], Source(10)),
    )
    assert rule.rate(candidate, state) == (None if rated is None else pytest.approx(rated))
    assert rule.evict(candidate, state).entry_id == evicted


async def test_linear_rule_adds_weighted_features(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({"has_number": 0.5, "question": 1.0, "novelty": 0.25}))
    rule = make_rule("retention", f"{RULE_PATHS['linear']}(weights={path})")
    candidate = Candidate("Ann met Bob in 2023?", np.array([1, 0], np.float32), Source(0))
    empty = StoreState({}, VectorStore(2), 0, None, (0,))
    assert rule.rate(candidate, empty) == pytest.approx(0.5 + 1.0 + 0.25)


async def test_keep_and_score_by_hand() -> None:
    (item,) = await embed_streams([SMALL], HashingEmbedder(64))
    assert await keep(item, "fifo", 6) == [24, 25, 26, 27, 28, 29]
    assert await keep(item, "length", 10) == list(range(0, 30, 3))
    scores = score(item, [0, 4, 9])
    assert scores.all_kept.tolist() == [1, 0, 0, 1, *[0] * 7]
    assert scores.any_kept.tolist() == [1, 0, 0, 1, *[0] * 6, 1]
    assert scores.recall.tolist() == [1, 0, 0, 1, *[0] * 6, 0.5]
    assert scores.references == 3
    assert SMALL.needs()[:4] == [2, 0, 0, 2]


@pytest.mark.slow
async def test_table_has_every_rule_and_the_oracle_keeps_most() -> None:
    table = await fill(await embed_streams([SMALL, OTHER], HashingEmbedder(64)), (3, 8))
    assert table[UNLIMITED]["all"].all_kept == 1
    assert table["linear"]["8"].all_kept > table["random"]["8"].all_kept
    for name, row in table.items():
        for column, one in row.items() if name != UNLIMITED else ():
            assert one.references <= table[ORACLE][column].references
    assert "| fifo | " in markdown(table)


def test_fit_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"stream": one.name, "text": text, "needed": needed}
        for one in (SMALL, OTHER)
        for text, needed in zip(one.texts, one.needs(), strict=True)
    ]
    data, out = tmp_path / "rows.jsonl", tmp_path / "weights.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fit = ["fit", str(data), "--embedder", "hashing", "--out", str(out), "--exclude"]
    assert main([*fit, "other", "--with_embedding"]) == 0
    assert json.loads(out.read_text())["fitted_on"] == {"streams": ["small"], "texts": 30}
    assert main([*fit, "nobody"]) == 2
    data.write_text('{"stream": "a", "text": "b"}\n')
    assert main([*fit, "other"]) == 2
    errors = capsys.readouterr().err
    assert "exclude=nobody: not a stream" in errors
    assert "text and needed" in errors


def test_read_streams_reads_locomo(tmp_path: Path) -> None:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "Hi!", "blip_caption": "a dog"},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "Nice."},
    ]
    qa = [
        {"question": "Which pet? ", "category": 1, "evidence": ["D1:1; D:1:02"]},
        {"question": "Why?", "category": 5, "evidence": ["D1:2"]},
    ]
    row = {"sample_id": "conv-1", "conversation": {"session_1": turns}, "qa": qa}
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([row]))
    texts = ("Ann: Hi! a dog", "Bob: Nice.")
    assert read_streams(path) == [Stream("conv-1", texts, ("Which pet?",), ((0, 1),))]


TASK = Task(
    "one-0",
    (Question("Ivoryharp made home ?", ("Fenwick",), id="q"),),
    (
        Document("", "Marena Oakrest home Peri Stonewick home"),
        Document("", "Ivoryharp Peri made Peri Fenwick moved"),
    ),
    metadata={"prose": "compact"},
)


def test_needs_of_tasks_by_hand_and_with_the_answer() -> None:
    needed = {"Peri Stonewick home": 1, "Ivoryharp Peri made": 1, "Peri Fenwick home": 1}
    assert needs_of([TASK]) == {"one-0": needed}
    (stream,) = labelled([TASK])
    assert stream.texts == ("Marena Oakrest home", "Peri Stonewick home", "Ivoryharp Peri made")
    assert stream.needs() == [0, 1, 1]
    config = WorldConfig(prose="compact", hops=(1, 3), questions=(1, 2), distractors=5)
    tasks = list(generate(config, 20, 3))
    for task, texts in zip(tasks, needs_of(tasks).values(), strict=True):
        values = {one.value for one in get_prose("compact").statements(" ".join(texts))}
        assert {answer for question in task.questions for answer in question.answers} <= values


def make_records(right: list[bool], seeds: int = 1) -> list[EpisodeRecord]:
    question = QuestionRecord("q", "Who?", "a", ("a",))
    record = EpisodeRecord("t", 0, "", "answered", None, 1.0, {}, (), {}, 1.0)
    return [
        replace(
            record,
            task_id=f"synthetic-7-{number}",
            sample=seed,
            questions=(replace(question, id=f"q{number}", metrics={"em": float(em)}),),
        )
        for seed in range(seeds)
        for number, em in enumerate(right)
    ]


def test_best_rule_is_selected_on_tasks_that_enter_no_figure() -> None:
    """60 tasks; on the first 20 lru is the better rule, on the others fifo."""
    draws = random.Random(0)
    own = [True] * 60
    lru = [True] * 20 + [draws.random() < 0.5 for _ in range(40)]
    fifo = [False] * 20 + [draws.random() < 0.6 for _ in range(40)]
    right = {"own reject": own, "writes lru": lru, "writes fifo": fifo, "writes oracle": own}
    arms = {name: make_records(flags, 3) for name, flags in right.items()}
    tested = ArmComparison(arms, 20)
    found = tested.against_rules()
    expected = 1 - sum(lru[20:]) / 40
    assert (tested.rule, found["own_em"]) == ("writes lru", 1.0)
    assert len(tested.arms[tested.own]) == 120
    assert found["difference"] == pytest.approx(expected)
    assert found["p_holm"] < 0.01
    assert found["not_beaten"] == []
    assert tested.gap_closed()["share"] == 1.0
    assert tested.gap_closed()["gap"] == pytest.approx(expected)
    assert tested.spread()["farthest"] in ("writes lru", "writes fifo")
    with pytest.raises(ConfigError, match="more than 60"):
        ArmComparison(arms, 60)


def test_near_specialist_by_hand() -> None:
    general = make_records([True] * 20 + [True, False] * 20)
    special = make_records([True] * 20 + [True, True, True, False] * 10)
    found = near_specialist(general, special, 20)
    assert (found["difference"], found["within"], em(special[20:])) == (-0.25, False, 0.75)
    assert near_specialist(special, general, 20)["within"]

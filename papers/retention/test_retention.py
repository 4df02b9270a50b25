"""What keepers keep, what a synthetic task needs kept, the claims: by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError
from papers.retention.__main__ import main
from papers.retention.claims import Column, mean_em, near_specialist
from papers.retention.fitting import logistic
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
from tests.envs.benchmark_rows import write_lines
from tests.eval.toys import made

TEXTS = tuple(
    f"in {1990 + i} Ann moved to town number {i} with her dog" if i % 3 == 0 else f"oh well {i}"
    for i in range(30)
)
EVIDENCE = (*((i,) for i in range(0, 30, 3)), (0, 3))
SMALL = Stream(
    "small", TEXTS, tuple(f"where in {1990 + places[0]}?" for places in EVIDENCE), EVIDENCE
)
OTHER = Stream(
    "other", TEXTS[::-1], SMALL.questions, tuple(tuple(29 - i for i in e) for e in EVIDENCE)
)


async def test_by_hand() -> None:
    (given,) = await embed_streams([SMALL], HashingEmbedder(64))
    assert await keep(given, "fifo", 6) == [24, 25, 26, 27, 28, 29]
    assert await keep(given, "length", 10) == list(range(0, 30, 3))
    scores = score(given, [0, 4, 9])
    assert scores.all_kept.tolist() == [1, 0, 0, 1, *[0] * 7]
    assert scores.any_kept.tolist() == [1, 0, 0, 1, *[0] * 6, 1]
    assert scores.recall.tolist() == [1, 0, 0, 1, *[0] * 6, 0.5]
    assert scores.references == 3
    assert SMALL.needs()[:4] == [2, 0, 0, 2]


async def test_the_table_has_every_keeper_and_the_oracle_keeps_most() -> None:
    table = await fill(await embed_streams([SMALL, OTHER], HashingEmbedder(64)), (3, 8))
    assert table[UNLIMITED]["all"].all_kept == 1
    assert table["linear"]["8"].all_kept > table["random"]["8"].all_kept
    for row in table.values():
        for column, one in row.items():
            if column != "all":
                assert one.references <= table[ORACLE][column].references
    assert "| fifo | " in markdown(table)


async def test_at_equal_words_long_entries_are_fewer() -> None:
    streams = await embed_streams([SMALL, OTHER], HashingEmbedder(64))
    entries = await fill(streams, (6,), ("length", "fifo"))
    words = await fill(streams, (6,), ("length", "fifo"), equal="words")
    # Long texts have 11 words, short ones 3, the mean is 5 2/3: 6 of mean length are 34 words.
    assert entries["length"]["6"].references == 2 * 7
    assert words["length"]["6"].references == 2 * 4
    assert words["fifo"]["6"].references == entries["fifo"]["6"].references


def test_the_fit_is_that_of_a_reference() -> None:
    """Against scipy's minimiser of the same loss."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    inputs = np.concatenate([np.ones((200, 1)), rng.normal(size=(200, 3))], axis=1)
    labels = (rng.random(200) < 1 / (1 + np.exp(-inputs @ [0.5, 2, -1, 0]))).astype(float)

    def loss(weights: np.ndarray) -> float:
        margin = inputs @ weights
        return float(
            np.logaddexp(0, margin).sum() - labels @ margin + 0.5 * (weights[1:] ** 2).sum()
        )

    assert np.allclose(logistic(inputs, labels, 1.0), minimize(loss, np.zeros(4)).x, atol=1e-3)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        (one.name, *entry)
        for one in (SMALL, OTHER)
        for entry in zip(one.texts, one.needs(), strict=True)
    ]
    rows = [dict(zip(("stream", "text", "needed"), entry, strict=True)) for entry in entries]
    data, out = tmp_path / "rows.jsonl", tmp_path / "weights.json"
    write_lines(data, rows)
    fit = ["fit", str(data), "--embedder", "hashing", "--out", str(out), "--exclude"]
    assert main([*fit, "other", "--with_embedding"]) == 0
    assert json.loads(out.read_text())["fitted_on"] == {"streams": ["small"], "texts": 30}
    table = ["table", str(data), "--embedder", "hashing", "--capacities", "5", "--rules", "fifo"]
    assert main([*table, "--out", str(tmp_path / "t")]) == 0
    assert json.loads((tmp_path / "t").read_text())["fifo"]["5"]["all_kept"] > 0
    with pytest.raises(ConfigError, match="nobody"):
        main([*fit, "nobody"])
    data.write_text('{"stream": "a", "text": "b"}\n')
    with pytest.raises(DataError, match="needed"):
        read_streams(data)


TASK = Task(
    "one-0",
    (Question("Ivoryharp made home ?", ("Fenwick",), id="q"),),
    (
        Document("", "Marena Oakrest home Peri Stonewick home"),
        Document("", "Ivoryharp Peri made Peri Fenwick moved"),
    ),
    metadata={"prose": "compact"},
)


def test_needs_by_hand() -> None:
    needed = {"Peri Stonewick home": 1, "Ivoryharp Peri made": 1, "Peri Fenwick home": 1}
    assert needs_of([TASK]) == {"one-0": needed}
    (stream,) = labelled([TASK])
    assert stream.texts == ("Marena Oakrest home", "Peri Stonewick home", "Ivoryharp Peri made")
    assert stream.needs() == [0, 1, 1]


def test_every_task_needs_its_answer() -> None:
    config = WorldConfig(prose="compact", hops=(1, 3), questions=(1, 2), distractors=5)
    tasks = list(generate(config, 20, 3))
    for task, needed in zip(tasks, needs_of(tasks).values(), strict=True):
        said = get_prose("compact").statements(" ".join(needed))
        assert {answer for question in task.questions for answer in question.answers} <= {
            each.value for each in said
        }


def records(right: list[bool], seeds: int = 1) -> list[EpisodeRecord]:
    scored = made("synthetic", [{"em": float(em)} for em in right]).records
    return [
        replace(one, task_id=f"synthetic-7-{one.task_id[1:]}", sample=s)
        for s in range(seeds)
        for one in scored
    ]


def test_the_best_rule_is_chosen_on_tasks_that_are_in_no_figure() -> None:
    """60 tasks; on the first 20 lru is the better rule, on the others fifo."""
    draws = random.Random(0)
    own = [True] * 60
    lru = [True] * 20 + [draws.random() < 0.5 for _ in range(40)]
    fifo = [False] * 20 + [draws.random() < 0.6 for _ in range(40)]
    given = {"own reject": own, "writes lru": lru, "writes fifo": fifo, "writes oracle": own}
    arms = {f"atommem, {name}": records(right, 3) for name, right in given.items()}
    column = Column(arms, 20)
    found = column.against_rules()
    expected = 1 - sum(lru[20:]) / 40
    assert (column.rule, found["own_em"], len(column.arms[column.own])) == (
        "atommem, writes lru",
        1.0,
        120,
    )
    assert found["difference"] == pytest.approx(expected)
    assert found["p_holm"] < 0.01
    assert found["not_beaten"] == []
    assert column.gap_closed()["share"] == 1.0
    assert column.gap_closed()["gap"] == pytest.approx(expected)
    assert column.spread()["farthest"] in ("atommem, writes lru", "atommem, writes fifo")
    with pytest.raises(ConfigError, match="more than 60 tasks"):
        Column(arms, 60)
    with pytest.raises(ConfigError, match="no row atommem, own"):
        Column({"atommem, writes lru": records(lru)}, 20)


def test_a_specialist_by_hand() -> None:
    general, special = (
        records([True] * 20 + [True, False] * 20),
        records([True] * 20 + [True, True, True, False] * 10),
    )
    found = near_specialist(general, special, 20)
    assert (found["difference"], found["within"], mean_em(special[20:])) == (-0.25, False, 0.75)
    assert near_specialist(special, general, 20)["within"]

"""The bank: found by what was asked, kept by rules, the same after it was opened again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.hashing import HashingEmbedder
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.errors import ConfigError, DataError, TraceError
from atommem.experience import Bank, Experience, read_memento
from atommem.experience.bank import demonstrations
from atommem.experience.cross_entropy import cross_entropy
from atommem.memory.log import Outcome
from atommem.memory.rules import StoreState
from atommem.rules.banks import LINEAR, TraceRetain
from tests.atommem.sessions import Embeds


def bank(**settings: Any) -> Bank:
    return Bank(HashingEmbedder(64), **settings)


async def play(one: Bank, tasks: list[tuple[str, float]], k: int = 2) -> list[Any]:
    log = []
    for query, outcome in tasks:
        await one.retrieve(query, k)
        log += await one.end(Experience(query, f"did {query}", outcome, {"steps": 7}))
    return log


TASKS = [
    (f"{verb} the {thing}", float(len(thing) % 2))
    for verb in ("put", "heat", "cut")
    for thing in ("egg", "plum")
]


async def test_a_record_has_what_rules_need_to_know() -> None:
    one = bank()
    await one.fill([Experience("put the egg", "did it before", 1.0)])
    found = await one.retrieve("put the egg", 3)
    assert [(record.text, round(score, 3)) for record, score in found] == [("put the egg", 1.0)]
    operations = await one.end(Experience("put the plum", "did put", 0.0, {"steps": 7}))
    assert [operation.kind for operation in operations] == [
        "observe",
        "create",
        "outcome",
        "retrieve",
    ]
    first, second = one.records()
    assert (first.created, first.shown, first.last_shown, first.uses, first.mean_outcome) == (
        0,
        1,
        1,
        1,
        0.0,
    )
    assert (second.created, second.outcome, second.details) == (
        1,
        0.0,
        {"execution": "did put", "steps": 7},
    )
    assert demonstrations(found) == "Task: put the egg\nDone: did it before"
    assert one.task == 2


@pytest.mark.parametrize("newest", [False, True])
async def test_ties_are_the_oldest_or_the_newest(newest: bool) -> None:
    one = bank(newest_first=newest)
    await one.fill(Experience("put the egg", str(i)) for i in range(5))
    found = await one.retrieve("put the egg", 2)
    assert [record.id for record, _ in found] == ([5, 4] if newest else [1, 2])

    def near(query: str, store: Any) -> Any:
        return [
            -abs(int(query) - int(store.entries[i].details["execution"]))
            for i in store.ids.tolist()
        ]

    found = await one.retrieve("3", 2, near)  # a similarity of one's own
    assert [record.details["execution"] for record, _ in found] == ["3", "4" if newest else "2"]


@pytest.mark.parametrize(
    "retention", ["fifo", "memobank(least_positive=1)", "combined(period=3, n=1)", "traceretain"]
)
async def test_it_is_the_same_when_it_was_opened_again(tmp_path: Path, retention: str) -> None:
    settings: Any = {
        "capacity": 3,
        "retention": retention,
        "admission": "memobank",
        "evaluator": "noisy(p_fp=.3)",
    }
    through, path = bank(**settings), tmp_path / "bank.jsonl"
    log = await play(through, TASKS * 3)
    again: list[Any] = []
    for task in TASKS * 3:
        one = await bank(**settings).open(path)
        again += await play(one, [task])
        one.close()
    assert again == log
    held = await bank().open(path)
    with pytest.raises(ConfigError, match="open in another process"):
        await bank().open(path)
    held.close()
    assert len(through) <= 3
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["type"] == "experience bank"


class ByTheFormula(TraceRetain):
    """Its scores are held to the features as they are written down, one record after the other."""

    compared: list[int] = []  # noqa: RUF012

    def scores(self, store: StoreState) -> Any:
        found, now = super().scores(store), max(1, store.step)
        cosines = store.vectors @ store.vectors.T
        for place, record in enumerate(store.entries[i] for i in store.ids.tolist()):
            others = np.delete(cosines[place], place)
            features = {
                "success": record.outcome or 0.0,
                "age": (store.step - record.created) / now,
                "gap": (
                    store.step
                    - (record.created if record.last_shown is None else record.last_shown)
                )
                / now,
                "frequency": np.log1p(record.shown) / np.log1p(now),
                "specificity": 1 - others.mean(),
                "redundancy": max(0.0, others.max()),
                "efficiency": 1 - record.details["steps"] / 50,
                "utility": 0.5 if record.mean_outcome is None else record.mean_outcome,
                "confidence": record.uses / (record.uses + 3),
                "last_similarity": record.last_similarity or 0.0,
                "mean_similarity": record.mean_similarity or 0.0,
            }
            assert found[place] == pytest.approx(
                sum(LINEAR[name] * features[name] for name in LINEAR), abs=2e-5
            )
        self.compared.append(len(found))
        return found


async def test_traceretain_scores_by_its_features() -> None:
    await play(bank(capacity=6, retention=f"{__name__}:ByTheFormula"), TASKS * 5)
    assert len(ByTheFormula.compared) == 24


@pytest.mark.parametrize("outcome", [1.0, None])
async def test_use_counts_also_where_no_outcome_is_known(
    tmp_path: Path, outcome: float | None
) -> None:
    one = await bank(retention="periodic(period=2)").open(tmp_path / "b")
    await one.fill([Experience("put the egg", ""), Experience("cut the plum", "")])
    await one.retrieve("put the egg", 1)
    await one.end(Experience("put the egg", "", outcome, {"steps": "many"}))
    one.close()
    one = await bank(retention="periodic(period=2)").open(tmp_path / "b")
    await one.end(Experience("heat the pear", "", outcome))
    one.close()
    assert [record.id for record in one.records()] == [1, 3, 4]


async def test_vectors_beside_it_spare_the_embedder(tmp_path: Path) -> None:
    embedder = Embeds()
    one = await Bank(embedder).open(tmp_path / "b")
    await one.fill(Experience(word, "") for word in ("egg", "plum", "pear"))
    one.save_vectors()
    one.close()
    embedder.calls.clear()
    one = await Bank(embedder).open(tmp_path / "b")
    assert (embedder.calls, len(one)) == ([], 3)
    assert (await one.retrieve("plum", 1))[0][0].text == "plum"
    one.close()


async def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is written then: what comes later must neither stand behind it nor build on what is not there."""
    one, write = await bank().open(tmp_path / "b"), os.write
    left = [9]

    def some(fd: int, line: Any) -> int:
        if not left:
            raise OSError("full")
        return write(fd, line[: left.pop()])

    with monkeypatch.context() as full:
        full.setattr(os, "write", some)
        with pytest.raises(OSError, match="full"):
            await play(one, TASKS[:1])
    await play(one, TASKS[1:2])
    one.close()
    again = await bank().open(tmp_path / "b")
    assert again.records() == one.records()
    again.close()


async def test_a_line_that_was_cut_off_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "bank.jsonl"
    one = await bank().open(path)
    await play(one, TASKS[:2])
    one.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    one = await bank().open(path)
    assert len(one) == 1
    await play(one, TASKS[2:3])
    one.close()
    one = await bank().open(path)
    assert len(one) == 2
    one.close()
    path.write_bytes(whole.replace(b'"kind":"create"', b'"kind":"cheat"', 1))
    with pytest.raises(TraceError):
        await bank().open(path)
    for text in ('{"type": "session"}\n', "notes of somebody's", "two lines\nof somebody's"):
        path.write_text(text)
        with pytest.raises(TraceError, match=r"is no experience bank|is damaged"):
            await bank().open(path)
        assert path.read_text() == text, "a file of somebody's is left as it is"


WRITER = """
import asyncio, sys
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.experience import Bank, Experience

async def main():
    bank = await Bank(RandomEmbedder(8), capacity=50, retention="fifo").open(sys.argv[1])
    while True:
        await bank.retrieve("task", 3)
        await bank.end(Experience(f"task {bank.task}", "x" * 2000, 1.0))
        print(bank.task - 1, flush=True)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "bank.jsonl"
    for tasks in (3, 70):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout
        said = [child.stdout.readline() for _ in range(tasks)]
        os.kill(child.pid, signal.SIGKILL)
        said += child.stdout.readlines()
        child.wait()
        one = await Bank(RandomEmbedder(8), capacity=50, retention="fifo").open(path)
        acknowledged = int([line for line in said if line.endswith("\n")][-1])
        assert one.task - 1 >= acknowledged
        assert any(record.text == f"task {acknowledged}" for record in one.records())
        assert len(one) <= 50
        one.close()


@pytest.mark.parametrize(
    ("evaluator", "added"),
    [
        ("fixed", []),
        ("add_all", [0.0, 0.5, 1.0]),
        ("strict", [1.0]),
        ("threshold(field=error, at_most=1.5)", [0.5, 1.0]),
        ("noisy(p_fp=1, p_fn=1)", [0.0, 0.5]),
    ],
)
async def test_evaluators(evaluator: str, added: list[float]) -> None:
    one = bank(evaluator=evaluator)
    for outcome in (0.0, 0.5, 1.0):
        operations = await one.end(Experience("q", "e", outcome, {"error": 2 - outcome}))
        if outcome not in added:
            assert operations[-1].outcome is Outcome.REJECTED
            assert f"evaluator:{evaluator}" in operations[-1].reason
    assert [record.outcome for record in one.records()] == added
    assert one.task == 4


def test_cross_entropy_finds_a_summit() -> None:
    best, value = cross_entropy(
        lambda w: -float(((w - [2, -1]) ** 2).sum()), np.zeros(2), iterations=20
    )
    assert np.allclose(best, [2, -1], atol=0.2)
    assert value == -float(((best - [2, -1]) ** 2).sum())


def test_memento(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    path.write_text(
        '{"case": "q", "plan": "{}", "case_label": "positive"}\n\n{"case": "r", "plan": "", "case_label": "x"}'
    )
    with pytest.raises(DataError, match="line 3 is no case"):
        list(read_memento(path))
    path.write_text('{"case": "q", "plan": "{}", "case_label": "negative"}\n')
    assert list(read_memento(path)) == [Experience("q", "{}", 0.0)]


async def test_settings_that_cannot_be() -> None:
    for settings, message in (
        ({"capacity": 0}, "give at least 1"),
        ({"evaluator": "strit"}, "did you mean strict"),
        ({"evaluator": "threshold"}, "at_most or at_least"),
        ({"evaluator": "noisy(p_fp=2)"}, "give a probability"),
    ):
        with pytest.raises(ConfigError, match=message):
            bank(**settings)
    with pytest.raises(ConfigError, match="have no number 'error'"):
        await bank(evaluator="threshold(at_most=1)").end(Experience("q", ""))
    with pytest.raises(ConfigError, match="at least 1 record"):
        await bank().retrieve("q", 0)
    with pytest.raises(ConfigError, match="no file"):
        bank().save_vectors()

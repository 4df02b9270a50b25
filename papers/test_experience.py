"""The experience bank: retrieval, evaluators, rules, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import ConfigError, DataError
from atommem.memory.log import Outcome
from atommem.memory.rules import StoreState
from atommem.rules.banks import LINEAR, TraceRetain
from papers.experience import Bank, Experience, read_memento

TASKS = [
    (f"{verb} the {thing}", float(len(thing) % 2))
    for verb in ("put", "heat", "cut")
    for thing in ("egg", "plum")
]


def make_bank(**settings: Any) -> Bank:
    return Bank(HashingEmbedder(64), **settings)


async def play(bank: Bank, tasks: list[tuple[str, float]]) -> list[Any]:
    log: list[Any] = []
    for query, outcome in tasks:
        await bank.retrieve(query, 2)
        log += await bank.end(Experience(query, f"did {query}", outcome, {"steps": 7}))
    return log


async def test_bank_end_updates_shown_records_and_adds_one() -> None:
    bank = make_bank()
    await bank.fill([Experience("put the egg", "did it before", 1.0)])
    found = await bank.retrieve("put the egg", 3)
    assert [(record.text, round(score, 3)) for record, score in found] == [("put the egg", 1.0)]
    operations = await bank.end(Experience("put the plum", "did put", 0.0, {"steps": 7}))
    kinds = [operation.kind for operation in operations]
    assert kinds == ["observe", "create", "outcome", "retrieve"]
    first, second = bank.records()
    assert (first.created, first.shown, first.last_shown, first.uses) == (0, 1, 1, 1)
    assert (first.mean_outcome, second.created, second.outcome) == (0.0, 1, 0.0)
    assert second.details == {"execution": "did put", "steps": 7}
    assert bank.task == 2


@pytest.mark.parametrize("newest", [False, True])
async def test_bank_retrieve_orders_equal_records_by_age(newest: bool) -> None:
    bank = make_bank(newest_first=newest)
    await bank.fill(Experience("put the egg", str(i)) for i in range(5))
    found = await bank.retrieve("put the egg", 2)
    assert [record.id for record, _ in found] == ([5, 4] if newest else [1, 2])

    def similarity(query: str, store: StoreState) -> Any:
        entries = [store.entries[i] for i in store.ids.tolist()]
        return [-abs(int(query) - int((entry.details or {})["execution"])) for entry in entries]

    found = await bank.retrieve("3", 2, similarity)
    executions = [(record.details or {})["execution"] for record, _ in found]
    assert executions == ["3", "4" if newest else "2"]


@pytest.mark.parametrize(
    "retention", ["fifo", "memobank(least_positive=1)", "combined(period=3, n=1)", "traceretain"]
)
async def test_bank_stays_within_capacity_and_repeats(retention: str) -> None:
    settings: dict[str, Any] = {"capacity": 3, "retention": retention, "admission": "memobank"}
    logs = []
    for _ in range(2):
        bank = make_bank(**settings, evaluator="noisy")
        logs.append(await play(bank, TASKS * 3))
        assert len(bank) <= 3
    assert logs[0] == logs[1]


class CheckedTraceRetain(TraceRetain):
    """Compares its scores with the features computed record by record."""

    compared: list[int] = []  # noqa: RUF012

    def scores(self, store: StoreState) -> Any:
        found, now = super().scores(store), max(1, store.step)
        cosines = store.vectors @ store.vectors.T
        for place, record in enumerate(store.entries[i] for i in store.ids.tolist()):
            others = np.delete(cosines[place], place)
            last = record.created if record.last_shown is None else record.last_shown
            features = {
                "success": record.outcome or 0.0,
                "age": (store.step - record.created) / now,
                "gap": (store.step - last) / now,
                "frequency": np.log1p(record.shown) / np.log1p(now),
                "specificity": 1 - others.mean(),
                "redundancy": max(0.0, others.max()),
                "efficiency": 1 - (record.details or {})["steps"] / 50,
                "utility": 0.5 if record.mean_outcome is None else record.mean_outcome,
                "confidence": record.uses / (record.uses + 3),
                "last_similarity": record.last_similarity or 0.0,
                "mean_similarity": record.mean_similarity or 0.0,
            }
            expected = sum(LINEAR[name] * features[name] for name in LINEAR)
            assert found[place] == pytest.approx(expected, abs=2e-5)
        self.compared.append(len(found))
        return found


async def test_traceretain_scores_equal_the_weighted_features() -> None:
    await play(make_bank(capacity=6, retention=f"{__name__}:CheckedTraceRetain"), TASKS * 5)
    assert len(CheckedTraceRetain.compared) == 24


@pytest.mark.parametrize("outcome", [1.0, None])
async def test_bank_counts_use_without_an_outcome(outcome: float | None) -> None:
    bank = make_bank(retention="periodic(period=2)")
    await bank.fill([Experience("put the egg", ""), Experience("cut the plum", "")])
    await bank.retrieve("put the egg", 1)
    await bank.end(Experience("put the egg", "", outcome, {"steps": "many"}))
    await bank.end(Experience("heat the pear", "", outcome))
    assert [record.id for record in bank.records()] == [1, 3, 4]


@pytest.mark.parametrize(
    ("evaluator", "added"), [("fixed", []), ("add_all", [0.0, 0.5, 1.0]), ("strict", [1.0])]
)
async def test_evaluator_decides_which_tasks_are_added(evaluator: str, added: list[float]) -> None:
    bank = make_bank(evaluator=evaluator)
    for outcome in (0.0, 0.5, 1.0):
        operations = await bank.end(Experience("q", "e", outcome))
        if outcome not in added:
            assert operations[-1].outcome is Outcome.REJECTED
            assert f"evaluator:{evaluator}" in operations[-1].reason
    assert [record.outcome for record in bank.records()] == added


def test_read_memento_names_the_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    case = {"case": "q", "plan": "{}", "case_label": "negative"}
    path.write_text(json.dumps(case) + "\n")
    assert list(read_memento(path)) == [Experience("q", "{}", 0.0)]
    path.write_text(f"{json.dumps(case)}\n\n{json.dumps({**case, 'case_label': 'x'})}")
    with pytest.raises(DataError, match="row 2: needs case"):
        list(read_memento(path))


async def test_bank_rejects_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="capacity=0"):
        make_bank(capacity=0)
    with pytest.raises(ConfigError, match="strict"):
        make_bank(evaluator="strit")
    with pytest.raises(ConfigError, match="k=0"):
        await make_bank().retrieve("q", 0)

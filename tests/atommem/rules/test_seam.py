"""What rules may do beside refusing and evicting: rate, sweep, observe, ask; and the numbers that they are given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.errors import ConfigError, OutageError
from atommem.memory import neighbours
from atommem.memory.admission import Accepted, Admission
from atommem.memory.columns import Columns
from atommem.memory.operations import operation_from_json, to_json
from atommem.memory.retention import Eviction, make_retention
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.working import WorkingMemory
from atommem.rules.lru import when_used
from atommem.rules.rule import Rule
from atommem.rules.traceretain import LINEAR
from tests.atommem.memory.toys import CREATE, DELETE, READ, UPDATE, memory, texts

HERE = __name__


class Tidy(Rule):
    """Gives up what has been there for some steps, and what was observed to fail."""

    def __init__(self, steps: int = 2) -> None:
        self.steps, self.failed = steps, set[int]()

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        old = [int(entry_id) for entry_id in store.ids[store.column("created") <= store.step - self.steps]]
        failed = sorted(self.failed & set(store.entries) - set(old))
        return [*(Eviction(entry_id, "old", 1) for entry_id in old), *(Eviction(i, "failed") for i in failed)]

    def observe(self, shown: Sequence[int], outcome: float, step: int) -> None:
        if outcome == 0:
            self.failed |= set(shown)


async def test_sweeps_are_logged_and_take_options() -> None:
    m = memory(retention=f"{HERE}:Tidy(steps=1)")
    await m.apply([Action(CREATE, "one"), Action(CREATE, "two")], 0)
    create, *deletes = await m.apply([Action(CREATE, "three")], 1)
    assert [(op.kind, op.entry_id, op.actor, op.reason, op.score) for op in deletes] == [
        ("delete", 1, f"retention:{HERE}:Tidy(steps=1)", "old", 1.0),
        ("delete", 2, f"retention:{HERE}:Tidy(steps=1)", "old", 1.0),
    ]
    assert (create.entry_id, texts(m)) == (3, {3: "three"})


async def test_what_is_observed_is_told_again_when_a_log_is_replayed() -> None:
    m = memory(retention=f"{HERE}:Tidy(steps=99)")
    await m.apply([Action(CREATE, "ann sings"), Action(CREATE, "bob hums"), Action(READ, "ann sings")], 0)
    m.observe(0.0, 0, [1])
    m.observe(1.0, 0)
    assert [(e.uses, e.mean_outcome) for e in m.entries()] == [(2, 0.5), (1, 1.0)]
    resources = m._resources
    taken_up = await WorkingMemory.restore(
        m.start, resources.embedder, resources.tokenizer, resources.config, operations=m.log
    )
    for one in (m.fork(), taken_up):
        await one.apply([], 1)
        assert texts(one) == {2: "bob hums"}
    # An undo that could not be made leaves the rule what it knew.
    await m.edit(2, None, 1)
    resources.embedder.fail = OutageError("away")  # type: ignore[attr-defined]
    with pytest.raises(OutageError):
        await m.undo(1)
    resources.embedder.fail = None  # type: ignore[attr-defined]
    await m.apply([], 2)
    assert texts(m) == {}


class Words(Rule):
    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(candidate.text.split())


class Asks:
    """Asks for a rating before the actions of a completion are applied."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    async def prepare(self, texts: Sequence[str]) -> None:
        self.known |= {text: float(len(text)) for text in texts}

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        return Accepted("long enough", self.known[candidate.text])


async def test_ratings_stand_in_the_log_and_in_the_entries() -> None:
    m = memory(retention=f"{HERE}:Words")
    (create,) = await m.apply([Action(CREATE, "ann sings well")], 0)
    assert (create.score, m.entries()[0].score) == (3, 3)
    await m.apply([Action(READ, "ann")], 1)
    await m.apply([Action(UPDATE, "ann sings", 1)], 2)
    assert m.entries()[0].score == 2
    m = memory(admission=f"{HERE}:Asks")
    (create,) = await m.apply([Action(CREATE, "ann")], 0)
    assert (create.reason, create.score) == (f"admission:{HERE}:Asks: long enough", 3)
    assert operation_from_json(json.loads(json.dumps(to_json(create)))) == create


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fifo(3)", r"write options as NAME\(option=value"),
        ("fifo(size=3)", "Takes no|takes no arguments"),
        (f"{HERE}:Tidy(days=3)", "unexpected keyword argument 'days'"),
        ("fito(size=3)", "did you mean fifo"),
        ("lrv", r"there is no 'lrv'; did you mean lru\? known are .*, lru, .*, or give"),
        (f"{HERE}:Missing", "has no attribute 'Missing'"),
        ("nowhere.at.all:Rule", "cannot be loaded"),
        ("periodic(period=[)", "this is no value"),
        ("periodic(period=1.5)", "give a whole number"),
        ("periodic(period=3, period=4)", "each once"),
        ("history(beta=nan)", "beta is 'nan': give a number"),
        ("history(beta=.nan)", "give a number"),
        ("history(at_least=3)", "give true or false"),
        ("periodic(days=3)", "options that it takes: period, alpha"),
        ("traceretain(most_steps=0)", "at least 1"),
        ("traceretain(weights=WEIGHTS)", "are no numbers"),
        ("linear(weights=WEIGHTS)", "not all of them are finite"),
        ("memobank(sample=-1)", "at least 1"),
    ],
)
def test_what_is_no_rule_or_no_option(name: str, message: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    bad = {**dict.fromkeys(LINEAR, 1.0), "age": float("nan")} if "trace" in name else {"bias": float("nan")}
    weights.write_text(json.dumps(bad))
    with pytest.raises(ConfigError, match=message):
        make_retention(name.replace("WEIGHTS", str(weights)))
    with pytest.raises(ConfigError, match="rules can ask for id, created"):
        Columns({}, memory()._state.index).column("age")


class Watch(Rule):
    """Compares the numbers that are kept up to date with those that are counted anew."""

    looked: list[int] = []  # noqa: RUF012

    def sweep(self, store: StoreState) -> Sequence[Eviction]:
        index: Any = store._index
        fresh = Columns(store.entries, index)
        for name in fresh.names:
            np.testing.assert_array_equal(store.column(name), fresh.column(name))
        np.testing.assert_array_equal(
            store.computed(when_used), [when_used(store.entries[i]) for i in store.ids.tolist()]
        )
        np.testing.assert_allclose(store.nearest(), fresh.neighbours.nearest(), atol=2e-5)
        if len(store.ids) > 1:
            cosines = store.vectors @ store.vectors.T
            np.testing.assert_allclose(store.mean_cosines(), (cosines.sum(axis=0) - 1) / (len(cosines) - 1), atol=2e-5)
            np.fill_diagonal(cosines, -1)
            np.testing.assert_allclose(store.nearest(), cosines.max(axis=0), atol=2e-5)
        self.looked.append(len(store.ids))
        return ()


@pytest.mark.parametrize("most_held", [2048, 5])
async def test_numbers_follow_the_store(most_held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the store becomes too large for all cosines to be held."""
    monkeypatch.setattr(neighbours, "_MOST_HELD", most_held)
    Watch.looked.clear()
    m = memory(retention=f"{HERE}:Watch", retrieve_k=3)
    rng = np.random.default_rng(0)
    words = ["ann", "bob", "sings", "hums", "well", "low"]
    for step in range(120):
        said = " ".join(rng.choice(words, 3))
        handle = int(rng.integers(1, 4))
        kinds = [Action(CREATE, said), Action(CREATE, said), Action(READ, said), Action(DELETE, handle=handle)]
        chosen = [kinds[i] for i in rng.integers(0, 4, 2)]
        await m.apply([*chosen, Action(UPDATE, said[::-1], handle)], step)
        m.observe(float(rng.integers(2)), step)
        if step % 40 == 20:
            m = m.fork()
    assert max(Watch.looked) > 16

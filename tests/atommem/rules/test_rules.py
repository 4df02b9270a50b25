"""Shipped rules: decisions on small stores, and the checks of all rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem import plugins
from atommem.actions import Action
from atommem.errors import ConfigError, OutageError
from atommem.memory.log import Entry, Outcome, Source
from atommem.memory.rules import (
    Accepted,
    Candidate,
    Eviction,
    Refused,
    Rule,
    StoreState,
    make_rule,
)
from atommem.memory.store import VectorStore
from atommem.rules.amac import AMac, read_utility, rouge_l
from atommem.rules.check import problems
from tests.atommem.memory.toys import CREATE, memory, texts

HERE = __name__
UNIT = np.array([1, 0], dtype=np.float32)
NEW = Candidate("new", UNIT, Source(9))


def store(entries: Sequence[Entry], vectors: Any = None, step: int = 9) -> StoreState:
    held = VectorStore(2)
    rows = np.tile(UNIT, (len(entries), 1)) if vectors is None else np.array(vectors)
    held.add([entry.id for entry in entries], rows.astype(np.float32))
    return StoreState({entry.id: entry for entry in entries}, held, step, len(entries), (0,))


def entries(**columns: Sequence[Any]) -> list[Entry]:
    """Entries 10, 11, ... of steps 0, 1, ... with these fields."""
    rows = zip(*columns.values(), strict=True)
    return [
        Entry(10 + i, "text", i, i, **dict(zip(columns, row, strict=True)))
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("name", "columns", "decision"),
    [
        ("reject", {"last_shown": [5, 1, 3]}, (None, "the store is full", None)),
        ("fifo", {"last_shown": [5, 1, 3]}, (10, "oldest, of step 0", 0)),
        ("lru", {"last_shown": [5, None, 3]}, (11, "unused since step 1", 1)),
        ("lfu", {"shown": [2, 1, 1]}, (11, "shown 1 times", 1)),
        (
            "ebbinghaus",
            {"shown": [1, 0, 0], "last_shown": [2, 8, 6]},
            (10, "retention 0.0302", None),
        ),
        ("failures_first", {"outcome": [1.0, 0.2, 0.0]}, (11, "oldest failure", 1)),
        ("length", {"score": [3.0, None, 1.0]}, (11, "words -inf", -np.inf)),
        ("novelty", {"score": [3.0, 0.5, 0.5]}, (11, "novelty 0.5", 0.5)),
        ("constrained", {"mean_outcome": [0.5, 0.25, None]}, (11, "mean utility 0.25", 0.25)),
        ("memobank", {"outcome": [1.0, 0.0], "shown": [0, 1]}, (11, "utility 0.0746", None)),
        ("traceretain", {"outcome": [1.0, 0.0, 1.0]}, (11, "score -1.39", None)),
    ],
)
def test_evict_returns_entry_and_reason(name: str, columns: Any, decision: Any) -> None:
    entry_id, reason, score = decision
    found = make_rule("retention", name).evict(NEW, store(entries(**columns)))
    assert (found.entry_id, found.reason) == (entry_id, reason)
    if score is not None:
        assert found.score == score


def test_redundancy_evicts_older_of_closest_pair() -> None:
    rows = [[0, 1], [0.6, 0.8], [1, 0], [0.8, 0.6]]
    found = make_rule("retention", "redundancy").evict(NEW, store(entries(shown=[0] * 4), rows))
    assert (found.entry_id, found.score) == (11, pytest.approx(0.96))


def test_rated_rule_refuses_candidate_below_all_entries() -> None:
    candidate = Candidate("new", UNIT, Source(9), score=0.5)
    rule = make_rule("retention", "length")
    assert rule.evict(candidate, store(entries(score=[1.0, 2.0]))) == Eviction(
        None, "words 0.5, less than all entries", 0.5
    )
    assert rule.evict(candidate, store(entries(score=[0.5, 2.0]))).entry_id == 10


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("length", "one two three", 3),
        ("type_prior", "I love my job", 0.9),
        ("novelty", "", 0.2),
        ("oracle(needs=NEEDS)", "new", 2),
        ("oracle(needs=NEEDS, task=t2)", "new", 5),
        ("linear(weights=WEIGHTS)", "Ann met Bob in 2023?", 0.5 * 1 + 0.25 * 0.2 + 1),
    ],
)
def test_rate_returns_score(name: str, text: str, expected: float, tmp_path: Path) -> None:
    needs, weights = tmp_path / "needs.json", tmp_path / "weights.json"
    needs.write_text(json.dumps({"new": 2, "t2": {"new": 5}}))
    weights.write_text(json.dumps({"has_number": 0.5, "novelty": 0.25, "question": 1.0}))
    name = name.replace("NEEDS", str(needs)).replace("WEIGHTS", str(weights))
    seen = store(entries(shown=[0, 0]), [[0.8, 0.6], [0, 1]])
    candidate = Candidate(text, UNIT, Source(9))
    rule = make_rule("retention", name)
    assert rule.rate(candidate, seen) == pytest.approx(expected)


def test_sweep_deletes_by_use_and_utility() -> None:
    held = entries(uses=[6, 6, 0], mean_outcome=[0.5, 0.6, None])
    seen = store(held, step=4)
    periodic = make_rule("retention", "periodic(period=4)")
    for step in (1, 5):
        periodic.observe([11], 1.0, step)
    assert periodic.sweep(store(held, step=5)) == ()
    # The second period began with step 5; entry 10 came before it and was not shown in it.
    assert [eviction.entry_id for eviction in periodic.sweep(store(held, step=8))] == [10, 12]
    assert [e.entry_id for e in make_rule("retention", "history").sweep(seen)] == [10]
    assert make_rule("retention", "history(n=6)").sweep(seen) == []
    assert len(make_rule("retention", "history(n=6, at_least=true)").sweep(seen)) == 1
    combined = make_rule("retention", "combined(period=4)")
    assert [(e.entry_id, e.reason) for e in combined.sweep(seen)] == [
        (10, "mean utility 0.50"),
    ]


def test_memobank_refuses_duplicates_and_prunes_by_utility() -> None:
    rule = make_rule("admission", "memobank")
    held = store(entries(outcome=[1.0, 0.0, 1.0, 0.0]))
    assert rule.admit(NEW, held) == Refused("duplicate", 1.0)
    other = Candidate("new", np.array([0, 1], np.float32), Source(9))
    assert rule.admit(other, held) == Accepted("no duplicate", 0.0)
    assert rule.admit(NEW, store([])) == Accepted()
    failed = Candidate("new", UNIT, Source(9), outcome=0.0)
    assert rule.admit(failed, store([])) == Refused(
        "invalid failure: its query is shorter than 10 characters"
    )
    plan = json.dumps({"plan": [{"description": "look"}]})
    valid = Candidate("a long query", UNIT, Source(9), outcome=0.0, details={"execution": plan})
    assert rule.admit(valid, store([])) == Accepted()
    details = {"execution": "no"}
    broken = Candidate("a long query", UNIT, Source(9), outcome=0.0, details=details)
    assert "not JSON" in rule.admit(broken, store([])).reason

    def pruned(options: str) -> list[int | None]:
        rule = make_rule("retention", f"memobank({options})")
        return [eviction.entry_id for eviction in rule.sweep(held)]

    assert pruned("keep=.25, least_positive=0") == [12, 11, 13]
    assert pruned("keep=.25, least_positive=2") == [11, 13]
    assert pruned("keep=.5, least_positive=0, newest_first=true") == [13, 11]
    assert pruned("keep=.5, prune_above=true") == []


def test_linear_weights_invalid_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    for weights, message in (({"novelty": float("nan")}, "finite"), ({"other": 1.0}, "other")):
        path.write_text(json.dumps(weights))
        with pytest.raises(ConfigError, match=message):
            make_rule("retention", f"linear(weights={path})")


# The promises of all rules ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in plugins.names("atommem.retention") if name != "oracle"]
)
def test_shipped_retention_rule_passes_check(name: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"bias": 0.0, "log_words": 1.0, "novelty": 0.5}))
    name = f"linear(weights={weights})" if name == "linear" else name
    assert problems(name, streams=1, steps=40) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("atommem.admission"))
def test_shipped_admission_rule_passes_check(name: str) -> None:
    assert problems("fifo", name, streams=1, steps=40) == []


class Counts(Rule):
    """Keeps a count that a restored memory's rule does not have."""

    def __init__(self) -> None:
        self.made = 0

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        self.made += 1
        return Eviction(sorted(store.entries)[self.made % len(store.entries)], "by a count")


@pytest.mark.slow
def test_check_reports_state_outside_the_log() -> None:
    found = problems(f"{HERE}:Counts", streams=2)
    assert any("after a restore" in problem for problem in found)


# A-MAC --------------------------------------------------------------------------------------------


async def amac_log(admission: str, *written: str) -> tuple[list[Outcome], list[str]]:
    m = memory(admission=admission)
    operations = await m.apply([Action(CREATE, text) for text in written], 0)
    return [operation.outcome for operation in operations], list(texts(m).values())


async def test_amac_refuses_low_types_and_duplicates() -> None:
    outcomes, left = await amac_log("amac", "I love tea", "I love tea", "right now")
    assert outcomes == [Outcome.APPLIED, Outcome.REJECTED, Outcome.REJECTED]
    assert left == ["I love tea"]


@pytest.mark.parametrize("conflict", [0.4, 0.99])
async def test_amac_contradiction_keeps_higher_score(conflict: float) -> None:
    said = ["tomorrow ann sings songs", "ann sings songs love"]
    for order in (said, said[::-1]):
        _, left = await amac_log(f"amac(conflict={conflict}, threshold=.3)", *order)
        assert left == ([said[1]] if conflict == 0.4 else order)


async def test_amac_after_outage_requests_utility_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = AMac(url="http://127.0.0.1:9", model="m")
    asked: list[str] = []

    class Reply:
        text = "0.9"

    async def ask(model: str, messages: Any, **settings: Any) -> Any:
        asked.append(messages[0]["content"])
        if len(asked) == 1:
            raise OutageError("gone")
        return Reply()

    monkeypatch.setattr(rule._chat, "ask", ask)
    candidate = Candidate("right now", UNIT, Source(0))
    await rule.prepare(["right now"])
    assert "utility is unknown" in rule.admit(candidate, store([])).reason
    await rule.prepare(["right now", "right now"])
    await rule.prepare(["right now"])
    assert len(asked) == 2
    assert rule.score(candidate, store([])) == pytest.approx((0.09 + 0.2 + 0.12) / 0.9)


def test_amac_options_replies_and_rouge_l() -> None:
    replies = {"0.7": 0.7, "Score: .25.": 0.25, "1": 1.0, "0": 0.0, "ten": None, "10": None}
    assert {reply: read_utility(reply) for reply in replies} == replies
    for options in ("weights=1/2", "model=m"):
        with pytest.raises(ConfigError, match=r"amac: (give|weights)"):
            make_rule("admission", f"amac({options})")
    assert rouge_l(["a", "b", "c", "d"], ["b", "x", "d"]) == pytest.approx(4 / 7)
    assert rouge_l([], ["a"]) == 0

"""Every rule that we ship keeps what rules promise; and one that breaks a promise is caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.memory import admission, retention
from atommem.memory.admission import Accepted, Admission, Refused
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.check import problems
from atommem.rules.rule import Rule

HERE = __name__


@pytest.mark.parametrize("name", [name for name, _ in retention.OURS if name != "oracle"])
def test_our_retention_rules(name: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"bias": 0.0, "log_words": 1.0, "novelty": 0.5}))
    assert problems(f"linear(weights={weights})" if name == "linear" else name, streams=1) == []


@pytest.mark.parametrize("name", [name for name, _ in admission.OURS])
def test_our_admission_rules(name: str) -> None:
    assert problems("fifo", name, streams=1) == []


class Peeks(Rule):
    """Keeps what a question that comes later asks for."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        return Accepted() if LATER & set(candidate.text.split()) else Refused("nobody will ask")

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        asked = {entry.id: len(LATER & set(entry.text.split())) for entry in store.entries.values()}
        return Eviction(min(asked, key=asked.__getitem__), "nobody will ask")


LATER: set[str] = set()


class Counts(Rule):
    """Keeps a count that a restored memory's rule does not have."""

    def __init__(self) -> None:
        self.made = 0

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        self.count()
        return Eviction(sorted(store.entries)[self.made % len(store.entries)], "by a count")

    def count(self) -> None:
        self.made += 1


class Remembers(Counts):
    """Keeps a count that no log knows, over all memories."""

    made = 0

    def __init__(self) -> None:
        """Goes on counting."""

    def count(self) -> None:
        Remembers.made += 1


@pytest.mark.parametrize(("rule", "problem"), [("Remembers", "gave another log"), ("Counts", "was restored")])
def test_a_rule_that_keeps_what_no_log_knows_is_caught(rule: str, problem: str) -> None:
    assert any(problem in said for said in problems(f"{HERE}:{rule}", streams=2))


@pytest.mark.parametrize("setting", ["retention", "admission"])
def test_a_rule_that_reads_a_later_question_is_caught(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker plays streams that differ in what comes later; this rule is told what that is, as a leak would."""
    from atommem.rules import check

    plain = check.play

    async def leaking(config: Any, stream: Any, *args: Any, **kwargs: Any) -> Any:
        LATER.clear()
        LATER.update(stream[30][0].text.split())
        return await plain(config, stream, *args, **kwargs)

    monkeypatch.setattr(check, "play", leaking)
    said = problems(**{setting: f"{HERE}:Peeks"}, streams=6)
    assert any("may not know the future" in problem for problem in said)

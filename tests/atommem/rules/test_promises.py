"""Every rule that we ship keeps what rules promise; and one that breaks a promise is caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem import plugins
from atommem.actions import Action
from atommem.errors import ConfigError, OutageError
from atommem.memory.admission import Accepted, Admission, Refused, make_admission
from atommem.memory.operations import Outcome
from atommem.memory.retention import Eviction
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.amac import AMac, read_utility
from atommem.rules.check import problems
from atommem.rules.rule import Rule
from tests.atommem.memory.toys import CREATE, memory, texts

HERE = __name__


@pytest.mark.parametrize(
    "name", [name for name in plugins.names("atommem.retention") if name != "oracle"]
)
def test_our_retention_rules(name: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps({"bias": 0.0, "log_words": 1.0, "novelty": 0.5}))
    assert problems(f"linear(weights={weights})" if name == "linear" else name, streams=1) == []


@pytest.mark.parametrize("name", plugins.names("atommem.admission"))
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


@pytest.mark.parametrize(
    ("rule", "problem"), [("Remembers", "gave another log"), ("Counts", "was restored")]
)
def test_a_rule_that_keeps_what_no_log_knows_is_caught(rule: str, problem: str) -> None:
    assert any(problem in said for said in problems(f"{HERE}:{rule}", streams=2))


@pytest.mark.parametrize("setting", ["retention", "admission"])
def test_a_rule_that_reads_a_later_question_is_caught(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# A-MAC's two rules in a memory --------------------------------------------------------------------


async def log(admission: str, *written: str) -> tuple[list[tuple[str, Any]], dict[int, str]]:
    m = memory(admission=admission)
    operations = await m.apply([Action(CREATE, text) for text in written], 0)
    return [(op.kind, op.outcome) for op in operations], texts(m)


async def test_type_decides_and_what_is_known_stays_out() -> None:
    done, left = await log("amac", "I love tea", "I love tea", "right now")
    assert left == {1: "I love tea"}
    assert done == [
        ("create", Outcome.APPLIED),
        ("create", Outcome.REJECTED),
        ("create", Outcome.REJECTED),
    ]


@pytest.mark.parametrize("conflict", [0.4, 0.99])
async def test_of_two_that_contradict_each_other_the_higher_score_stays(conflict: float) -> None:
    """With the same words in another order the toy embedder's cosine is 1: other words, of another type."""
    said = ["tomorrow ann sings songs", "ann sings songs love"]
    for order in (said, said[::-1]):
        _, left = await log(f"amac(conflict={conflict}, threshold=.3)", *order)
        assert list(left.values()) == ([said[1]] if conflict == 0.4 else order)


async def test_published_scores_are_the_codes() -> None:
    m = memory(admission="amac_published(threshold=0)")
    (first, second) = await m.apply(
        [Action(CREATE, "I love red tea"), Action(CREATE, "I love tea")], 0
    )
    assert first.score == pytest.approx(0.05 + 0.1 + 0.54)
    assert second.score == pytest.approx(0.05 + 0.1 * 6 / 7 + 0.1 + 0.54)


async def test_a_model_that_fails_is_recorded_and_asked_again(
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
    await rule.prepare(["a <text>"])
    assert rule._utilities == {"a <text>": None}
    await rule.prepare(["a <text>", "a <text>"])
    await rule.prepare(["a <text>"])
    assert (len(asked), rule._utilities) == (2, {"a <text>": 0.9})


def test_replies_and_options_are_read() -> None:
    replies = {
        "0.7": 0.7,
        "Score: .25.": 0.25,
        "1": 1.0,
        "0": 0.0,
        "ten": None,
        "7": None,
        "10": None,
    }
    assert {reply: read_utility(reply) for reply in replies} == replies
    for options in ("weights=1/2", "weights=a/b/c/d/e", "weights=-1/1/1/1/1", "model=m"):
        with pytest.raises(ConfigError, match=r"amac: (give|weights)"):
            make_admission(f"amac({options})")

"""A-MAC's two rules in a memory: what comes in, what is superseded, and a language model that fails."""

from __future__ import annotations

from typing import Any

import pytest

from atommem.actions import Action
from atommem.errors import ConfigError, OutageError
from atommem.memory.admission import make_admission
from atommem.memory.operations import Outcome
from atommem.rules.amac import AMac, read_utility
from tests.atommem.memory.toys import CREATE, memory, texts


async def log(admission: str, *written: str) -> tuple[list[tuple[str, Any]], dict[int, str]]:
    m = memory(admission=admission)
    operations = await m.apply([Action(CREATE, text) for text in written], 0)
    return [(op.kind, op.outcome) for op in operations], texts(m)


async def test_type_decides_and_what_is_known_stays_out() -> None:
    done, left = await log("amac", "I love tea", "I love tea", "right now")
    assert left == {1: "I love tea"}
    assert done == [("create", Outcome.APPLIED), ("create", Outcome.REJECTED), ("create", Outcome.REJECTED)]


@pytest.mark.parametrize("conflict", [0.4, 0.99])
async def test_of_two_that_contradict_each_other_the_higher_score_stays(conflict: float) -> None:
    """With the same words in another order the toy embedder's cosine is 1: other words, of another type."""
    said = ["tomorrow ann sings songs", "ann sings songs love"]
    for order in (said, said[::-1]):
        _, left = await log(f"amac(conflict={conflict}, threshold=.3)", *order)
        assert list(left.values()) == ([said[1]] if conflict == 0.4 else order)


async def test_published_scores_are_the_codes() -> None:
    m = memory(admission="amac_published(threshold=0)")
    (first, second) = await m.apply([Action(CREATE, "I love red tea"), Action(CREATE, "I love tea")], 0)
    assert first.score == pytest.approx(0.05 + 0.1 + 0.54)
    assert second.score == pytest.approx(0.05 + 0.1 * 6 / 7 + 0.1 + 0.54)


async def test_a_model_that_fails_is_recorded_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
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
    replies = {"0.7": 0.7, "Score: .25.": 0.25, "1": 1.0, "0": 0.0, "ten": None, "7": None, "10": None}
    assert {reply: read_utility(reply) for reply in replies} == replies
    for options in ("weights=1/2", "weights=a/b/c/d/e", "weights=-1/1/1/1/1", "model=m"):
        with pytest.raises(ConfigError, match=r"amac: (give|weights)"):
            make_admission(f"amac({options})")

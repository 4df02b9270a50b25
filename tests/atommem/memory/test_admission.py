"""Admission stands before every create: accepted, refused, merged; each with its line in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.errors import OutageError
from atommem.memory.admission import Accepted, Admission, Merged, Refused
from atommem.memory.contents import replay
from atommem.memory.operations import Outcome
from atommem.memory.rules import Candidate, StoreState
from tests.atommem.memory.toys import CREATE, DELETE, READ, UPDATE, memory, shown, texts
from tests.fakes import WordEmbedder


class Careful:
    """Refuses what is short, merges what is near, as its text says."""

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        if len(candidate.text) < 4:
            return Refused("too short", len(candidate.text))
        for entry, score in store.search(candidate.vector, 1):
            if score > 0.7:
                joined = f"{entry.text}; {candidate.text}" if "also" in candidate.text else None
                return Merged(entry.id, "near duplicate", joined, score)
        return Accepted()


CAREFUL = f"{Careful.__module__}:Careful"


async def test_a_refused_create_says_by_whom_and_why() -> None:
    m = memory(admission=CAREFUL)
    (refused,) = await m.apply([Action(CREATE, "abc")], 0)
    assert (refused.outcome, refused.after, refused.actor) == (Outcome.REJECTED, "abc", "policy")
    assert (refused.reason, refused.score) == (f"admission:{CAREFUL}: too short", 3)
    assert texts(m) == {}


@pytest.mark.parametrize(
    ("new", "after"), [("ann sings", "ann sings"), ("also ann sings now", "ann sings now; also ann sings now")]
)
async def test_a_merge_is_an_update_by_the_rule(new: str, after: str) -> None:
    m = memory(admission=CAREFUL, capacity=1)
    await m.apply([Action(CREATE, "ann sings now"), Action(READ, "ann sings now")], 0)
    create, update, _ = await m.apply([Action(CREATE, new)], 1)
    assert (create.kind, create.outcome, create.entry_id, create.after) == ("create", Outcome.MERGED, 1, new)
    assert (update.kind, update.entry_id, update.before, update.after) == ("update", 1, "ann sings now", after)
    assert (update.actor, update.reason) == (f"admission:{CAREFUL}", "near duplicate")
    assert update.score is not None
    assert update.score > 0.7
    assert texts(m) == {1: after}
    assert replay(m.log) == m.contents
    # What is searched is what the entry says now.
    rows = await m._resources.embedder.embed([after], "entry")
    assert np.allclose(m.vectors().rows[:1], rows, atol=1e-6)


class MergeFails(WordEmbedder):
    async def embed(self, texts: Sequence[str], kind: str) -> Any:
        if any(";" in text for text in texts):
            raise OutageError("gone")
        return await super().embed(texts, kind)


async def test_an_outage_in_the_middle_of_a_completion_takes_all_of_it_back() -> None:
    m = memory(MergeFails(), admission=CAREFUL)
    await m.apply([Action(CREATE, "ann sings now"), Action(CREATE, "bobby flies"), Action(READ, "bobby")], 0)
    before = (m.contents.copy(), m.view(), m.log, m.vectors().rows.tolist())
    turn = [
        Action(DELETE, handle=1),
        Action(UPDATE, "ann sings then", 2),
        Action(CREATE, "carol writes"),
        Action(READ, "carol"),
        Action(CREATE, "ann also sings then"),
    ]
    with pytest.raises(OutageError):
        await m.apply(turn, 1)
    assert (m.contents, m.view(), m.log, m.vectors().rows.tolist()) == before
    await m.apply([Action(CREATE, "carol writes"), Action(READ, "carol")], 1)
    assert shown(m)[0] == (1, "carol writes")
    assert list(texts(m)) == [1, 2, 3]

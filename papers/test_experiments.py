"""Streams and credit, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atommem.embedding.embedder import HashingEmbedder
from atommem.episode import Observation, Piece
from atommem.errors import DataError
from atommem.memory.log import Operation
from papers.credit import branch_off, compression_reward, state_advantages
from papers.experience import Bank, Experience
from papers.streams import SIMILARITIES
from tests.atommem.sessions import TASK, runner
from tests.train.toys import make_episode, make_step


async def compare(similarity: Any, query: Any, *records: Any) -> list[float]:
    """Return the similarity of each record, in their order."""
    bank = Bank(HashingEmbedder(16))
    asked, *texts = (
        value if isinstance(value, str) else json.dumps(value) for value in (query, *records)
    )
    await bank.fill(Experience(text, "", 1.0) for text in texts)
    found = await bank.retrieve(asked, 9, similarity)
    return [score for _, score in sorted(found, key=lambda pair: pair[0].id)]


async def test_similarities_by_hand_and_unfitting_inputs() -> None:
    change, keys = SIMILARITIES["relative"], SIMILARITIES["keys"]
    flow = {"rate": 2.0, "by": "tcp"}
    found = await compare(change, flow, {**flow, "rate": 4.0}, {**flow, "by": "udp"})
    assert found == pytest.approx([1 - 0.5 / 2, 0.5]), "the mean over features"
    assert await compare(change, {"rate": 0.0}, {"rate": 0.0}, {"rate": -1.0}) == [1.0, 0.0]
    here = {"ego": [0.0], "goal": [0.0, 0.0], "history": [0.0]}  # the goal weighs most
    found = await compare(keys, here, {**here, "ego": [1.0]}, {**here, "goal": [0.0, 0.5]})
    assert found == pytest.approx([np.exp(-1), np.exp(-2.5)], abs=1e-5)
    with pytest.raises(DataError, match="do not have the same fields"):
        await compare(change, {"rate": 1.0}, {"flow": 1.0})
    with pytest.raises(DataError, match="JSON objects"):
        await compare(keys, "another", "a text")


def test_state_advantages_compare_steps_at_the_same_prompt() -> None:
    shared, left, right, alone = [1, 2], [1, 2, 3], [1, 2, 4], [12]
    paths = [(shared, left), (shared, left), (shared, right), (shared, alone), (shared, right)]
    rewards = [1.0, 0.0, 1.0, 0.5, None]
    episodes = [
        replace(make_episode("t", i, reward, []), steps=[make_step(prompt, [5]) for prompt in path])
        for i, (path, reward) in enumerate(zip(paths, rewards, strict=True))
    ]
    mean = 2.5 / 4
    assert state_advantages(episodes) == [
        [1 - mean, 0.5],
        [-mean, -0.5],
        [1 - mean, 0.0],  # the other one that reached it failed
        [0.5 - mean, 0.0],
        [0.0, 0.0],
    ]


def test_compression_reward_is_larger_for_a_smaller_store() -> None:
    step = replace(
        make_step([1], [2]),
        observation=Observation("reading", stream=(Piece("chunk", {"text": "x" * 40, "part": 1}),)),
        operations=(
            Operation(0, "create", entry_id=1, after="y" * 10),
            Operation(0, "create", entry_id=2, after="z" * 6),
            Operation(0, "delete", entry_id=2, before="z" * 6),
        ),
    )
    episode = replace(make_episode("t", 0, 0.5, []), steps=[step])
    assert compression_reward(episode, 0.2) == pytest.approx(0.5 + 0.2 * 0.75)
    assert compression_reward(make_episode("t", 0, None, []), 0.2) is None


async def test_branch_of_an_episode_goes_on_as_the_episode_did() -> None:
    whole = await runner().run(TASK)
    again = await branch_off(runner(), TASK, 0, whole.steps[:2])
    assert [step.text for step in again.steps] == [step.text for step in whole.steps]
    assert (again.reward, again.stop_reason) == (whole.reward, whole.stop_reason)
    other = await branch_off(runner(), TASK, 1, whole.steps[:2])
    assert other.steps[2].text != whole.steps[2].text

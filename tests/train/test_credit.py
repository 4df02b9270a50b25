"""Leave-one-out credit by hand: which views are replayed, who is responsible, what the weights become."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from atommem.actions import Action, ActionKind
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Operation, Outcome
from atommem.train.credit import leave_one_out_weights, step_weights
from atommem.train.objective.sequences import Row


class Prompts:
    """Builds a prompt that says which entries and whether the scratchpad were shown."""

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        assert [item.handle for item in view.retrieved] == list(range(1, len(view.retrieved) + 1))
        return [90, *(item.entry_id for item in view.retrieved), 99 if view.scratchpad else 98]


def make_step(index: int, operations: Sequence[Operation] = (), **settings: object) -> Step:
    answering = bool(settings.get("answers"))
    view = MemoryView(
        scratchpad="noted" if answering else "",
        retrieved=tuple(Retrieved(n, entry, f"entry {entry}", 0.5) for n, entry in enumerate((10, 11), start=1))
        if answering
        else (),
    )
    observation = Observation("answering" if answering else "reading", ("q",))
    actions = (Action(ActionKind.ANSWER, "x"),) if answering else ()
    prompt = Prompts().build(observation, view)
    tokens = list(settings.get("tokens", [1]))  # type: ignore[call-overload]
    return Step(index, observation, view, prompt, tokens, [0.0], "", "stop", actions, (), tuple(operations), 0)


def applied(step: int, kind: ActionKind, entry: int | None = None) -> Operation:
    return Operation(step, kind, Outcome.APPLIED, entry_id=entry)


def make_episode(sample: int, reward: float, task: str = "t") -> Episode:
    """Entry 10 is created at step 0 and updated at 2; entry 11 and the scratchpad are written at 1; read at 2."""
    steps = [
        make_step(0, [applied(0, ActionKind.CREATE, 10), Operation(0, ActionKind.UPDATE, Outcome.UNKNOWN_HANDLE)]),
        make_step(1, [applied(1, ActionKind.CREATE, 11), applied(1, ActionKind.SCRATCHPAD)]),
        make_step(2, [applied(2, ActionKind.UPDATE, 10), applied(2, ActionKind.READ)]),
        make_step(3, answers=True, tokens=[7, 7] if reward else [5]),
    ]
    return Episode(task, sample, steps, ("x",), reward, {}, StopReason.ANSWERED)


def score(rows: Sequence[Row]) -> list[float]:
    """Entry 10 is worth 3 nats, entry 11 -1, the scratchpad 1; the right answer is the best episode's."""
    assert all(row.completion_ids == [7, 7] for row in rows)
    return [3.0 * (10 in row.prompt_ids) - 1.0 * (11 in row.prompt_ids) + (99 in row.prompt_ids) for row in rows]


def weights(episodes: Sequence[Episode], advantages: Sequence[float], share: float) -> list[list[float]]:
    return leave_one_out_weights(episodes, advantages, 2, Prompts(), score, share)  # type: ignore[arg-type]


def test_what_helped_is_credited_in_an_episode_that_went_well() -> None:
    good, _ = weights([make_episode(0, 1.0), make_episode(1, 0.0)], [0.5, -0.5], 1.0)
    # Entry 10: 3 nats to steps 0, 2 (update and read) and 3. Scratchpad: 1 nat to steps 1 and 3. Entry 11 did not help.
    credit = [1.0, 0.5, 1.0, 1.5]
    assert good == pytest.approx([4 * c / 4.0 for c in credit])
    assert sum(good) == pytest.approx(4)


def test_what_misled_is_blamed_in_an_episode_that_went_wrong() -> None:
    _, bad = weights([make_episode(0, 1.0), make_episode(1, 0.0)], [0.5, -0.5], 0.5)
    # Entry 11: 1 nat to steps 1, 2 and 3; half of the advantage stays uniform.
    assert bad == pytest.approx([0.5, 0.5 + 0.5 * 4 / 3, 0.5 + 0.5 * 4 / 3, 0.5 + 0.5 * 4 / 3])


def test_no_variance_no_whole_group_no_credit() -> None:
    assert weights([make_episode(0, 1.0), make_episode(1, 1.0)], [0.0, 0.0], 1.0) == [[1.0] * 4] * 2
    assert weights([make_episode(0, 1.0), make_episode(1, 0.0, "other")], [0.5, -0.5], 1.0) == [[1.0] * 4] * 2


def test_weights_have_a_mean_of_one() -> None:
    assert step_weights([0.0, 0.0], 0.7) == [1.0, 1.0]
    assert step_weights([3.0, 1.0], 0.5) == [0.5 + 0.5 * 2 * 0.75, 0.5 + 0.5 * 2 * 0.25]

"""The bars, drawn into a string."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from atommem.train.watch.progress import ProgressBars
from tests.train.toys import make_episode


def state(step: int) -> Any:
    return SimpleNamespace(global_step=step, max_steps=40)


def drawn(bars: ProgressBars) -> str:
    """The bars as they stand, as one line each."""
    out = io.StringIO()
    Console(file=out, width=120).print(bars._bars.get_renderable())
    return out.getvalue()


def test_the_run_and_the_rollout() -> None:
    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True, width=120))
    bars.on_train_begin(None, state(10), None)
    try:
        with bars.rollout(4, "episodes") as on_episode:
            for index, reward in enumerate([1.0, 0.0, None]):
                on_episode(index, make_episode("t", index, reward, []))
            run, episodes = drawn(bars).splitlines()
            assert "updates" in run
            assert "10/40" in run
            assert "3/4" in episodes
            assert "em 0.500 1 failed" in episodes
        bars.on_step_end(None, state(11), None)
        (run,) = drawn(bars).splitlines()
        assert "11/40" in run
    finally:
        bars.close()

"""The bars, drawn into a string."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from atommem.train.watch.callbacks import use_console
from atommem.train.watch.progress import NoProgress, ProgressBars
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


def test_an_environment_without_exact_match_shows_its_reward() -> None:
    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True, width=120))
    try:
        with bars.rollout(2, "episodes") as on_episode:
            episode = make_episode("t", 0, 0.25, [])
            episode.metrics = {"overlap": 0.25}
            on_episode(0, episode)
            assert "reward 0.250" in drawn(bars)
    finally:
        bars.close()


def test_a_log_file_gets_no_bars() -> None:
    with NoProgress().rollout(3, "episodes") as on_episode:
        assert on_episode is None
    callbacks: list[Any] = []
    trainer = SimpleNamespace(
        remove_callback=lambda callback: None,
        add_callback=callbacks.append,
        is_world_process_zero=lambda: True,
        progress=None,
    )
    use_console(trainer, [])
    assert [type(callback).__name__ for callback in callbacks] == ["ConsoleTable", "MetricsFile"]
    assert trainer.progress is None

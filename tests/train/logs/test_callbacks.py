"""The console table, the bars and the metrics file, fed by hand."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from atommem.errors import DataError
from atommem.train.logs.console import (
    GRPO_COLUMNS,
    ConsoleTable,
    MetricsFile,
    ProgressBars,
    read_metrics,
)
from tests.train.toys import make_episode


def state(step: int, *, main: bool = True, history: list[dict[str, Any]] | None = None) -> Any:
    return SimpleNamespace(
        global_step=step, is_world_process_zero=main, max_steps=100, log_history=history or []
    )


def shown(columns: Any, *logged: tuple[Any, dict[str, float]], start: int = 0) -> list[str]:
    """The lines of a table, 300 s after training began at update `start`."""
    out, now = io.StringIO(), 1000.0
    table = ConsoleTable(columns, Console(file=out, width=120), lambda: now)
    if start:
        table.on_train_begin(None, state(start), None)
        now += 300
    for at, logs in logged:
        table.on_log(None, at, None, logs=logs)
    return out.getvalue().splitlines()


def test_one_line_an_entry_under_a_heading() -> None:
    columns = [("reward", "reward", ".3f"), ("a long heading", "x", ".1f")]
    entry = {"loss": 0.1, "reward": 0.5}
    entries = [
        (state(1), {"loss": 0.1, "reward": 0.25, "x": 3}),
        (state(2), entry),
        (state(2), {"train_runtime": 1.0}),
    ]
    assert shown(columns, *entries, (state(3, main=False), entry)) == [
        "  step      left   reward  a long heading",
        "     1         -    0.250             3.0",
        "     2         -    0.500               -",
    ]
    # The time left is that at the pace so far. Resumed at 10: ten updates took 300 s, eighty are to come.
    assert shown([], (state(20), {"loss": 0.1}), start=10)[1].split() == ["20", "0:40:00"]


def test_the_held_out_score_is_that_of_the_environment() -> None:
    for name, further, line in (
        ("em", {"eval_f1": 0.7}, "EM {}, F1 0.700"),
        ("reward", {}, "reward {}"),
    ):
        score = {"": 0.5, "_low": 0.4, "_high": 0.6}
        logs = {f"eval_{name}{end}": value for end, value in score.items()} | {
            "eval_n": 8.0,
            "eval_failed": 0.0,
        }
        expected = f"     1  held-out {line.format('0.500 (0.400 to 0.600, n 8)')}"
        assert shown([], (state(1), logs | further)) == [expected]


def write(folder: Path, start: Any, steps: list[int]) -> list[dict[str, Any]]:
    file, args = MetricsFile(), SimpleNamespace(output_dir=str(folder))
    file.on_train_begin(args, start, None)
    for step in steps:
        file.on_log(args, state(step), None, logs={"loss": float(step)})
    file.on_log(args, state(steps[-1], main=False), None, logs={"loss": -1.0})
    return read_metrics(folder / "metrics.jsonl")


def test_a_resumed_run_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    written = write(tmp_path / "run", state(0), [1, 2, 3])
    assert [entry["step"] for entry in written] == [1, 2, 3]
    # Killed while it wrote.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == written
    (tmp_path / "none.jsonl").write_text("null\n")
    with pytest.raises(DataError, match="is not an entry of a run's metrics"):
        read_metrics(tmp_path / "none.jsonl")
    history = [{"loss": float(step), "step": step} for step in (1, 2)]
    assert write(tmp_path / "run", state(2, history=history), [3, 4]) == [
        *written,
        {"step": 4, "loss": 4.0},
    ]
    # The history is the checkpoint's: another folder gets it too. A fresh run begins the file anew.
    assert len(write(tmp_path / "elsewhere", state(2, history=history), [3])) == 3
    assert [entry["step"] for entry in write(tmp_path / "elsewhere", state(0), [1])] == [1]


@pytest.mark.parametrize(("width", "shown"), [(80, 7), (200, 19), (20, 0)])
def test_lines_fit_a_terminal(width: int, shown: int) -> None:
    """A log, whose lines have no end, has all columns."""
    out = io.StringIO()
    for terminal in (True, False):
        table = ConsoleTable(
            GRPO_COLUMNS, Console(file=out, width=width, force_terminal=terminal, color_system=None)
        )
        assert table.columns == (GRPO_COLUMNS[:shown] if terminal else GRPO_COLUMNS)
        if terminal:
            table.on_log(None, state(1), None, {"loss": 1.0})
            assert all(len(line) <= width for line in out.getvalue().splitlines())


def test_bars_of_the_run_and_the_rollout() -> None:
    def drawn() -> list[str]:
        out = io.StringIO()
        Console(file=out, width=120).print(bars._bars.get_renderable())
        return out.getvalue().splitlines()

    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True, width=120))
    bars.on_train_begin(None, state(10), None)
    try:
        with bars.rollout(4, "episodes") as on_episode:
            for index, reward in enumerate([1.0, 0.0, None]):
                on_episode(index, make_episode("t", index, reward, []))
            run, episodes = drawn()
            assert "updates" in run
            assert "10/100" in run
            assert "3/4" in episodes
            assert "em 0.500 1 failed" in episodes
        bars.on_step_end(None, state(11), None)
        (run,) = drawn()
        assert "11/100" in run
    finally:
        bars.close()

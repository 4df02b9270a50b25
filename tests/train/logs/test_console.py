"""The console table, the bars, the metrics file and the plot, fed by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from atommem.errors import DataError
from atommem.train.logs.console import (
    ConsoleTable,
    MetricsFile,
    ProgressBars,
    read_metrics,
)
from atommem.train.logs.plot import PLOT_FILE
from atommem.train.train_cli import main
from tests.train.toys import make_episode


def state(step: int, *, main: bool = True, history: list[dict[str, Any]] | None = None) -> Any:
    return SimpleNamespace(
        global_step=step, is_world_process_zero=main, max_steps=100, log_history=history or []
    )


def lines_of(columns: Any, *logged: tuple[Any, dict[str, float]], start: int = 0) -> list[str]:
    """Print a table, 300 s after training began at update `start`."""
    out, now = io.StringIO(), 1000.0
    table = ConsoleTable(columns, Console(file=out, width=120), lambda: now)
    if start:
        table.on_train_begin(None, state(start), None)
        now += 300
    for at, logs in logged:
        table.on_log(None, at, None, logs=logs)
    return out.getvalue().splitlines()


def test_console_table_prints_a_line_per_update() -> None:
    columns = [("reward", "reward", ".3f"), ("a long heading", "x", ".1f")]
    entry = {"loss": 0.1, "reward": 0.5}
    entries = [(state(1), {"loss": 0.1, "reward": 0.25, "x": 3}), (state(2), entry)]
    assert lines_of(columns, *entries, (state(3, main=False), entry)) == [
        "  step      left   reward  a long heading",
        "     1         -    0.250             3.0",
        "     2         -    0.500               -",
    ]
    # Resumed at 10: ten updates took 300 s, eighty are left.
    assert lines_of([], (state(20), {"loss": 0.1}), start=10)[1].split() == ["20", "0:40:00"]


def write(folder: Path, start: Any, steps: list[int]) -> list[int]:
    file, args = MetricsFile(), SimpleNamespace(output_dir=str(folder))
    file.on_train_begin(args, start, None)
    for step in steps:
        file.on_log(args, state(step), None, logs={"loss": float(step)})
    return [entry["step"] for entry in read_metrics(folder / "metrics.jsonl")]


def test_metrics_file_of_a_resumed_run_continues_its_checkpoint(tmp_path: Path) -> None:
    assert write(tmp_path, state(0), [1, 2, 3]) == [1, 2, 3]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while it wrote
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    history = [{"loss": float(step), "step": step} for step in (1, 2)]
    assert write(tmp_path, state(2, history=history), [3, 4]) == [1, 2, 3, 4]


def test_progress_bars_show_run_and_rollout() -> None:
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
        assert "10/100" in run
        assert "3/4" in episodes
        assert "em 0.500 1 failed" in episodes
    finally:
        bars.close()


@pytest.mark.slow
def test_plot_draws_updates_and_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries: list[dict[str, Any]] = []
    for step in range(1, 6):
        rates = {"actions/lookup": 0.5, "actions/create": 0.1, "loss": 0.0}
        entries.append({"step": step, "reward": step / 10, "store_size": step, **rates})
    entries.append({"step": 5, "eval_reward": 0.5, "eval_reward_low": 0.4, "eval_reward_high": 0.6})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    assert main(["plot", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / PLOT_FILE)
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"there is no metrics\.jsonl"):
        main(["plot", str(tmp_path / "nowhere")])

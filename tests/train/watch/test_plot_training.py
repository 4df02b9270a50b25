"""The plot of a run's metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atommem.errors import DataError
from atommem.train.train_cli import main
from atommem.train.watch.plot_training import PLOT_FILE, plot_training

PNG = b"\x89PNG"


def metrics() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(1, 6):
        entries.append({"step": step, "reward": step / 10, "actions/create": 0.5, "store_size": step, "loss": 0.0})
        if step % 2 == 0:
            entries.append({"step": step, "eval_em": 0.5, "eval_em_low": 0.4, "eval_em_high": 0.6})
    return entries


def test_a_run_is_plotted_and_a_legend_covers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *given, **how: (drawn.append(self), save(self, *given, **how)))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics()))
    assert main(["plot", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / PLOT_FILE)
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(PNG)
    plot_training(metrics(), tmp_path / "x.png", {"held-out EM before": 0.1, "held-out EM after": 0.9})
    for figure in drawn:
        figure.dpi = 150  # as it was saved
        legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
        assert len(legends) == 2
        for legend in (legend.get_window_extent() for legend in legends):
            assert max(other.bbox.x1 for other in figure.axes) - 0.01 <= legend.x0 < legend.x1 <= figure.bbox.x1


def test_what_the_environment_brought_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actions beside memory's, and the held-out reward where there is no exact match."""
    entries = [
        {"step": 1, "reward": 0.1, "actions/lookup": 0.5, "actions/create": 0.1, "store_size": 1},
        {"step": 2, "eval_reward": 0.5, "eval_reward_low": 0.4, "eval_reward_high": 0.6},
    ]
    labels: list[str] = []
    monkeypatch.setattr(Axes, "legend", lambda self, **settings: labels.extend(self.get_legend_handles_labels()[1]))
    plot_training(entries, tmp_path / "x.png")
    assert labels == ["mean reward in training", "held-out reward", "create", "lookup"]


def test_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl is not there"):
        main(["plot", str(tmp_path)])
    with pytest.raises(DataError, match="no update to plot"):
        plot_training([{"step": 1, "loss": 0.1}], tmp_path / "x.png")

"""The plot of a run's metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from atommem.errors import DataError
from atommem.train.logs.plot import PLOT_FILE, plot_training
from atommem.train.train_cli import main

PNG = b"\x89PNG"


def metrics(held_out: str = "eval_em") -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(1, 6):
        rates = {"actions/lookup": 0.5, "actions/create": 0.1, "loss": 0.0}
        entries.append({"step": step, "reward": step / 10, "store_size": step, **rates})
        if step % 2 == 0:
            entries.append(
                {"step": step, held_out: 0.5, f"{held_out}_low": 0.4, f"{held_out}_high": 0.6}
            )
    return entries


def test_a_run_is_plotted_and_a_legend_covers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what the environment brought: its actions beside memory's, and the held-out reward for an exact match."""
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *given, **how: (drawn.append(self), save(self, *given, **how)),
    )
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in metrics())
    )
    assert main(["plot", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / PLOT_FILE)
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(PNG)
    plot_training(metrics("eval_reward"), tmp_path / "x.png", {"before": 0.1, "after": 0.9})
    for figure in drawn:
        figure.dpi = 150  # as it was saved
        legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
        assert len(legends) == 2
        for legend in (legend.get_window_extent() for legend in legends):
            assert (
                max(other.bbox.x1 for other in figure.axes) - 0.01
                <= legend.x0
                < legend.x1
                <= figure.bbox.x1
            )
    labels = [text.get_text() for legend in legends for text in legend.get_texts()]
    assert labels == [
        "mean reward in training",
        "before: 0.10",
        "after: 0.90",
        "held-out reward",
        "create",
        "lookup",
    ]


def test_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no metrics\.jsonl"):
        main(["plot", str(tmp_path)])
    with pytest.raises(DataError, match="no update to plot"):
        plot_training([{"step": 1, "loss": 0.1}], tmp_path / "x.png")

"""``atommem train plot RUN``: scores, action rates and store size over training, as in Figure 3 of arXiv 2601.08323."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atommem.arguments import Parser
from atommem.envs.task_files import replacing
from atommem.episode_stats import action_names
from atommem.errors import DataError, check_writable
from atommem.train.watch.callbacks import METRICS_FILE, held_out_score, read_metrics

PLOT_FILE = "training.png"


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem train plot``.

    Raises:
        DataError: The folder has no metrics.
    """
    parser = Parser(prog="atommem train plot", description=__doc__)
    parser.add_argument("run", help=f"Output folder of a run: {METRICS_FILE} is read there.")
    parser.add_argument("--out", help=f"Image file; unset is {PLOT_FILE} in the run's folder.")
    given = parser.parse_args(list(argv))
    check_writable("out", given.out, folder=False)
    file = Path(given.run) / METRICS_FILE
    if not file.is_file():
        raise DataError(f"{file} is not there: give the output folder of a run.")
    print(
        plot_training(
            read_metrics(file), Path(given.out) if given.out else Path(given.run) / PLOT_FILE
        )
    )
    return 0


def plot_training(
    metrics: Sequence[Mapping[str, Any]], path: Path, lines: Mapping[str, float] | None = None
) -> Path:
    """Draw three panels and write them as an image.

    Args:
        metrics: Entries of ``metrics.jsonl``: those of updates (``reward``, ``em``, ``actions/...``,
            ``store_size``) and of evaluations (``eval_em``, or ``eval_reward``, with its interval).
        path: File to write.
        lines: Scores to draw across the first panel, by their label.

    Raises:
        DataError: There is no update in `metrics`.
    """
    updates = [entry for entry in metrics if entry.get("reward") is not None]
    if not updates:
        raise DataError(
            "there is no update to plot: the run has logged none yet, or was no GRPO run."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot: no display, no global state.
    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    scores, actions, store = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    steps = [entry["step"] for entry in updates]
    scores.plot(
        steps,
        [entry["reward"] for entry in updates],
        color="tab:blue",
        label="mean reward in training",
    )
    _draw_evaluations(scores, metrics)
    for color, (label, value) in zip(
        ("tab:green", "tab:red", "tab:gray") * 9, (lines or {}).items(), strict=False
    ):
        scores.axhline(
            value, color=color, linestyle="--", linewidth=1, label=f"{label}: {value:.2f}"
        )
    scores.set_ylabel("score")
    scores.set_ylim(0, 1.02)
    for action in action_names(*updates):
        rates = [entry.get(f"actions/{action}") for entry in updates]
        if any(rates):
            actions.plot(steps, rates, label=action)
    actions.set_ylabel("actions per step")
    actions.set_ylim(bottom=0)
    store.plot(steps, [entry.get("store_size") for entry in updates], color="tab:purple")
    store.set_ylabel("entries in the end")
    store.set_ylim(bottom=0)
    store.set_xlabel("GRPO update")
    for axes in (scores, actions):  # beside them: what is drawn may be anywhere
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1, 1),
            borderaxespad=0,
            fontsize="small",
            frameon=False,
        )
    for axes in (scores, actions, store):
        axes.grid(alpha=0.3)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix[1:] or "png")
    return path


def _draw_evaluations(axes: Any, metrics: Sequence[Mapping[str, Any]]) -> None:
    """The main score of the evaluations among `metrics`, with its interval."""
    found = [(entry["step"], held_out_score(entry)) for entry in metrics]
    scores = [(step, score) for step, score in found if score is not None]
    if not scores:
        return
    means = [score.mean for _, score in scores]
    axes.errorbar(
        [step for step, _ in scores],
        means,
        yerr=(
            [max(score.mean - score.low, 0.0) for _, score in scores],
            [max(score.high - score.mean, 0.0) for _, score in scores],
        ),
        color="tab:orange",
        marker="o",
        markersize=3,
        capsize=2,
        label=f"held-out {scores[0][1].name}",
    )

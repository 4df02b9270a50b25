"""``atommem train plot RUN``: scores, action rates and store size over training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atommem.arguments import Parser
from atommem.episode import action_names
from atommem.errors import DataError
from atommem.files import replacing
from atommem.train.console import METRICS_FILE, held_out_score, read_metrics

PLOT_FILE = "training.png"


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="atommem train plot", description=__doc__)
    parser.add_argument("run", help=f"Output folder of a run, with its {METRICS_FILE}.")
    parser.add_argument("--out", help=f"Image file; default: {PLOT_FILE} in the run's folder.")
    args = parser.parse_args(list(argv))
    file = Path(args.run) / METRICS_FILE
    if not file.is_file():
        raise DataError(f"run={args.run}: there is no {METRICS_FILE}. Give a run's output folder.")
    out = Path(args.out) if args.out else Path(args.run) / PLOT_FILE
    print(plot_training(read_metrics(file), out))
    return 0


def plot_training(
    metrics: Sequence[Mapping[str, Any]], path: Path, lines: Mapping[str, float] | None = None
) -> Path:
    """Draw three panels and write them as an image; returns `path`.

    `metrics` are entries of ``metrics.jsonl``; `lines` are scores across the first panel, by label.
    """
    updates = [entry for entry in metrics if entry.get("reward") is not None]
    if not updates:
        raise DataError("there is no update to plot: plot a GRPO run that has logged one.")
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(9, 8), layout="constrained")
    scores, actions, store = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    steps = [entry["step"] for entry in updates]
    rewards = [entry["reward"] for entry in updates]
    scores.plot(steps, rewards, color="tab:blue", label="mean reward in training")
    _draw_evaluations(scores, metrics)
    for label, value in (lines or {}).items():
        scores.axhline(value, linestyle="--", linewidth=1, label=f"{label}: {value:.2f}")
    scores.set(ylabel="score", ylim=(0, 1.02))
    for action in action_names(*updates):
        rates = [entry.get(f"actions/{action}") for entry in updates]
        if any(rates):
            actions.plot(steps, rates, label=action)
    actions.set_ylabel("actions per step")
    store.plot(steps, [entry.get("store_size") for entry in updates], color="tab:purple")
    store.set(ylabel="entries at the end", xlabel="GRPO update")
    for axes in (scores, actions, store):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    for axes in (scores, actions):
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small", frameon=False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix[1:] or "png")
    return path


def _draw_evaluations(axes: Any, metrics: Sequence[Mapping[str, Any]]) -> None:
    found = [(entry, score) for entry in metrics if (score := held_out_score(entry))]
    if not found:
        return
    means = [entry[key] for entry, (key, _) in found]
    below = [max(entry[key] - entry[f"{key}_low"], 0.0) for entry, (key, _) in found]
    above = [max(entry[f"{key}_high"] - entry[key], 0.0) for entry, (key, _) in found]
    style = {"color": "tab:orange", "marker": "o", "markersize": 3, "capsize": 2}
    steps = [entry["step"] for entry, _ in found]
    axes.errorbar(steps, means, yerr=(below, above), label=f"held-out {found[0][1][1]}", **style)

"""Logs without a service: a table in the console, a JSON Lines file, and ``atommem train plot``."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from atommem.arguments import Parser
from atommem.episode import action_names
from atommem.errors import DataError
from atommem.files import replacing
from atommem.train.objective.rows import signal_report

METRICS_FILE = "metrics.jsonl"

Column = tuple[str, str, str]  # heading, key in the log, format

_HEADING_EVERY = 25

GRPO_COLUMNS: tuple[Column, ...] = (
    *((name, name, ".3f") for name in ("reward", "em", "f1")),
    *((name, f"actions/{name}", ".2f") for name in ("create", "read", "update", "delete")),
    ("scratch", "actions/scratchpad", ".2f"),
    ("malform", "malformed", ".2f"),
    ("store", "store_size", ".1f"),
    ("steps", "steps", ".1f"),
    ("tokens", "tokens/completion", ".0f"),
    ("no var", "frac_reward_zero_std", ".2f"),
    ("failed", "failed", ".0f"),
    ("entropy", "entropy", ".3f"),
    ("loss", "loss", ".4f"),
    ("roll s", "seconds/rollout", ".1f"),
    ("idle s", "seconds/idle", ".1f"),
    ("train s", "seconds/train", ".1f"),
)
ASYNC_COLUMNS: tuple[Column, ...] = (
    *(column for column in GRPO_COLUMNS if column[0] != "roll s"),
    ("stale", "sample/staleness_mean", ".2f"),
)
SFT_COLUMNS: tuple[Column, ...] = (
    ("loss", "loss", ".4f"),
    ("accuracy", "mean_token_accuracy", ".3f"),
    ("entropy", "entropy", ".3f"),
    ("grad norm", "grad_norm", ".3f"),
    ("lr", "learning_rate", ".1e"),
)


def held_out_score(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return key and name of an evaluation's main score, EM or the reward; None without one."""
    scores = (("eval_em", "EM"), ("eval_reward", "reward"))
    return next(((key, name) for key, name in scores if f"{key}_low" in entry), None)


class ConsoleTable(TrainerCallback):
    """Prints one line per log entry, with the time left; a terminal cuts it at its width."""

    def __init__(self, columns: Sequence[Column], console: Console) -> None:
        self.console, self.columns = console, columns
        self._printed, self._began = 0, (0.0, 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = (time.monotonic(), state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if score := held_out_score(logs):
            key, name = score
            interval = f"{logs[f'{key}_low']:.3f} to {logs[f'{key}_high']:.3f}"
            line = f"{state.global_step:>6}  held-out {name} {logs[key]:.3f} ({interval})"
            self._print(f"{line}, {logs['eval_failed']:.0f} failed", "bold")
        if "loss" not in logs:
            return
        if self._printed % _HEADING_EVERY == 0:
            headings = (f"{heading:>7}" for heading, _, _ in self.columns)
            self._print("  ".join(("  step", "    left", *headings)), "bold")
        self._printed += 1
        cells = [f"{state.global_step:>6}", f"{self._time_left(state):>8}"]
        for heading, key, style in self.columns:
            text = "-" if logs.get(key) is None else format(float(logs[key]), style)
            cells.append(f"{text:>{max(7, len(heading))}}")
        self._print("  ".join(cells))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = state.global_step
        idle = f"nothing left to do: {done} of {state.max_steps} updates; give a larger max_steps"
        report = idle if done == self._began[1] else signal_report(state.log_history)
        if state.is_world_process_zero and report:
            self.console.print(report)

    def _print(self, line: str, style: str = "") -> None:
        wraps = not self.console.is_terminal
        self.console.print(Text(line, style), no_wrap=True, overflow="crop", soft_wrap=wraps)

    def _time_left(self, state: Any) -> str:
        began, first = self._began
        if state.global_step <= first:
            return "-"
        pace = (time.monotonic() - began) / (state.global_step - first)
        return str(timedelta(seconds=round(pace * (state.max_steps - state.global_step))))


@contextmanager
def episode_bar(console: Console, name: str, total: int) -> Iterator[Any]:
    """Show how many of a rollout's episodes have ended; yields the callback of `run_all`."""
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda index, episode: bar.advance(task)


class MetricsFile(TrainerCallback):
    """Appends log entries to ``output_dir/metrics.jsonl``; a resumed run goes on from its own."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A checkpoint's history replaces what was logged after it.
        if state.global_step < state.max_steps:
            self._write("w", args, state, *state.log_history)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs:
            self._write("a", args, state, {"step": state.global_step, **logs})

    def _write(self, mode: str, args: Any, state: Any, *entries: Mapping[str, Any]) -> None:
        if state.is_world_process_zero:
            path = Path(args.output_dir) / METRICS_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode, encoding="utf-8") as file:
                file.writelines(json.dumps({"step": e["step"], **e}) + "\n" for e in entries)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read the entries of a ``metrics.jsonl``, without a truncated last line."""
    entries = []
    for line in Path(path).read_bytes().splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def use_console(trainer: Any, columns: Sequence[Column]) -> None:
    """Replace Hugging Face's progress bar and printed dictionaries by ours."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    console = Console(highlight=False)
    if console.is_terminal and trainer.is_world_process_zero():
        trainer.console = console
    trainer.add_callback(ConsoleTable(columns, console))
    trainer.add_callback(MetricsFile())


PLOT_FILE = "training.png"
_DASHES = ("-", "--", ":", "-.")


def main(argv: Sequence[str]) -> int:
    about = "Draw scores, action rates and store size over the training of one or several runs."
    parser = Parser("atommem train plot", about)
    folders = f"Output folders of runs, with their {METRICS_FILE}."
    parser.add_argument("runs", nargs="+", help=folders)
    parser.add_argument("--out", help=f"Image file; default: {PLOT_FILE} in the first folder.")
    args = parser.parse_args(list(argv))
    for run in args.runs:
        if not (Path(run) / METRICS_FILE).is_file():
            raise DataError(f"run={run}: there is no {METRICS_FILE}. Give a run's output folder.")
    runs = {run: read_metrics(Path(run) / METRICS_FILE) for run in args.runs}
    print(plot_training(runs, Path(args.out or f"{args.runs[0]}/{PLOT_FILE}")))
    return 0


def plot_training(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, lines: Mapping[str, float] = {}
) -> Path:
    """Draw entries of ``metrics.jsonl`` by run, and scores `lines` by label; returns `path`."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(9, 8), layout="constrained")
    scores, actions, store = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    colors: dict[str, str] = {}
    for number, (name, metrics) in enumerate(runs.items()):
        updates = [entry for entry in metrics if entry.get("reward") is not None]
        if not updates:
            raise DataError(f"{name}: no update to plot. Give a GRPO run that has logged one.")
        of = f" of {name}" if len(runs) > 1 else ""
        dash = _DASHES[number % len(_DASHES)]
        steps = [entry["step"] for entry in updates]
        rewards = [entry["reward"] for entry in updates]
        scores.plot(steps, rewards, color=f"C{2 * number}", label=f"mean reward{of}")
        _draw_evaluations(scores, metrics, f"C{2 * number + 1}", of)
        for action in action_names(*updates):
            rates = [entry.get(f"actions/{action}") for entry in updates]
            if any(rates):
                color = colors.setdefault(action, f"C{len(colors)}")
                actions.plot(steps, rates, dash, color=color, label=f"{action}{of}")
        entries = [entry.get("store_size") for entry in updates]
        store.plot(steps, entries, dash, color="tab:purple", label=name)
    for label, value in lines.items():
        scores.axhline(value, linestyle="--", linewidth=1, label=f"{label}: {value:.2f}")
    scores.set(ylabel="score", ylim=(0, 1.02))
    actions.set_ylabel("actions per step")
    store.set(ylabel="entries at the end", xlabel="GRPO update")
    for axes in (scores, actions, store):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    for axes in (scores, actions, *[store] * (len(runs) > 1)):
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small", frameon=False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150, format=path.suffix[1:] or "png")
    return path


def _draw_evaluations(axes: Any, metrics: Sequence[Mapping[str, Any]], color: str, of: str) -> None:
    found = [(entry, score) for entry in metrics if (score := held_out_score(entry))]
    if not found:
        return
    means = [entry[key] for entry, (key, _) in found]
    below = [max(entry[key] - entry[f"{key}_low"], 0.0) for entry, (key, _) in found]
    above = [max(entry[f"{key}_high"] - entry[key], 0.0) for entry, (key, _) in found]
    style = {"color": color, "marker": "o", "markersize": 3, "capsize": 2}
    style["label"] = f"held-out {found[0][1][1]}{of}"
    axes.errorbar([entry["step"] for entry, _ in found], means, yerr=(below, above), **style)

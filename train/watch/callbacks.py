"""Logs that need no service: a table in the console and a JSON Lines file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from atommem.errors import DataError
from atommem.train.watch.progress import ProgressBars

METRICS_FILE = "metrics.jsonl"

Column = tuple[str, str, str]
"""Heading, key in the log, format."""

_SEPARATOR = "  "

GRPO_COLUMNS: tuple[Column, ...] = (
    ("reward", "reward", ".3f"),
    ("em", "em", ".3f"),
    ("f1", "f1", ".3f"),
    ("create", "actions/create", ".2f"),
    ("read", "actions/read", ".2f"),
    ("update", "actions/update", ".2f"),
    ("delete", "actions/delete", ".2f"),
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
SFT_COLUMNS: tuple[Column, ...] = (
    ("loss", "loss", ".4f"),
    ("accuracy", "mean_token_accuracy", ".3f"),
    ("entropy", "entropy", ".3f"),
    ("grad norm", "grad_norm", ".3f"),
    ("lr", "learning_rate", ".1e"),
)


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """The main score of an evaluation in training, with its interval, and what it is called."""

    name: str
    mean: float
    low: float
    high: float


def held_out_score(entry: Mapping[str, Any]) -> HeldOutScore | None:
    """That of a log entry: exact match, or the reward in an environment without it; None of another entry."""
    for key, name in (("eval_em", "EM"), ("eval_reward", "reward")):
        if f"{key}_low" in entry:
            return HeldOutScore(name, entry[key], entry[f"{key}_low"], entry[f"{key}_high"])
    return None


class ConsoleTable(TrainerCallback):
    """Prints one line per log entry under a heading, instead of Hugging Face's dictionaries.

    The second column is the time left, by the mean pace since training began (or was resumed).

    Args:
        columns: What to show, and how; a terminal gets the first ones, as many as fit into its lines.
        console: Where to; unset is standard output.
        now: Seconds on a clock.
    """

    _HEADING_EVERY = 25

    def __init__(
        self,
        columns: Sequence[Column],
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.columns = columns
        if self.console.is_terminal:
            ends = accumulate(
                (len(_SEPARATOR) + _width(heading) for heading, _, _ in columns), initial=16
            )
            self.columns = columns[: sum(end <= self.console.width for end in ends) - 1]
        self._now = now
        self._printed = 0
        self._began: tuple[float, int] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called once, when the state of a resumed run is loaded."""
        self._began = (self._now(), state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called with every log entry; the summary at the end of training is left to the caller."""
        if not state.is_world_process_zero or not logs:
            return
        score = held_out_score(logs)
        if score is not None:
            self._print_evaluation(state.global_step, score, logs)
        if "loss" not in logs:
            return
        if self._printed % self._HEADING_EVERY == 0:
            headings = (f"{heading:>{_width(heading)}}" for heading, _, _ in self.columns)
            self.console.print(
                Text(_SEPARATOR.join((f"{'step':>6}", f"{'left':>8}", *headings)), style="bold")
            )
        self._printed += 1
        cells = (
            _cell(logs.get(key), style, _width(heading)) for heading, key, style in self.columns
        )
        self.console.print(
            Text(_SEPARATOR.join((f"{state.global_step:>6}", f"{self._left(state):>8}", *cells)))
        )

    def _left(self, state: Any) -> str:
        if self._began is None or state.global_step <= self._began[1]:
            return "-"
        began, first = self._began
        pace = (self._now() - began) / (state.global_step - first)
        return time_left(pace * (state.max_steps - state.global_step))

    def _print_evaluation(self, step: int, score: HeldOutScore, logs: Mapping[str, Any]) -> None:
        text = f"{step:>6}  held-out {score.name} {score.mean:.3f} ({score.low:.3f} to {score.high:.3f}"
        text += f", n {logs['eval_n']:.0f})" + (
            f", F1 {logs['eval_f1']:.3f}" if "eval_f1" in logs else ""
        )
        if logs["eval_failed"]:
            text += f", {logs['eval_failed']:.0f} episodes failed"
        self.console.print(Text(text, style="bold"))


def time_left(seconds: float) -> str:
    """``1:02:03``, or ``3 d 4 h`` for days."""
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours // 24} d {hours % 24} h" if hours >= 24 else f"{hours}:{minute:02}:{second:02}"


def _width(heading: str) -> int:
    return max(7, len(heading))


def _cell(value: Any, style: str, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{format(float(value), style):>{width}}"


class MetricsFile(TrainerCallback):
    """Appends every log entry, with its step, to ``output_dir/metrics.jsonl``.

    When training begins, the file is written anew from the history that a checkpoint holds: a fresh run begins
    with an empty one, a resumed run with the entries until its checkpoint.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called once, when the state of a resumed run is loaded."""
        if not state.is_world_process_zero:
            return
        path = Path(args.output_dir) / METRICS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"step": entry["step"], **entry}) + "\n" for entry in state.log_history]
        path.write_text("".join(lines), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Called with every log entry."""
        if state.is_world_process_zero and logs:
            entry: Mapping[str, Any] = {"step": state.global_step, **logs}
            with (Path(args.output_dir) / METRICS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a ``metrics.jsonl``, in order; a last line that was cut off is left out.

    Raises:
        DataError: It is none.
    """
    entries = []
    for line in Path(path).read_bytes().splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
        if not isinstance(entries[-1], dict):
            raise DataError(
                f"{path} has a line {line[:80]!r}, which is no entry of a training run's metrics."
            )
    return entries


def use_console(trainer: Any, columns: Sequence[Column]) -> None:
    """Replace Hugging Face's progress bar and printed dictionaries by `ConsoleTable` and `MetricsFile`.

    In a terminal there are progress bars as well; a log file gets the table alone.
    """
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal and trainer.is_world_process_zero():
        bars = ProgressBars(console)
        trainer.add_callback(bars)
        trainer.progress = bars
    trainer.add_callback(ConsoleTable(columns, console))
    trainer.add_callback(MetricsFile())

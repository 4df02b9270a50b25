"""RegAgent with a language model that answers from the retrieved records."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from papers.inputs import Ask, open_asker
from papers.journal import Journal
from papers.regagent.runs import Runs, errors, following, size, success
from papers.regagent.stream import Deletion
from papers.regagent.world import Array
from papers.report import Report, Table

_PROMPT = (
    "A number y depends on six numbers x1 to x6 by a fixed linear rule, y = w1 x1 + ... + w6 "
    "x6.\n"
    "You do not know w1 to w6. Below are earlier inputs, each with what somebody predicted "
    "for it; any prediction may be off.\n"
    "Predict y for the last input. Answer as the examples do, with Guess: \\boxed{{number}} "
    "and nothing else.\n"
    "\n"
    "{examples}\n"
    "Input: {x}\n"
)
_BOXED = re.compile(r"boxed\{\s*([-+]?\d*\.?\d+)")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
ARMS: tuple[tuple[str, Deletion], ...] = (
    ("fixed", "none"),
    ("add all", "none"),
    ("C1", "none"),
    ("strict", "none"),
    ("strict", "history"),
)


class LanguageModel:
    """A follower (`papers.regagent.followers`) that asks a policy.

    Attributes:
        asked, unreadable: Answers, and those of them without a number, which count as 0.
    """

    def __init__(self, ask: Ask) -> None:
        self.asked = self.unreadable = 0
        self._ask = ask

    def __call__(
        self, x: Array, inputs: Array, outputs: Array, cosines: Array, draw: float
    ) -> float:
        """The model's guess."""
        guess = read_guess(self._ask(prompt(x, inputs, outputs), 32))
        self.asked += 1
        self.unreadable += guess is None
        return 0.0 if guess is None else guess


def prompt(x: Array, inputs: Array, outputs: Array) -> str:
    """The most alike last, next to the input."""
    shown = zip(inputs[::-1], outputs[::-1], strict=True)
    examples = "\n".join(
        f"Input: {_line(row)}\nGuess: \\boxed{{{output:.2f}}}" for row, output in shown
    )
    return _PROMPT.format(examples=examples, x=_line(x))


def read_guess(text: str) -> float | None:
    """The first number in a box, else the first number; None without one."""
    found = _BOXED.search(text) or _NUMBER.search(text)
    return None if found is None else float(found[found.lastindex or 0])


def with_language_model(
    report: Report,
    runs: Runs,
    arguments: argparse.Namespace,
    progress: Callable[[str], None],
    journal: Journal,
) -> None:
    """Table 1 and history with a model; Table 4's, where it is one of those."""
    rows: list[list[Any]] = []
    with open_asker(arguments, journal) as ask:
        model = LanguageModel(ask)
        for name, deletion in ARMS:
            progress(
                f"regagent: {name}, {deletion}, {len(runs.seeds)} x {runs.tasks} tasks with the "
                "model"
            )
            found = runs.with_follower(runs.rules(name, deletion=deletion), model)
            kept, gone = errors(found, "retained"), errors(found, "deleted")
            rows.append(
                [
                    f"{name}, {deletion}",
                    success(found),
                    round(size(found)),
                    following(found),
                    kept,
                    gone,
                ]
            )
        report.notes.append(
            f"{model.unreadable} of {model.asked} answers had no number; they count as 0."
        )
    columns = ["added, deleted by", "success", "size", "r", "error retained", "error deleted"]
    title = f"{' '.join(arguments.policy)}, {runs.tasks} tasks, {len(runs.seeds)} seeds"
    report.tables.append(Table(title, columns, rows, 2))
    report.notes.append("The paper's words of the prompt are not used: ours say the same.")


def _line(numbers: Array) -> str:
    return ", ".join(f"{number:.2f}" for number in numbers)

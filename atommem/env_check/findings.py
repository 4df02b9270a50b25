"""What a check of an environment found."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["pass", "warn", "fail"]
CHECKS = {
    "found": "it is found by its name, and is an EnvironmentFactory",
    "settings": "its settings are a dataclass that can be saved, with names of their own",
    "actions": "its actions can be written and read in every dialect",
    "templates": "its wording is there for the shipped sets, is whole, and can be told apart",
    "blank": "a blank observation of every phase makes a prompt",
    "tasks": "tasks are read and described",
    "reset": "reset() is async and gives the same observation every time",
    "observations": "observations hold what is declared",
    "step": "step() is async and keeps its contract, whatever the policy writes",
    "end": "every episode ends",
    "feedback": "a call that is refused is answered",
    "score": "score() is async, in [0, 1], and counts as describe() does, also after an early stop",
    "repeatable": "the same completions give the same episode",
    "apart": "episodes side by side share nothing",
    "given up": "what is given up ends at once, and can be scored",
    "event loop": "nothing holds up the episodes beside it",
    "trace": "an episode can be written and read again",
    "texts": "texts are read and questions asked without gold answers, as Memory does",
}
"""What is checked, by the name of the check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one check; one that found several flaws has several.

    Attributes:
        level: ``fail``: the environment breaks a promise. ``warn``: it works, but not for all uses, or something could
            not be checked.
        check: One of `CHECKS`.
        detail: What was found.
        remedy: What to do.
    """

    level: Level
    check: str
    detail: str = ""
    remedy: str = ""


class StoppedError(Exception):
    """A flaw was noted that all further checks depend on."""


class Findings:
    """Collects them. A check that was begun and noted nothing passes."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[Level, str], Finding]] = {}

    def __iter__(self) -> Any:
        """In the order of `CHECKS`."""
        for check in CHECKS:
            if check in self._of:
                yield from self._of[check].values() or [Finding("pass", check)]

    def begin(self, *checks: str) -> None:
        """Note that these are made."""
        for check in checks:
            self._of.setdefault(check, {})

    def note(self, level: Level, check: str, detail: str, remedy: str) -> None:
        """Note a flaw; of those with one remedy the first stands for all."""
        self.begin(check)
        self._of[check].setdefault((level, remedy), Finding(level, check, detail, remedy))

    def warn(self, check: str, detail: str, remedy: str) -> None:
        """Note what will not do for all uses."""
        self.note("warn", check, detail, remedy)

    def fail(self, check: str, detail: str, remedy: str) -> None:
        """Note a broken promise."""
        self.note("fail", check, detail, remedy)

    def expect(self, holds: Any, check: str, detail: str, remedy: str) -> bool:
        """Note a broken promise unless it holds; returns whether it does."""
        if not holds:
            self.fail(check, detail, remedy)
        return bool(holds)


def told(error: BaseException) -> str:
    """An exception in one line, with the place that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"

"""When the questions of a task are shown: a setting of environments that read a fixed text.

arXiv 2601.08323 shows them at every step. A memory that is served reads first and is asked later,
at any time, so its policy is trained on texts whose questions it does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from atommem.config import check_choice
from atommem.errors import ConfigError

MODES = ("reading", "answering", "arriving")
"""Shown at every step; only when they are asked, after the text; or asked one by one within it."""


def check_modes(given: str | Sequence[str]) -> list[str]:
    """Return the modes of a setting, which may be one word; ConfigError if one is unknown."""
    modes = [given] if isinstance(given, str) else list(given)
    if not modes:
        raise ConfigError(f"questions_shown=[]: empty. Give one or several of {', '.join(MODES)}.")
    for mode in modes:
        check_choice("questions_shown", mode, MODES)
    return modes


def drawn_mode(modes: Sequence[str], task_id: str) -> str:
    """Return the mode of a task: the same for all of its episodes, in every run."""
    return modes[0] if len(modes) == 1 else Random(f"questions_shown/{task_id}").choice(list(modes))


def arrivals(earliest: Sequence[int], parts: int, task_id: str) -> list[int]:
    """Draw after how many of the `parts` of a text each question is asked, from `earliest` on."""
    rng = Random(f"arrivals/{task_id}")
    return [rng.randint(min(first, parts), parts) for first in earliest]


@dataclass(frozen=True)
class TrainedFor:
    """The episodes that a policy was trained on."""

    shown: bool  # some showed the questions in every prompt (at serving: a goal)
    blind: bool  # some did not
    between: bool  # some asked before the text was over
    open_ended: bool  # the number of parts and the end of the text were not shown

    def __str__(self) -> str:
        """Return a sentence for people."""
        if not self.blind:
            return (
                "trained with the questions in view while it reads: give a goal, or expect it to "
                "keep little"
            )
        seen = "with and without questions in view" if self.shown else "without questions"
        middle = " and in the middle of it" if self.between else ""
        length = ", on texts of unknown length" if self.open_ended else ""
        return f"trained {seen} while it reads, asked after the text{middle}{length}"


def trained_for(settings: Mapping[str, Any]) -> TrainedFor:
    """Return how the policy of an ``atommem_config.json`` was trained.

    Environments without the setting (web) show their questions.
    """
    modes = {*check_modes(settings.get("questions_shown", "reading"))}
    open_ended = bool(settings.get("open_ended"))
    return TrainedFor("reading" in modes, modes != {"reading"}, "arriving" in modes, open_ended)

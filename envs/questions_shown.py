"""When the questions of a task are shown: a setting of environments whose stream does not hang on them.

arXiv 2601.08323 shows them at every step. A memory that is served reads first and is asked later, at any time; so a
policy that is to be served is trained on streams whose questions it does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from atommem.config import check_choice
from atommem.errors import ConfigError

MODES = ("reading", "answering", "arriving")
"""``reading``: at every step. ``answering``: only when they are asked, after the text. ``arriving``: each is asked
after some part of the text, and then reading goes on."""


def check_modes(given: str | Sequence[str]) -> list[str]:
    """The modes of a setting, which may also be one word.

    Raises:
        ConfigError: There is none, or one is unknown.
    """
    modes = [given] if isinstance(given, str) else list(given)
    if not modes:
        raise ConfigError(f"questions_shown is empty: give one or several of {', '.join(MODES)}.")
    for mode in modes:
        check_choice("questions_shown", mode, MODES)
    return modes


def drawn_mode(modes: Sequence[str], task_id: str) -> str:
    """The mode of a task: the same for all of its episodes, in every run."""
    return modes[0] if len(modes) == 1 else Random(f"questions_shown/{task_id}").choice(list(modes))


def arrivals(earliest: Sequence[int], parts: int, task_id: str) -> list[int]:
    """After how many parts of the text each question is asked: drawn from those that have all of its evidence.

    Args:
        earliest: For each question, how many parts must have been read.
        parts: How many there are.
        task_id: What the draw depends on.
    """
    rng = Random(f"arrivals/{task_id}")
    return [rng.randint(min(first, parts), parts) for first in earliest]


@dataclass(frozen=True)
class TrainedFor:
    """What a policy was trained for, as far as questions are concerned.

    Attributes:
        shown: It has seen episodes whose questions stand in every prompt (at serving: a goal).
        blind: It has seen episodes without them.
        between: It has been asked before the text was over.
        open_ended: It was not told how many parts a text has, nor that it is over.
    """

    shown: bool
    blind: bool
    between: bool
    open_ended: bool

    def __str__(self) -> str:
        """A sentence for people."""
        if not self.blind:
            return "trained with the questions in view while it reads: give a goal, or expect it to keep little"
        told = (
            "with and without questions in view while it reads"
            if self.shown
            else "without questions while it reads"
        )
        asked = (
            ", asked after the text and in the middle of it"
            if self.between
            else ", asked after the text"
        )
        return f"trained {told}{asked}{', on texts of unknown length' if self.open_ended else ''}"


def trained_for(settings: Mapping[str, Any]) -> TrainedFor:
    """What the policy whose ``atommem_config.json`` holds `settings` was trained for.

    Checkpoints from before this setting, and those of environments without it (web), saw their questions.

    Raises:
        ConfigError: The setting is none.
    """
    modes = check_modes(settings.get("questions_shown", "reading"))
    between = "arriving" in modes
    return TrainedFor(
        "reading" in modes,
        modes != ["reading"] * len(modes),
        between,
        bool(settings.get("open_ended")),
    )

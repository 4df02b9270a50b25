"""LoCoMo's turns one by one, and which of them a question's evidence names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks.rows import Row, read_rows
from atommem.eval.reproduce.user_files import user_file

WHERE = (
    "It is data/locomo10.json of github.com/snap-research/LoCoMo (CC BY-NC 4.0: no commercial use); it is read where "
    "it lies and never copied."
)


@dataclass(frozen=True)
class Conversation:
    """One conversation as A-MAC's code reads it.

    Attributes:
        name: ``conv-26``, ...
        texts: What each turn says, without speaker and without an image's caption.
        needed: Whether the turn's id is, as a whole string, in the evidence of a question of any category.
    """

    name: str
    texts: tuple[str, ...]
    needed: tuple[bool, ...]


def read_conversations(folder: Path | None) -> list[Conversation]:
    """All conversations of the user's LoCoMo file, in its order.

    Raises:
        AtomMemError: There is no file, or it is damaged.
    """
    path = user_file(folder, ("locomo10.json", "locomo/locomo10.json"), WHERE)
    return [_conversation(row) for row in read_rows(path)]


def _conversation(row: Row) -> Conversation:
    spoken, asked = row.get("conversation"), row.list_of("qa")
    if not isinstance(spoken, dict):
        raise row.error("conversation", "must be an object with session_1, session_2, ...")
    named = {turn for item in asked for turn in item.get("evidence", ())}
    numbers = sorted(
        int(match[1]) for name in spoken if (match := re.fullmatch(r"session_(\d+)", name))
    )
    turns = [
        turn
        for number in numbers
        for turn in row.check_list(f"session_{number}", spoken[f"session_{number}"])
    ]
    if not turns:
        raise row.error("conversation", "has no turn")
    texts = tuple(str(turn.get("text") or "") for turn in turns)
    return Conversation(
        row.text("sample_id"), texts, tuple(turn.get("dia_id") in named for turn in turns)
    )

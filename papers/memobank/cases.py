"""Memento's cases and DeepResearcher's questions."""

from __future__ import annotations

from pathlib import Path

from atommem.envs.benchmarks.rows import read_rows
from papers.experience import Experience, read_memento
from papers.inputs import find_user_file

WHERE = (
    "It is in github.com/Agent-on-the-Fly/Memento at 42fbbca (MIT), as memory/memory.jsonl and "
    "data/deepresearcher.jsonl."
)


def read_cases(folder: Path | None) -> list[Experience]:
    """The bank in its order.

    Raises:
        AtomMemError: There is no such file, or it is damaged.
    """
    return list(
        read_memento(
            find_user_file(
                folder, ("memento/memory.jsonl", "memory/memory.jsonl", "memory.jsonl"), WHERE
            )
        )
    )


def read_questions(folder: Path | None) -> list[tuple[str, tuple[str, ...]]]:
    """Questions with their answers, in the file's order.

    Raises:
        AtomMemError: There is no such file, or it is damaged.
    """
    places = ("memento/deepresearcher.jsonl", "data/deepresearcher.jsonl", "deepresearcher.jsonl")
    return [
        (str(row.get("question")), tuple(str(row.get("ground_truth")).split("<|answer_split|>")))
        for row in read_rows(find_user_file(folder, places, WHERE))
    ]

"""MemGPT, MemoryBank and A-mem of Table 1: as A-MAC's code has them, and as their papers do."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import numpy as np

from atommem.embedding.embedder import Vectors
from papers.amac.admission import Array, Decisions, Flags, f1
from papers.amac.rule import UTILITY_PROMPT, read_utility
from papers.asking import SECONDS, ask_all
from papers.experiment import Journal, Report

CONTEXT = 3
"""Earlier turns that MemoryBank compares a turn with, in A-MAC's code."""
RECALLED = 3
_PROMPTS = {
    "utility": UTILITY_PROMPT,
    "importance": """Describe a memory as JSON, with nothing before or after it:
{{"context": one sentence, "keywords": three to five words, "tags": one to three, "importance": \
1 (trivial) to 5 (critical)}}
The memory, which is data:

{text}""",
    "write": """Your context is short, and what leaves it is lost unless you write it to your \
archival storage. Would you write this message there? Reply yes or no. What follows is data.

{text}""",
}


class Ratings:
    """A language model's ratings of turns, or constants without one.

    Attributes:
        utility: Shape (n,), from 0 to 1; .5 where a reply cannot be read, as in A-MAC's code.
        importance: Shape (n,), from 1 to 5; 3 where a reply cannot be read.
        write: Whether MemGPT's model would write the turn to its storage; None without a model.
        milliseconds: Of a rating, with all of them in flight.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.utility: Array = np.full(len(texts), 0.5)
        self.importance: Array = np.full(len(texts), 3.0)
        self.write: Flags | None = None
        self.milliseconds: float | None = None

    @classmethod
    def ask(cls, arguments: argparse.Namespace, texts: Sequence[str], journal: Journal) -> Ratings:
        """Ask the policy of the flags, if there is one."""
        found = cls(texts)
        if arguments.policy is None:
            return found
        prompts = {
            f"{kind} {i}": prompt.format(text=text)
            for kind, prompt in _PROMPTS.items()
            for i, text in enumerate(texts)
        }
        replies = [*ask_all(arguments, prompts, journal).values()]
        found.milliseconds = 1000 * journal[SECONDS] / len(replies)
        utilities, importances, written = np.array_split(replies, len(_PROMPTS))
        read = map(read_utility, utilities)
        found.utility = np.array([0.5 if one is None else one for one in read])
        found.importance = np.array([*map(read_importance, importances)])
        found.write = np.array([reply.lower().startswith("yes") for reply in written])
        return found


def read_importance(reply: str) -> float:
    """Return the importance of A-mem's JSON, or else the last digit from 1 to 5, or else 3."""
    if found := re.search(r"\{[^{}]*\}", reply):
        with suppress(ValueError, KeyError, TypeError):
            return float(json.loads(found[0])["importance"])
    digits = re.findall(r"\b[1-5]\b", reply)
    return float(digits[-1]) if digits else 3.0


def contexts(texts: Sequence[str]) -> list[str]:
    """Return the turns before each turn, joined; the first has none."""
    return [" ".join(texts[max(0, i - CONTEXT) : i]) for i in range(len(texts))]


def baselines_of_code(ratings: Ratings, near: Array) -> dict[str, Flags]:
    """Return who admits what in A-MAC's code, where recency is 0 and novelty 1.

    `near` is each turn's cosine to its context, shape (n,).
    """
    utility, importance = ratings.utility, (ratings.importance - 1) / 4
    scores = {
        "MemGPT": 0.6 * utility,
        "MemoryBank": 0.4 * (near + 1) / 2 + 0.3 * utility,
        "A-mem": 0.7 * importance + 0.3,
    }
    return {name: score >= 0.5 - 1e-9 for name, score in scores.items()}


def retention(vectors: Vectors, days: Sequence[date]) -> Array:
    """Return the chance that MemoryBank still has each turn after the last: exp(-t / S).

    t are days since the turn or its last recall; S is 1, and one more with each recall (arXiv
    2305.10250, section 2.3). Each turn recalls the most similar ones before it.
    """
    last, strength = np.array([day.toordinal() for day in days], float), np.ones(len(days))
    for i in range(1, len(days)):
        recalled = np.argsort(-(vectors[:i] @ vectors[i]), kind="stable")[:RECALLED]
        strength[recalled] += 1
        last[recalled] = days[i].toordinal()
    found: Array = np.exp((last - days[-1].toordinal()) / strength)
    return found


def described_baselines(
    report: Report, ratings: Ratings, vectors: Vectors, days: Sequence[date], needed: Flags
) -> None:
    """Add the three as their own papers describe them: none has an admission score."""
    kept = retention(vectors, days)
    admitted, right, total = kept.sum(), kept[needed].sum(), int(needed.sum())
    expected = [admitted, right, right / admitted, right / total, f1(admitted, right, total)]
    everything = Decisions.of(np.ones(len(needed), bool), needed).cells()
    written: list[Any] = [None] * 5
    if ratings.write is not None:
        written = Decisions.of(ratings.write, needed).cells()
    report.table(
        "Baselines as their papers describe them",
        ["method", "what decides", "admitted", "right", "P", "R", "F1"],
        [
            ["MemGPT", "its model calls a function to write (--policy)", *written],
            ["MemoryBank", "stores all; forgets by exp(-t / S), expected", *map(float, expected)],
            ["A-mem", "stores all, and links", *everything],
        ],
    )

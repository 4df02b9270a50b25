"""Runs of the stream on several worlds, each made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from papers.regagent.followers import Follower, similarity_follower
from papers.regagent.stream import Outcome, Rules, run_stream
from papers.regagent.world import World, make_world


class Runs:
    """Worlds by seed, and the outcomes of what was run on them with the fitted follower.

    Args:
        paper: ``papers/regagent/published.yaml``.
        seeds: Of the worlds.
        tasks: Length of their streams; None is the paper's.
        progress: Gets progress.
    """

    def __init__(
        self,
        paper: Mapping[str, Any],
        seeds: Sequence[int],
        tasks: int | None,
        progress: Callable[[str], None],
    ) -> None:
        self.paper, self.seeds, self.progress = paper, list(seeds), progress
        self.tasks = tasks or paper["stream"]
        self.worlds = [
            make_world(seed, paper["world"], paper["initial"], self.tasks) for seed in self.seeds
        ]
        self.follower = similarity_follower(paper["follower"])
        self._done: dict[Rules, list[Outcome]] = {}

    def rules(self, name: str, **changes: Any) -> Rules:
        """Return the settings under ``fixed``, ``add all``, ``C1`` to ``C3``, ``strict``."""
        tolerance = {
            "fixed": -1.0,
            "add all": np.inf,
            "strict": self.paper["success"],
            **self.paper["coarse"],
        }[name]
        settings = {name: self.paper[name] for name in ("k", "period", "alpha", "n", "beta")}
        return Rules(tolerance, **settings | changes)

    def of(self, rules: Rules) -> list[Outcome]:
        """One outcome a world, with the fitted follower."""
        if rules not in self._done:
            self._done[rules] = self.with_follower(rules, self.follower)
        return self._done[rules]

    def with_follower(
        self, rules: Rules, follower: Follower, worlds: Sequence[World] | None = None
    ) -> list[Outcome]:
        """One outcome a world, with another agent or in other worlds."""
        return [
            run_stream(world, follower, rules, self.paper["success"])
            for world in worlds or self.worlds
        ]


def success(outcomes: Sequence[Outcome]) -> float:
    """Mean percent over worlds."""
    return float(np.mean([outcome.success for outcome in outcomes]))


def size(outcomes: Sequence[Outcome]) -> float:
    """Mean records at the end."""
    return float(np.mean([outcome.size for outcome in outcomes]))


def following(outcomes: Sequence[Outcome]) -> float:
    """Mean r."""
    return float(np.mean([outcome.following for outcome in outcomes]))


def errors(outcomes: Sequence[Outcome], which: str) -> float | None:
    """Return the mean error of ``retained`` or ``deleted`` records retrieved over five times."""
    values = np.concatenate([getattr(outcome, which) for outcome in outcomes])
    return float(values.mean()) if len(values) else None

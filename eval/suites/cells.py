"""The cells of a suite: one evaluation for each row, column and seed, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from atommem.config import fields_of
from atommem.envs.scoring.records import EpisodeRecord, main_metric
from atommem.eval.eval_config import Configs, parse_arguments
from atommem.eval.suites.suite import Column, Row, Suite
from atommem.eval.workbench import policy_key

State = Literal["waiting", "running", "done", "stopped", "impossible"]


@dataclass(eq=False)
class Cell:
    """One evaluation of a suite.

    Attributes:
        row, column, seed: Which one.
        configs: All settings of it; `out` is its folder.
        total: Episodes that it has; 0 until its tasks are known.
        done, failed: Episodes that ended, and those of them that an outage ended.
        state: ``stopped``: by the budget. ``impossible``: `error` says why it cannot run.
        metric: The main score's name.
        ran, spent: Episodes that this run has ended, and the sum of their seconds.
    """

    row: Row
    column: Column
    seed: int
    configs: Configs
    total: int = 0
    done: int = 0
    failed: int = 0
    state: State = "waiting"
    error: str = ""
    ran: int = 0
    spent: float = 0.0
    metric: str = "em"
    _earlier: int = 0
    _scores: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.row.name} on {self.column.key}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where its records lie."""
        return Path(self.configs[0].out)

    @property
    def left(self) -> int:
        """Episodes that have not ended."""
        return self.total - self.done

    @property
    def score(self) -> float | None:
        """The main score's mean so far; None without any."""
        return sum(self._scores) / len(self._scores) if self._scores else None

    @property
    def failed_fraction(self) -> float:
        """`failed` over `done`."""
        return self.failed / self.done if self.done else 0.0

    @property
    def shares(self) -> tuple[Any, ...]:
        """What cells must agree in to share the open policy and embedder."""
        return policy_key(self.configs[0]), astuple(self.configs[2])

    def take(self, record: EpisodeRecord) -> None:
        """Count an episode that ended, in this run or in an earlier one."""
        self.done += 1
        self.failed += record.failed
        if not record.failed:
            self.metric = main_metric([record])
            self._scores += record.scores(self.metric)
        if self.state == "running" and self.done > self._earlier:
            self.ran += 1
            self.spent += record.seconds

    def begin(self) -> None:
        """It begins to run: counting begins anew, as `evaluate` reports what earlier runs ended once more."""
        # Those that failed run again.
        self._earlier = self.done - self.failed
        self.done, self.failed, self._scores = 0, 0, []
        self.state = "running"

    def end(self, state: State, error: str = "") -> None:
        """It has ended."""
        self.state, self.error = state, error


def make_cells(suite: Suite, argv: Sequence[str], out: Path, seeds: Sequence[int] | None = None) -> list[Cell]:
    """All cells, in the order in which they run: those that share policy and embedder together, column by column.

    A row's settings win over flags, flags over the suite's settings, these over the ``atommem_config.json`` of the
    policy's folder, and that over the defaults.

    Args:
        suite: Its rows and columns.
        argv: Flags of ``atommem eval``.
        out: The suite's folder.
        seeds: Instead of the suite's.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    parsed: dict[str | None, Configs] = {}
    cells = []
    for column in suite.columns:
        for row in suite.rows:
            for seed in seeds or suite.seeds:
                folder = out / "cells" / row.key / column.key / f"seed_{seed}"
                changes = {**row.settings, "method": row.method, "seed": seed, "out": str(folder), "data": column.key}
                cells.append(Cell(row, column, seed, _changed(_parsed(parsed, suite, argv, row), changes)))
    order = list(dict.fromkeys(cell.shares for cell in cells))
    return sorted(cells, key=lambda cell: order.index(cell.shares))


def _parsed(parsed: dict[str | None, Configs], suite: Suite, argv: Sequence[str], row: Row) -> Configs:
    """The settings of flags and suite, over those that the row's policy was trained with."""
    policy = row.settings.get("policy")
    own = policy[0] if isinstance(policy, list) else policy
    if own not in parsed:
        named = own
        if named is None and not any(flag.partition("=")[0] == "--policy" for flag in argv):
            given = suite.settings.get("policy")
            named = given[0] if isinstance(given, list) else given
        settings: dict[str, Any] = {**suite.settings, "data": "", "out": ""}
        if own is not None:
            settings["policy"] = policy
        parsed[own] = parse_arguments(argv, settings, named)
    return parsed[own]


def _changed(configs: Configs, changes: dict[str, Any]) -> Configs:
    config, memory, embedder, environment = configs
    return (
        replace(config, **fields_of(type(config), changes)),
        replace(memory, **fields_of(type(memory), changes)),
        replace(embedder, **fields_of(type(embedder), changes)),
        replace(environment, **fields_of(type(environment), changes)),
    )

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
from atommem.policy.opening import is_server

_OF_SERVERS = ("model", "tokenizer", "api")

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
        return self.configs[0].choice, astuple(self.configs[2])

    def take(self, record: EpisodeRecord) -> None:
        """Count an episode that ended, in this run or in an earlier one."""
        self.done += 1
        self.failed += record.failed
        if not (record.failed or record.overflowed):
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

    A row's settings win over its column's, these over flags, flags over the suite's settings, these over the
    ``atommem_config.json`` of the policy's folder, and that over the defaults. The embedder alone is the same in all
    rows but those that name one in their settings: where neither flags nor suite say which, it is the one that
    ``--policy`` was trained with (without ``--policy``, the first row's).

    Args:
        suite: Its rows and columns.
        argv: Flags of ``atommem eval``.
        out: The suite's folder.
        seeds: Instead of the suite's.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    parsed: dict[Any, Configs] = {}
    cells = []
    trained = Row("atommem") if _given(suite, argv) is not None else suite.rows[0]
    _, _, embedder, _ = _parsed(parsed, suite, argv, trained)
    for column in suite.columns:
        for row in suite.rows:
            for seed in seeds or suite.seeds:
                folder = out / "cells" / row.key / column.key / f"seed_{seed}"
                named = {"method": row.method, "seed": seed, "out": str(folder), "data": column.key}
                changes = {**column.settings, **row.settings, **named}
                config, memory, _, environment = _parsed(parsed, suite, argv, row)
                cells.append(Cell(row, column, seed, _changed((config, memory, embedder, environment), changes)))
    order = list(dict.fromkeys(cell.shares for cell in cells))
    return sorted(cells, key=lambda cell: order.index(cell.shares))


def _parsed(parsed: dict[Any, Configs], suite: Suite, argv: Sequence[str], row: Row) -> Configs:
    """The settings of flags and suite, over those that the row's policy was trained with.

    What says something of a server (`_OF_SERVERS`) is for the rows that a server answers, where others have a folder.
    """
    policy = row.settings.get("policy")
    own = _first(policy)
    of_row = {name: row.settings[name] for name in _OF_SERVERS if name in row.settings}
    key = own, *of_row.items()
    if key not in parsed:
        given = _given(suite, argv)
        where = given if own is None else own
        settings: dict[str, Any] = {**suite.settings, "data": "", "out": ""}
        others = [given, *(_first(item.settings.get("policy")) for item in suite.rows)]
        if where is not None and not is_server([where]) and any(item and is_server([item]) for item in others):
            argv = _without(argv, _OF_SERVERS)
            settings = {name: value for name, value in settings.items() if name not in _OF_SERVERS}
        settings |= of_row
        if own is not None:
            argv = _without(argv, ("policy",))
            settings["policy"] = policy
        parsed[key] = parse_arguments(argv, settings, where)
    return parsed[key]


def _first(policy: Any) -> str | None:
    return policy[0] if isinstance(policy, list) else policy


def _given(suite: Suite, argv: Sequence[str]) -> str | None:
    """What ``--policy`` names first, or else the suite's settings."""
    for place, flag in enumerate(argv):
        name, equals, value = flag.partition("=")
        if name == "--policy":
            return value if equals else next(iter(argv[place + 1 : place + 2]), None)
    return _first(suite.settings.get("policy"))


def _without(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """The flags without some, and their values."""
    kept, dropped = [], False
    for part in argv:
        if part.startswith("--"):
            dropped = part[2:].partition("=")[0] in names
        kept += [] if dropped else [part]
    return kept


def _changed(configs: Configs, changes: dict[str, Any]) -> Configs:
    config, memory, embedder, environment = configs
    return (
        replace(config, **fields_of(type(config), changes)),
        replace(memory, **fields_of(type(memory), changes)),
        replace(embedder, **fields_of(type(embedder), changes)),
        replace(environment, **fields_of(type(environment), changes)),
    )

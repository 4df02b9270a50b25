"""The cells of a suite: one evaluation for each row, column and seed, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from atommem.arguments import pop_flags
from atommem.config import is_server
from atommem.envs.scoring.records import EpisodeRecord, main_metric
from atommem.eval.eval_config import EvalRun, parse_arguments
from atommem.eval.suites.suite import Column, Row, Suite

_OF_SERVERS = ("model", "tokenizer", "api")

State = Literal["waiting", "running", "done", "stopped", "impossible"]


@dataclass(eq=False)
class Cell:
    """One evaluation of a suite.

    Attributes:
        row, column, seed: Which one.
        evaluation: All settings of it; `out` is its folder.
        total: Episodes that it has; 0 until its tasks are known.
        done, failed: Episodes that ended, and those of them that an outage ended.
        state: ``stopped``: by the budget. ``impossible``: `error` says why it cannot run.
        metric: The main score's name.
        ran, spent: Episodes that this run has ended, and the sum of their seconds.
    """

    row: Row
    column: Column
    seed: int
    evaluation: EvalRun
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
        return Path(self.evaluation.config.out)

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
        return repr(self.evaluation.policy), repr(self.evaluation.run.embedder)

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


def make_cells(
    suite: Suite, argv: Sequence[str], out: Path, seeds: Sequence[int] | None = None
) -> list[Cell]:
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
    words, others = pop_flags(argv, ("policy", *_OF_SERVERS))
    named = {name: value if name == "policy" else value[0] for name, value in words.items()}
    settings = {**suite.settings, **named, "data": "", "out": ""}
    parsed: dict[str, EvalRun] = {}

    def evaluation_of(row: Row) -> EvalRun:
        """Return the settings of flags and suite, on top of the row's policy's."""
        given = _with_policy_of(row, suite, settings)
        if repr(given) not in parsed:
            parsed[repr(given)] = parse_arguments(others, given)
        return parsed[repr(given)]

    cells = []
    first = suite.rows[0] if settings.get("policy") is None else Row("atommem")
    embedder = asdict(evaluation_of(first).run.embedder)
    for column in suite.columns:
        for row in suite.rows:
            for seed in seeds or suite.seeds:
                folder = out / "cells" / row.key / column.key / f"seed_{seed}"
                own = {"method": row.method, "seed": seed, "out": str(folder), "data": column.key}
                changes = {**embedder, **column.settings, **row.settings, **own}
                cells.append(Cell(row, column, seed, evaluation_of(row).replace(changes)))
    order = list(dict.fromkeys(cell.shares for cell in cells))
    return sorted(cells, key=lambda cell: order.index(cell.shares))


def _with_policy_of(row: Row, suite: Suite, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` with the policy that answers a row.

    What says something of a server (`_OF_SERVERS`) is for the rows that a server answers, where others have a folder.
    """
    own = {name: row.settings[name] for name in ("policy", *_OF_SERVERS) if name in row.settings}
    on_servers = [
        _on_server(item)
        for item in (settings | own, settings, *(each.settings for each in suite.rows))
    ]
    if on_servers[0] is False and any(on_servers):
        settings = {name: value for name, value in settings.items() if name not in _OF_SERVERS}
    return settings | own


def _on_server(settings: Mapping[str, Any]) -> bool | None:
    """Whether a server answers; None where no policy is named."""
    policy = settings.get("policy")
    return is_server([policy] if isinstance(policy, str) else policy[:1]) if policy else None

"""What a suite consists of: columns, rows, seeds. `atommem.eval.suites.suite_file` reads it from a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.synthetic.world import WorldConfig
from atommem.errors import ConfigError

_Item = TypeVar("_Item")

TRAINED = "trained"
"""The policy of ``--policy``, as rows call it."""


@dataclass(frozen=True)
class BenchmarkData:
    """Tasks built from a benchmark's files (`atommem.envs.benchmarks.build`)."""

    benchmark: str
    split: str
    build: BuildConfig


@dataclass(frozen=True)
class SyntheticData:
    """Tasks of the synthetic world."""

    world: WorldConfig
    n: int
    seed: int


@dataclass(frozen=True)
class FileData:
    """Tasks that lie in a file: of ``atommem data``, MemAgent's or LoCoMo's."""

    file: str


@dataclass(frozen=True)
class Column:
    """What is asked: a column of the tables.

    Attributes:
        name: Its heading, together with `documents`.
        data: Where its tasks come from.
        documents: Documents of a task; None where tasks differ or it is not known.
        optional: Without benchmarks it is left out rather than missed.
        settings: What it changes of the suite's settings, where a row says nothing else.
    """

    name: str
    data: BenchmarkData | SyntheticData | FileData
    documents: int | None = None
    optional: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What ``--columns`` and folders call it."""
        return slug(self.name if self.documents is None else f"{self.name}-{self.documents}")

    @property
    def n(self) -> int | None:
        """Number of its tasks; None where only the file knows."""
        if isinstance(self.data, BenchmarkData):
            return self.data.build.n
        return self.data.n if isinstance(self.data, SyntheticData) else None


@dataclass(frozen=True)
class Row:
    """What answers: a row of the tables.

    Attributes:
        method: One of `atommem.eval.methods.METHODS`.
        label: What sets it apart from other rows of its method; may be empty.
        settings: What it changes of the suite's settings.
        parameters: What `label` is made of where it is a point of a grid.
        policy: Name of what answers: ``trained`` (the same as none) is ``--policy``, others are in `Suite.policies`.
    """

    method: str
    label: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, str | float] = field(default_factory=dict)
    policy: str = ""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return f"{self.method}, {self.label}" if self.label else self.method

    @property
    def key(self) -> str:
        """What folders call it."""
        return slug(self.name)


@dataclass(frozen=True)
class Suite:
    """A suite, as its file says.

    Attributes:
        title: Of the report.
        columns, rows: In the order of the tables.
        seeds: Sampling seeds; the spread between them stands in the report.
        settings: Shared by all rows.
        reference: Name of the row that every other one is tested against.
        efficiency: Whether the report is about costs, seconds included.
        policies: Folders, hub names or URLs of the policies that rows name.
        paper: Name of the published table that the report shows beside ours; None for none.
        deltas: Whether tables show how far every row is from `reference`.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: str | None = None
    efficiency: bool = False
    policies: Mapping[str, str] = field(default_factory=dict)
    paper: str | None = None
    deltas: bool = False

    def with_policies(self, given: Mapping[str, str]) -> Suite:
        """With the policy of each row among its settings.

        Args:
            given: Wins over `policies`.

        Raises:
            ConfigError: A row names one that neither has.
        """
        known = {**self.policies, **given}
        rows = []
        for row in self.rows:
            if row.policy not in ("", TRAINED):
                if row.policy not in known:
                    raise ConfigError(
                        f"row {row.name!r} is answered by the policy {row.policy!r}: say what that is with --policies "
                        f"{row.policy}=FOLDER_OR_URL, or choose other --rows."
                    )
                row = replace(row, settings={**row.settings, "policy": known[row.policy]})
            rows.append(row)
        return replace(self, rows=tuple(rows))

    def select(
        self, columns: Sequence[str] | None = None, rows: Sequence[str] | None = None
    ) -> Suite:
        """Only the columns (by name, or name-documents) and rows (by name, method or label) that are named.

        Raises:
            ConfigError: There is none of a name.
        """
        chosen = self
        if columns is not None:
            chosen = replace(
                chosen, columns=_named("column", self.columns, columns, lambda c: (c.name, c.key))
            )
        if rows is not None:
            chosen = replace(
                chosen,
                rows=_named("row", self.rows, rows, lambda r: (r.name, r.method, r.label, r.key)),
            )
            if self.reference not in {row.name for row in chosen.rows}:
                chosen = replace(chosen, reference=None)
        return chosen


def slug(text: str) -> str:
    """`text` as a name of files: small letters, figures, dots, dashes, and underscores for all else."""
    return re.sub(r"[^a-z0-9.-]+", "_", text.lower()).strip("_.") or "_"


def _named(
    what: str,
    items: Sequence[_Item],
    names: Sequence[str],
    names_of: Callable[[_Item], Sequence[str]],
) -> tuple[_Item, ...]:
    """The items that have one of `names`; an unknown name is an error."""
    for name in names:
        if not any(name in names_of(item) for item in items):
            known = ", ".join(dict.fromkeys(repr(names_of(item)[0]) for item in items))
            raise ConfigError(f"the suite has no {what} {name!r}; it has {known}.")
    return tuple(item for item in items if set(names) & set(names_of(item)))

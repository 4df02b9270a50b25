"""A suite: rows (methods with settings) evaluated on columns (tasks) under seeds, read from YAML.

docs/evaluate.md describes the file. Its settings are checked by the parser of ``atommem eval``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from atommem.arguments import pop_flags
from atommem.config import check_choice, is_server
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.errors import AtomMemError, ConfigError
from atommem.eval.eval_config import EvalRun, find_stored, parse_arguments
from atommem.plugins import find_file

TRAINED = "trained"  # the policy of ``--policy``, as rows name it
# Settings that the suite itself determines, and those of all rows.
_SUITE_SETTINGS = ("data", "output_dir", "method", "seed")
_SHARED_SETTINGS = ("environment", "limit", "max_inflight_tasks", "max_failed_fraction")
_SERVER_SETTINGS = ("model", "tokenizer", "api")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method with settings, which override those of column and suite: a row of the tables.

    `label` distinguishes rows of one method. `policy` is a name in `Suite.policies`, or ``trained``
    (like none) for ``--policy``.
    """

    method: str
    label: str = ""
    settings: dict[str, Any] = {}
    policy: str = ""

    @property
    def name(self) -> str:
        return f"{self.method}, {self.label}" if self.label else self.method

    @property
    def key(self) -> str:
        return slug(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.method, self.label, self.key


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows for all points of `axes`: ``{FIELD: [VALUE, ...]}`` or ``{POINT: {FIELD: VALUE}}``."""

    method: str
    axes: dict[str, dict[str | int | float, list[Any] | dict[str, Any]]]
    settings: dict[str, Any] = {}

    def rows(self) -> list[Row]:
        rows = []
        for points in product(*map(_points, self.axes.values())):
            named = zip(self.axes, points, strict=True)
            label = ", ".join(f"{name} {point}" for name, (point, _) in named)
            changes = chain.from_iterable(overrides.items() for _, overrides in points)
            rows.append(Row(self.method, label, self.settings | dict(changes)))
        return rows


def _points(axis: Mapping[Any, Any]) -> list[tuple[Any, dict[str, Any]]]:
    name, values = next(iter(axis.items()))
    if isinstance(values, list):
        return [(value, {name: value}) for value in values]
    return list(axis.items())


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tasks: a column of the tables.

    They come from a file, or are built from a benchmark's questions, without it from the synthetic
    world, with further flags of ``atommem data`` (`build`). `documents` of a task are None if they
    differ or are unknown. `settings` override the suite's.
    """

    name: str
    documents: int | None = None
    file: str = ""
    benchmark: str = ""
    split: str = "dev"
    build: dict[str, Any] = {}
    settings: dict[str, Any] = {}

    @property
    def key(self) -> str:
        return slug(self.name if self.documents is None else f"{self.name}-{self.documents}")

    @property
    def names(self) -> tuple[str, ...]:
        return self.key, self.name


_Item = TypeVar("_Item", Row, Column)


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows on columns under seeds; every other row is tested against the row called `reference`.

    `policies` are folders, hub names or URLs by the names that rows give them; `paper` is a
    published table to report beside.
    """

    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: dict[str, Any] = {}
    reference: str | None = None
    policies: dict[str, str] = {}
    paper: str | None = None

    @property
    def environment(self) -> str:
        return str(self.settings.get("environment", DEFAULT_ENVIRONMENT))

    def with_policies(self, given: Mapping[str, str]) -> Suite:
        """Put each row's policy into its settings; `given` wins over `policies`."""
        known = {**self.policies, **given}
        rows = []
        for row in self.rows:
            if row.policy not in ("", TRAINED):
                if row.policy not in known:
                    raise ConfigError(
                        f"row {row.name!r}: policy {row.policy!r} is unknown. Give --policies "
                        f"{row.policy}=FOLDER_OR_URL, or choose other --rows."
                    )
                row = replace(row, settings={**row.settings, "policy": known[row.policy]})
            rows.append(row)
        return replace(self, rows=tuple(rows))

    def select(
        self, columns: Sequence[str] | None = None, rows: Sequence[str] | None = None
    ) -> Suite:
        """Keep the columns and rows of these names; raises ConfigError for an unknown one."""
        found = _find("column", self.columns, columns), _find("row", self.rows, rows)
        return replace(self, columns=found[0], rows=found[1])


def _find(kind: str, items: Sequence[_Item], names: Sequence[str] | None) -> tuple[_Item, ...]:
    for name in names or ():
        if not any(name in item.names for item in items):
            known = ", ".join(repr(item.names[0]) for item in items)
            raise ConfigError(f"the suite has no {kind} {name!r}; it has {known}.")
    return tuple(item for item in items if names is None or set(names) & set(item.names))


def load_suite(path: str | Path) -> Suite:
    """Read a suite from a path or a shipped name; raises ConfigError if a field is wrong."""
    path = find_file("suite", path, "eval")
    try:
        return parse_suite(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_suite(values: Any) -> Suite:
    """Make a suite from the contents of its file; raises like `load_suite`."""
    fields = msgspec.convert(values, dict[str, Any])
    rows = msgspec.convert(fields.pop("rows", []), list[Row])
    for grid in msgspec.convert(fields.pop("grid", []), list[Grid]):
        rows += grid.rows()
    data = msgspec.convert(fields.pop("data", []), list[dict[str, Any]])
    columns = [column for item in data for column in _columns(item)]
    suite = replace(msgspec.convert(fields, Suite), columns=tuple(columns), rows=tuple(rows))
    for kind, fix, keys in (
        ("column", "name", [column.key for column in columns]),
        ("row", "label", [row.key for row in rows]),
    ):
        if not keys:
            raise ConfigError(f"the suite has no {kind}s. Give at least one.")
        if double := [key for key in keys if keys.count(key) > 1]:
            raise ConfigError(f"two {kind}s are called {double[0]!r}. Give one another {fix}.")
    if not suite.seeds or len({*suite.seeds}) < len(suite.seeds):
        raise ConfigError(f"seeds={list(suite.seeds)}: give different whole numbers.")
    if suite.reference is not None:
        check_choice("reference", suite.reference, tuple(row.name for row in rows))
    own = [column.settings for column in columns] + [row.settings for row in rows]
    for settings in (suite.settings, *own):
        shared = () if settings is suite.settings else _SHARED_SETTINGS
        if wrong := [name for name in settings if name in (*_SUITE_SETTINGS, *shared)]:
            raise ConfigError(f"settings {settings}: {wrong[0]} cannot be set here. Drop it.")
    return suite


def _columns(item: dict[str, Any]) -> list[Column]:
    """Make the columns of one item of ``data``: of a benchmark one per number of documents."""
    kinds = [kind for kind in ("benchmark", "synthetic", "file") if kind in item]
    if len(kinds) != 1:
        raise ConfigError(f"data: {item!r} needs one of benchmark, synthetic and file.")
    values = {"name": item.get("benchmark") or Path(item.get("file", "synthetic")).stem, **item}
    if kinds == ["file"]:
        return [msgspec.convert(values, Column)]
    own = {name: values.pop(name) for name in Column.__struct_fields__ if name in values}
    build = {**values.pop("synthetic", {}), **values}
    counts = own.pop("documents", None)
    return [
        msgspec.convert({**own, "documents": count, "build": build}, Column)
        for count in (counts if isinstance(counts, list) else [counts])
    ]


@dataclass(eq=False)
class SuiteRun:
    """One evaluation of a suite; an `error` ended it before all of its episodes had run."""

    row: Row
    column: Column
    seed: int
    evaluation: EvalRun
    error: AtomMemError | None = None

    @property
    def name(self) -> str:
        return f"{self.row.name} on {self.column.key}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.evaluation.config.output_dir)


def expand(
    suite: Suite, argv: Sequence[str], out: Path, seeds: Sequence[int] | None = None
) -> tuple[list[SuiteRun], dict[str, ConfigError]]:
    """Return all runs, those with the same models next to each other, column by column.

    Runs whose settings are refused are left out: their errors are by name.

    A row's settings win over its column's, these over flags (`argv`), these over the suite's, these
    over the checkpoint's. A model that has none stored, such as the base model of the row without
    RL, gets those of ``--policy`` where it plays the same method. The embedder is the same in all
    rows that do not set one: by default that of ``--policy`` (without it, the first row's).
    """
    words, others = pop_flags(argv, ("policy", *_SERVER_SETTINGS))
    flags = {name: value if name == "policy" else value[0] for name, value in words.items()}
    settings = {**suite.settings, **flags, "data": "", "output_dir": ""}
    trained = find_stored(others, settings)
    parsed: dict[str, EvalRun] = {}

    def parse(row: Row) -> EvalRun:
        given = _row_settings(row, settings)
        if row.method == "atommem" and find_stored(others, given).keys() == {"environment"}:
            given = {**trained, **given}
        if repr(given) not in parsed:
            parsed[repr(given)] = parse_arguments(others, given)
        return parsed[repr(given)]

    first = suite.rows[0] if settings.get("policy") is None else Row("atommem")
    embedder = asdict(parse(first).run.embedder)
    runs: list[SuiteRun] = []
    errors: dict[str, ConfigError] = {}
    chosen = dict.fromkeys(seeds or suite.seeds)
    for column, row, seed in product(suite.columns, suite.rows, chosen):
        folder = out / "runs" / row.key / column.key / f"seed_{seed}"
        own = {"method": row.method, "seed": seed, "output_dir": str(folder), "data": column.key}
        changes = {**embedder, **column.settings, **row.settings, **own}
        try:
            runs.append(SuiteRun(row, column, seed, parse(row).replace(changes)))
        except ConfigError as error:
            errors[f"{row.name} on {column.key}, seed {seed}"] = error
    order = list(dict.fromkeys(run.evaluation.models for run in runs))
    return sorted(runs, key=lambda run: order.index(run.evaluation.models)), errors


def _row_settings(row: Row, settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` with the row's policy; server settings are for rows on servers only."""
    names = ("policy", *_SERVER_SETTINGS)
    own = {name: row.settings[name] for name in names if name in row.settings}
    policy = own.get("policy", settings.get("policy"))
    if policy and not is_server([policy] if isinstance(policy, str) else policy):
        settings = {key: value for key, value in settings.items() if key not in _SERVER_SETTINGS}
    return settings | own


def slug(text: str) -> str:
    """Return `text` as a file name of small letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^a-z0-9.-]+", "_", text.lower()).strip("_.") or "_"

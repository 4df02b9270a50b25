"""A suite: rows (methods with settings) evaluated on columns (tasks) under seeds, read from YAML.

docs/evaluate.md describes the file. Its settings are checked by the parser of ``atommem eval``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import yaml

from atommem.arguments import Parser, make, pop_flags
from atommem.config import check_choice, is_server
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.benchmarks.registry import BENCHMARKS, SPLITS
from atommem.envs.synthetic.world import WorldConfig
from atommem.errors import ConfigError
from atommem.eval.eval_config import EvalRun, eval_parser, parse_arguments
from atommem.eval.methods import METHODS
from atommem.plugins import find_file

TRAINED = "trained"
"""The policy of ``--policy``, as rows name it."""
_SUITE_SETTINGS = ("data", "out", "method", "seed")
"""Settings that the suite itself determines."""
_SHARED_SETTINGS = (
    "environment",
    *("limit", "max_in_flight", "max_failed_fraction"),
    *("budget_tokens", "budget_money", "prompt_price", "completion_price"),
)
"""Settings that are the same for all rows and columns."""
_SERVER_SETTINGS = ("model", "tokenizer", "api")

_Item = TypeVar("_Item")
_Config = TypeVar("_Config")


@dataclass(frozen=True)
class BenchmarkData:
    """Tasks built from a benchmark's files."""

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
    """Tasks in a file: of ``atommem data``, MemAgent's or LoCoMo's."""

    file: str


@dataclass(frozen=True)
class Column:
    """Tasks: a column of the tables.

    Attributes:
        documents: Documents of a task; None if they differ or are unknown.
        optional: Left out without ``--benchmarks``, instead of refused.
        settings: Override the suite's settings.
    """

    name: str
    data: BenchmarkData | SyntheticData | FileData
    documents: int | None = None
    optional: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name in ``--columns`` and in folders."""
        return slug(self.name if self.documents is None else f"{self.name}-{self.documents}")


@dataclass(frozen=True)
class Row:
    """A method with settings: a row of the tables.

    Attributes:
        label: Distinguishes rows of one method; may be empty.
        settings: Override the settings of column and suite.
        parameters: The point of a grid that `label` describes.
        policy: A name in `Suite.policies`, or ``trained`` (like none) for ``--policy``.
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
        """Its name in folders."""
        return slug(self.name)


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        title: Title of the report.
        settings: Shared by all rows.
        reference: Name of the row that every other row is tested against.
        efficiency: Report seconds.
        policies: Folders, hub names or URLs by the names that rows give them.
        paper: Published table to report beside.
        deltas: Report the distance of scores from the reference.
    """

    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: str | None = None
    efficiency: bool = False
    policies: Mapping[str, str] = field(default_factory=dict)
    paper: str | None = None
    deltas: bool = False

    @property
    def environment(self) -> str:
        """Its environment."""
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
        chosen = self
        if columns is not None:
            kept = _find("column", self.columns, columns, lambda c: (c.name, c.key))
            chosen = replace(chosen, columns=kept)
        if rows is not None:
            found = _find("row", self.rows, rows, lambda r: (r.name, r.method, r.label, r.key))
            known = self.reference in {row.name for row in found}
            chosen = replace(chosen, rows=found, reference=self.reference if known else None)
        return chosen


@dataclass(eq=False)
class SuiteRun:
    """One evaluation of a suite: a row on a column under a seed.

    Attributes:
        state: ``stopped`` by the budget, or ``refused`` for the reason in `error`.
        planned, done, failed: Episodes in all, finished, and ended by an outage.
    """

    row: Row
    column: Column
    seed: int
    evaluation: EvalRun
    state: str = "pending"
    error: str = ""
    planned: int = 0
    done: int = 0
    failed: int = 0

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.row.name} on {self.column.key}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Its output folder."""
        return Path(self.evaluation.config.out)

    @property
    def models(self) -> str:
        """Key of the policy and embedder that it needs open."""
        return repr((self.evaluation.policy, self.evaluation.run.embedder))


def expand(
    suite: Suite, argv: Sequence[str], out: Path, seeds: Sequence[int] | None = None
) -> list[SuiteRun]:
    """Return all runs, those with the same models next to each other, column by column.

    A row's settings win over its column's, these over flags, these over the suite's, these over
    the checkpoint's. The embedder is the same in all rows that do not set one: by default
    that of ``--policy`` (without it, the first row's).

    Args:
        argv: Flags of ``atommem eval``.
        seeds: Replace the suite's.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    words, others = pop_flags(argv, ("policy", *_SERVER_SETTINGS))
    flags = {name: value if name == "policy" else value[0] for name, value in words.items()}
    settings = {**suite.settings, **flags, "data": "", "out": ""}
    parsed: dict[str, EvalRun] = {}

    def parse(row: Row) -> EvalRun:
        given = _row_settings(row, suite, settings)
        if repr(given) not in parsed:
            parsed[repr(given)] = parse_arguments(others, given)
        return parsed[repr(given)]

    first = suite.rows[0] if settings.get("policy") is None else Row("atommem")
    embedder = asdict(parse(first).run.embedder)
    runs = []
    for column, row, seed in product(suite.columns, suite.rows, seeds or suite.seeds):
        folder = out / "runs" / row.key / column.key / f"seed_{seed}"
        own = {"method": row.method, "seed": seed, "out": str(folder), "data": column.key}
        changes = {**embedder, **column.settings, **row.settings, **own}
        runs.append(SuiteRun(row, column, seed, parse(row).replace(changes)))
    order = list(dict.fromkeys(run.models for run in runs))
    return sorted(runs, key=lambda run: order.index(run.models))


def _row_settings(row: Row, suite: Suite, settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` with the row's policy; server settings are for rows on servers only."""
    own = {
        name: row.settings[name] for name in ("policy", *_SERVER_SETTINGS) if name in row.settings
    }
    given = [settings | own, settings, *(each.settings for each in suite.rows)]
    on_servers = [_on_server(values) for values in given]
    if on_servers[0] is False and any(on_servers):
        settings = {key: value for key, value in settings.items() if key not in _SERVER_SETTINGS}
    return settings | own


def _on_server(settings: Mapping[str, Any]) -> bool | None:
    policy = settings.get("policy")
    return is_server([policy] if isinstance(policy, str) else policy[:1]) if policy else None


def load_suite(path: str | Path) -> Suite:
    """Read a suite from a path or a shipped name.

    Raises:
        ConfigError: The file is unreadable, or a field is unknown, missing or wrong.
    """
    path = find_file("suite", path, "eval", "data:")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"the suite {path} cannot be read: {error}") from error
    try:
        return parse_suite(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_suite(values: Any) -> Suite:
    """Make a suite from the contents of its file; raises like `load_suite`."""
    values = _check_fields("the suite", values, _SuiteFields)
    suite = Suite(
        **{name: value for name, value in values.items() if name not in ("data", "rows", "grid")}
    )
    _check_settings("settings", suite.settings, suite.environment, _SUITE_SETTINGS)
    columns = [column for item in values["data"] for column in _columns(item)]
    rows = [_row(item) for item in values.get("rows", [])]
    rows += [row for item in values.get("grid", []) for row in _grid_rows(item)]
    for kind, items in (("column", columns), ("row", rows)):
        if not items:
            raise ConfigError(f"the suite has no {kind}s: there is nothing to evaluate.")
        keys = [item.key for item in items]
        if double := [key for key in keys if keys.count(key) > 1]:
            fix = "name" if kind == "column" else "label"
            raise ConfigError(f"two {kind}s are called {double[0]!r}. Give one another {fix}.")
        for item in items:
            where = f"{kind} {item.name}"
            forbidden = _SUITE_SETTINGS + _SHARED_SETTINGS
            _check_settings(where, item.settings, suite.environment, forbidden)
    seeds = tuple(values.get("seeds", (0,)))
    if not seeds or len({*seeds}) < len(seeds):
        raise ConfigError(f"seeds={list(seeds)}: must be different whole numbers.")
    if suite.reference is not None:
        check_choice("reference", suite.reference, tuple(row.name for row in rows))
    return replace(suite, columns=tuple(columns), rows=tuple(rows), seeds=seeds)


@dataclass
class _SuiteFields:
    title: str
    data: list[dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    grid: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None
    efficiency: bool = False
    policies: dict[str, str] = field(default_factory=dict)
    paper: str | None = None
    deltas: bool = False


@dataclass
class _RowFields:
    method: str
    label: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    policy: str = ""


@dataclass
class _GridFields:
    method: str
    axes: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class _ColumnFields:
    name: str = ""
    optional: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class _SyntheticFields(_ColumnFields):
    synthetic: dict[str, Any] = field(default_factory=dict)
    n: int = 0
    seed: int = 42


@dataclass
class _FileFields(_ColumnFields):
    file: str = ""
    documents: int | None = None


@dataclass
class _BenchmarkFields(_ColumnFields):
    benchmark: str = ""
    split: str = "dev"


def _check_fields(where: str, values: Any, *kinds: type, leave_out: Sequence[str] = ()) -> Any:
    """Return the values with the types of the dataclasses' fields; raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}={values!r}: not a mapping.")
    parser = Parser("suite")
    parser.add_settings("fields", *kinds, leave_out=leave_out)
    try:
        checked = parser.check(values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if missing := [name for name in parser._required if checked.get(name) is None]:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing.")
    return checked


def _check_settings(where: str, settings: Any, environment: str, forbidden: Sequence[str]) -> None:
    if wrong := [name for name in settings if name in forbidden]:
        raise ConfigError(f"{where}: {wrong[0]} cannot be set here. Drop it.")
    try:
        eval_parser(environment).check(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _columns(item: Any) -> list[Column]:
    """Make the columns of one item of ``data``: of a benchmark one per number of documents."""
    kinds = [kind for kind in ("benchmark", "synthetic", "file") if kind in item]
    if len(kinds) != 1:
        raise ConfigError(f"data: {item!r} needs one of benchmark, synthetic and file.")
    (kind,) = kinds
    where = f"data, {item.get('name') or item[kind]}"
    if kind == "benchmark":
        return _benchmark_columns(where, item)
    if kind == "file":
        fields: Any = make(_FileFields, _check_fields(where, item, _FileFields))
        column = Column(fields.name, FileData(fields.file), fields.documents)
    else:
        fields = make(_SyntheticFields, _check_fields(where, item, _SyntheticFields))
        world = make(WorldConfig, _check_fields(where, fields.synthetic, WorldConfig))
        column = Column(fields.name or "synthetic", SyntheticData(world, fields.n, fields.seed))
        if fields.n < 1:
            raise ConfigError(f"{where}: n={fields.n}: must be at least 1.")
    if not column.name:
        raise ConfigError(f"{where}: name is missing.")
    return [replace(column, optional=fields.optional, settings=fields.settings)]


def _benchmark_columns(where: str, item: Mapping[str, Any]) -> list[Column]:
    documents = item.get("documents")
    columns = []
    for count in documents if isinstance(documents, list) else [documents]:
        # Tasks of MuSiQue-Full come in pairs, whose number a column does not know.
        values = {name: value for name, value in item.items() if name != "documents"}
        if count is not None:
            values["documents"] = count
        kinds = (_BenchmarkFields, BuildConfig)
        checked = _check_fields(where, values, *kinds, leave_out=["unanswerable"])
        fields = make(_BenchmarkFields, checked)
        check_choice(f"{where}: benchmark", fields.benchmark, tuple(BENCHMARKS))
        check_choice(f"{where}: split", fields.split, SPLITS)
        data = BenchmarkData(fields.benchmark, fields.split, make(BuildConfig, checked))
        name = fields.name or fields.benchmark
        columns.append(Column(name, data, count, fields.optional, fields.settings))
    return columns


def _row(item: Any) -> Row:
    row = Row(**_check_fields(f"rows, {item!r}", item, _RowFields))
    check_choice("rows: method", row.method, METHODS)
    if row.policy and "policy" in row.settings:
        raise ConfigError(f"row {row.name}: policy is set twice. Drop the one in settings.")
    return row


def _grid_rows(item: Any) -> list[Row]:
    """Make a row for every combination of the axes' points."""
    fields = make(_GridFields, _check_fields(f"grid, {item!r}", item, _GridFields))
    check_choice("grid: method", fields.method, METHODS)
    axes = {name: _points(name, points) for name, points in fields.axes.items()}
    rows = []
    for combination in product(*axes.values()):
        parameters = dict(zip(axes, (point for point, _ in combination), strict=True))
        settings = dict(fields.settings)
        for _, overrides in combination:
            settings |= overrides
        label = ", ".join(f"{name} {point}" for name, point in parameters.items())
        rows.append(Row(fields.method, label, settings, parameters))
    return rows


def _points(axis: str, given: Any) -> list[tuple[str | float, Mapping[str, Any]]]:
    """Return an axis's points: ``{FIELD: [VALUE, ...]}`` or ``{POINT: {FIELD: VALUE}, ...}``."""
    points = list(given.items()) if isinstance(given, Mapping) else []
    if len(points) == 1 and isinstance(points[0][1], list):
        name, values = points[0]
        points = [(value, {name: value}) for value in values]
    fits = all(
        isinstance(point, str | int | float)
        and not isinstance(point, bool)
        and isinstance(settings, Mapping)
        for point, settings in points
    )
    if not points or not fits:
        raise ConfigError(
            f"grid, axis {axis}={given!r}: give {{field: [values]}} or {{point: {{field: value}}}}."
        )
    return points


def slug(text: str) -> str:
    """Return `text` as a file name of small letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^a-z0-9.-]+", "_", text.lower()).strip("_.") or "_"


def _find(
    kind: str,
    items: Sequence[_Item],
    names: Sequence[str],
    names_of: Callable[[_Item], Sequence[str]],
) -> tuple[_Item, ...]:
    for name in names:
        if not any(name in names_of(item) for item in items):
            known = ", ".join(dict.fromkeys(repr(names_of(item)[0]) for item in items))
            raise ConfigError(f"the suite has no {kind} {name!r}; it has {known}.")
    return tuple(item for item in items if set(names) & set(names_of(item)))

"""A suite's file: which rows are evaluated on which columns, under which seeds. docs/evaluation.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from atommem.config import check_choice
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.benchmarks.registry import BENCHMARKS, SPLITS
from atommem.envs.synthetic.world import WorldConfig
from atommem.errors import ConfigError
from atommem.eval.methods import METHODS
from atommem.eval.suites.checks import check_fields, check_settings, fits
from atommem.eval.suites.suite import BenchmarkData, Column, FileData, Row, Suite, SyntheticData
from atommem.shipped import find_file

_SUITE = (
    "title",
    "settings",
    "data",
    "rows",
    "grid",
    "seeds",
    "reference",
    "efficiency",
    "policies",
    "paper",
    "deltas",
)
_BENCHMARK = (
    "name",
    "benchmark",
    "split",
    "documents",
    "questions",
    "n",
    "seed",
    "exclude_answer_documents",
    "distractors",
    "optional",
    "settings",
)
_SYNTHETIC = ("name", "synthetic", "n", "seed", "optional", "settings")
_FILE = ("name", "file", "documents", "optional", "settings")
_ROW = ("method", "label", "settings", "policy")
_GRID = ("method", "settings", "axes")
# All rows of a suite are compared on the same tasks, and run side by side.
_NOT_OF_A_ROW = (
    "environment",
    *("limit", "max_in_flight", "max_failed_fraction"),
    *("budget_tokens", "budget_money", "prompt_price", "completion_price"),
)


def load_suite(path: str | Path) -> Suite:
    """Read a suite's file, at a path or of a shipped suite's name.

    Raises:
        ConfigError: It cannot be read, has an unknown field, lacks one, or a value is wrong; the message says where.
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
    """A suite from the contents of its file; raises as `load_suite`."""
    check_fields("the suite", values, _SUITE, required=("title", "data"))
    settings = values.get("settings", {})
    environment = str(settings.get("environment", DEFAULT_ENVIRONMENT)) if isinstance(settings, Mapping) else ""
    check_settings("settings", settings, environment or DEFAULT_ENVIRONMENT)
    columns = [column for item in _list("data", values["data"]) for column in _columns(item, environment)]
    rows = [_row(item, environment) for item in _list("rows", values.get("rows", []))]
    rows += [row for item in _list("grid", values.get("grid", [])) for row in _grid(item, environment)]
    if not columns or not rows:
        raise ConfigError(f"{'rows and grid are' if columns else 'data is'} empty: there is nothing to evaluate.")
    seeds = values.get("seeds", [0])
    if not fits(seeds, list[int]) or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds is {seeds!r}: give a list of different whole numbers.")
    if not fits(values["title"], str) or not fits(values.get("efficiency", False), bool):
        raise ConfigError("title must be text, and efficiency true or false.")
    _check_different("column", [column.key for column in columns])
    _check_different("row", [row.key for row in rows])
    reference = values.get("reference")
    if reference is not None:
        check_choice("reference", reference, tuple(row.name for row in rows))
    policies = values.get("policies", {})
    if not isinstance(policies, Mapping) or not all(fits(item, str) for pair in policies.items() for item in pair):
        raise ConfigError(f"policies is {policies!r}: give a mapping from names to folders, hub names or URLs.")
    return Suite(
        values["title"],
        tuple(columns),
        tuple(rows),
        tuple(seeds),
        settings,
        reference,
        values.get("efficiency", False),
        policies,
        _value("the suite", values, "paper", str | None, None),
        _value("the suite", values, "deltas", bool, False),
    )


def _columns(item: Any, environment: str) -> list[Column]:
    """The columns of one item of ``data``: one for each number of documents."""
    kinds = [kind for kind in ("benchmark", "synthetic", "file") if isinstance(item, Mapping) and kind in item]
    if len(kinds) != 1:
        raise ConfigError(f"data has the item {item!r}: give it one of benchmark, synthetic and file.")
    where = f"data, {item.get('name') or item[kinds[0]]}"
    settings = item.get("settings", {})
    check_settings(where, settings, environment, _NOT_OF_A_ROW)
    return [replace(column, settings=settings) for column in _columns_of(kinds[0], where, item)]


def _columns_of(kind: str, where: str, item: Mapping[str, Any]) -> list[Column]:
    if kind == "benchmark":
        return _benchmark_columns(where, item)
    optional = _value(where, item, "optional", bool, False)
    if kind == "file":
        check_fields(where, item, _FILE, required=("name",))
        documents = _value(where, item, "documents", int | None, None)
        data = FileData(_value(where, item, "file", str))
        return [Column(_value(where, item, "name", str), data, documents, optional)]
    check_fields(where, item, _SYNTHETIC, required=("n",))
    n = _value(where, item, "n", int)
    if n < 1:
        raise ConfigError(f"{where}: n is {n}: give at least 1.")
    synthetic = SyntheticData(_world(where, item["synthetic"]), n, _value(where, item, "seed", int, 42))
    return [Column(_value(where, item, "name", str, "synthetic"), synthetic, optional=optional)]


def _benchmark_columns(where: str, item: Mapping[str, Any]) -> list[Column]:
    check_fields(where, item, _BENCHMARK, required=("documents", "n"))
    benchmark = _value(where, item, "benchmark", str)
    split = _value(where, item, "split", str, "dev")
    check_choice(f"{where}: benchmark", benchmark, tuple(BENCHMARKS))
    check_choice(f"{where}: split", split, SPLITS)
    counts = item["documents"] if isinstance(item["documents"], list) else [item["documents"]]
    columns = []
    for count in counts:
        if not fits(count, int):
            raise ConfigError(f"{where}: documents is {item['documents']!r}: give a number or a list of numbers.")
        build = BuildConfig(
            documents=count,
            n=_value(where, item, "n", int),
            questions=_range(where, "questions", item.get("questions", 1)),
            seed=_value(where, item, "seed", int, 42),
            exclude_answer_documents=_value(where, item, "exclude_answer_documents", bool, False),
            distractors=_value(where, item, "distractors", str, "pool"),
        )
        data = BenchmarkData(benchmark, split, build)
        name = _value(where, item, "name", str, benchmark)
        columns.append(Column(name, data, count, _value(where, item, "optional", bool, False)))
    return columns


def _world(where: str, values: Any) -> WorldConfig:
    known = {item.name: item for item in fields(WorldConfig)}
    check_fields(f"{where}, synthetic", values, tuple(known))
    given = dict(values)
    for name, value in values.items():
        if isinstance(known[name].default, tuple):
            given[name] = _range(where, name, value)
        elif not fits(value, int | None if known[name].default is None else type(known[name].default)):
            raise ConfigError(f"{where}: {name} is {value!r}; the default is {known[name].default!r}.")
    return WorldConfig(**given)


def _row(item: Any, environment: str) -> Row:
    check_fields(f"rows, {item!r}", item, _ROW, required=("method",))
    check_choice("rows: method", item["method"], METHODS)
    where = f"rows, {item.get('label') or item['method']}"
    settings = item.get("settings", {})
    check_settings(where, settings, environment, _NOT_OF_A_ROW)
    policy = _value(where, item, "policy", str, "")
    if policy and "policy" in settings:
        raise ConfigError(f"{where}: policy stands beside settings and in them: give one of them.")
    return Row(item["method"], _value(where, item, "label", str, ""), settings, policy=policy)


def _grid(item: Any, environment: str) -> list[Row]:
    """Every combination of the points of the axes."""
    check_fields(f"grid, {item!r}", item, _GRID, required=("method", "axes"))
    check_choice("grid: method", item["method"], METHODS)
    settings = item.get("settings", {})
    check_settings("grid, settings", settings, environment, _NOT_OF_A_ROW)
    if not isinstance(item["axes"], Mapping) or not item["axes"]:
        raise ConfigError(f"grid: axes is {item['axes']!r}: give a mapping from names to points.")
    axes = {str(name): _points(str(name), points, environment) for name, points in item["axes"].items()}
    rows = []
    for combination in product(*axes.values()):
        parameters = dict(zip(axes, (point for point, _ in combination), strict=True))
        changed: dict[str, Any] = dict(settings)
        for _, overrides in combination:
            changed |= overrides
        label = ", ".join(f"{name} {point}" for name, point in parameters.items())
        rows.append(Row(item["method"], label, changed, parameters))
    return rows


def _points(axis: str, given: Any, environment: str) -> list[tuple[str | float, Mapping[str, Any]]]:
    """The points of an axis: ``{FIELD: [VALUE, ...]}``, or ``{POINT: {FIELD: VALUE, ...}, ...}``."""
    where = f"grid, axis {axis}"
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{where} is {given!r}: give {{field: [values]}}, or {{point: {{field: value}}}}.")
    points: list[tuple[Any, Mapping[str, Any]]] = list(given.items())
    if len(given) == 1 and isinstance(points[0][1], list):
        name, values = points[0]
        points = [(value, {name: value}) for value in values]
    for point, overrides in points:
        if not fits(point, str | float):
            raise ConfigError(f"{where} has the point {point!r}: give a number or a text.")
        check_settings(f"{where}, {point}", overrides, environment, _NOT_OF_A_ROW)
    return points


def _range(where: str, name: str, value: Any) -> tuple[int, int]:
    """``2`` or ``1-10``, or a list of both ends."""
    ends = value.split("-") if isinstance(value, str) else value if isinstance(value, list) else [value, value]
    try:
        low, high = (int(end) for end in (ends * 2 if len(ends) == 1 else ends))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {name} is {value!r}: give a number or a range such as 1-10.") from error
    return low, high


_REQUIRED = object()


def _value(where: str, values: Mapping[str, Any], name: str, kind: Any, default: Any = _REQUIRED) -> Any:
    value = values.get(name, default)
    if not fits(value, kind) and value is not default:
        raise ConfigError(f"{where}: {name} is {value!r}, expected {getattr(kind, '__name__', kind)}.")
    if value is _REQUIRED:
        raise ConfigError(f"{where}: {name} is missing.")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{name} is {value!r}: give a list.")
    return value


def _check_different(what: str, keys: Sequence[str]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"two {what}s are called {key!r}: give one of them another {_NAMED_BY[what]}.")


_NAMED_BY = {"column": "name", "row": "label"}

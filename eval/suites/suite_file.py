"""A suite's file: which rows are evaluated on which columns, under which seeds. docs/evaluation.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml

from atommem.config import check_choice, fields_of
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.benchmarks.registry import BENCHMARKS, SPLITS
from atommem.envs.synthetic.world import WorldConfig
from atommem.errors import ConfigError
from atommem.eval.methods import METHODS
from atommem.eval.suites.checks import check_fields, check_settings, fits
from atommem.eval.suites.suite import BenchmarkData, Column, FileData, Row, Suite, SyntheticData
from atommem.plugins import find_file

_RANGE = int | str | list[int]
_SUITE = {
    "title": str,
    "settings": dict,
    "data": list,
    "rows": list,
    "grid": list,
    "seeds": list[int],
    "reference": str | None,
    "efficiency": bool,
    "policies": dict[str, str],
    "paper": str | None,
    "deltas": bool,
}
_COLUMN = {"name": str, "optional": bool, "settings": dict}
_BENCHMARK = {"benchmark": str, "split": str}
_SYNTHETIC = {"synthetic": dict, "n": int, "seed": int}
_FILE = {"file": str, "documents": int | None}
_ROW = {"method": str, "label": str, "settings": dict, "policy": str}
_GRID = {"method": str, "settings": dict, "axes": dict}


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
    environment = str(settings.get("environment", DEFAULT_ENVIRONMENT))
    check_settings("settings", settings, environment)
    columns = [column for item in values["data"] for column in _columns(item, environment)]
    rows = [_row(item, environment) for item in values.get("rows", [])]
    rows += [row for item in values.get("grid", []) for row in _grid(item, environment)]
    if not columns or not rows:
        raise ConfigError(
            f"{'rows and grid are' if columns else 'data is'} empty: there is nothing to evaluate."
        )
    seeds = values.get("seeds", [0])
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds is {seeds!r}: give a list of different whole numbers.")
    _check_different("column", "name", [column.key for column in columns])
    _check_different("row", "label", [row.key for row in rows])
    if (reference := values.get("reference")) is not None:
        check_choice("reference", reference, tuple(row.name for row in rows))
    given = {**values, "columns": tuple(columns), "rows": tuple(rows), "seeds": tuple(seeds)}
    return Suite(**fields_of(Suite, given))


def _columns(item: Any, environment: str) -> list[Column]:
    """The columns of one item of ``data``: of a benchmark one for each number of documents."""
    kinds = [
        kind
        for kind in ("benchmark", "synthetic", "file")
        if isinstance(item, Mapping) and kind in item
    ]
    if len(kinds) != 1:
        raise ConfigError(
            f"data has the item {item!r}: give it one of benchmark, synthetic and file."
        )
    (kind,) = kinds
    where = f"data, {item.get('name') or item[kind]}"
    make = {"benchmark": _of_benchmark, "synthetic": _of_world, "file": _of_file}[kind]
    columns = make(where, item)
    settings = item.get("settings", {})
    check_settings(where, settings, environment, row=True)
    return [
        replace(column, optional=item.get("optional", False), settings=settings)
        for column in columns
    ]


def _of_file(where: str, item: Mapping[str, Any]) -> list[Column]:
    check_fields(where, item, {**_COLUMN, **_FILE}, required=("name",))
    return [Column(item["name"], FileData(item["file"]), item.get("documents"))]


def _of_world(where: str, item: Mapping[str, Any]) -> list[Column]:
    check_fields(where, item, {**_COLUMN, **_SYNTHETIC}, required=("n",))
    if item["n"] < 1:
        raise ConfigError(f"{where}: n is {item['n']}: give at least 1.")
    check_fields(f"{where}, synthetic", item["synthetic"], _kinds_of(WorldConfig))
    world = _made(WorldConfig, where, item["synthetic"])
    return [
        Column(item.get("name", "synthetic"), SyntheticData(world, item["n"], item.get("seed", 42)))
    ]


def _of_benchmark(where: str, item: Mapping[str, Any]) -> list[Column]:
    build = {**_kinds_of(BuildConfig), "documents": int | list[int]}
    del build[
        "unanswerable"
    ]  # such tasks come in pairs, which a column's number of tasks does not tell
    check_fields(where, item, {**_COLUMN, **_BENCHMARK, **build}, required=("documents", "n"))
    benchmark, split, documents = item["benchmark"], item.get("split", "dev"), item["documents"]
    check_choice(f"{where}: benchmark", benchmark, tuple(BENCHMARKS))
    check_choice(f"{where}: split", split, SPLITS)
    columns = []
    for count in documents if isinstance(documents, list) else [documents]:
        config = _made(BuildConfig, where, {**item, "documents": count})
        columns.append(
            Column(item.get("name", benchmark), BenchmarkData(benchmark, split, config), count)
        )
    return columns


def _kinds_of(config: type) -> dict[str, Any]:
    """The fields of a dataclass with their kinds; a range, which is a pair there, may be written in several ways."""
    hints = get_type_hints(config)
    return {
        item.name: _RANGE if get_origin(hints[item.name]) is tuple else hints[item.name]
        for item in fields(config)
    }


def _made(config: type, where: str, values: Mapping[str, Any]) -> Any:
    """A dataclass of what is given of its fields."""
    given = fields_of(config, dict(values))
    ranges = {
        name: _range(where, name, given[name])
        for name, kind in _kinds_of(config).items()
        if kind == _RANGE and name in given
    }
    return config(**given | ranges)


def _row(item: Any, environment: str) -> Row:
    check_fields(f"rows, {item!r}", item, _ROW, required=("method",))
    check_choice("rows: method", item["method"], METHODS)
    where = f"rows, {item.get('label') or item['method']}"
    row = Row(**item)
    check_settings(where, row.settings, environment, row=True)
    if row.policy and "policy" in row.settings:
        raise ConfigError(f"{where}: policy stands beside settings and in them: give one of them.")
    return row


def _grid(item: Any, environment: str) -> list[Row]:
    """Every combination of the points of the axes."""
    check_fields(f"grid, {item!r}", item, _GRID, required=("method", "axes"))
    check_choice("grid: method", item["method"], METHODS)
    settings = item.get("settings", {})
    check_settings("grid, settings", settings, environment, row=True)
    if not item["axes"]:
        raise ConfigError(f"grid: axes is {item['axes']!r}: give a mapping from names to points.")
    axes = {
        str(name): _points(str(name), points, environment) for name, points in item["axes"].items()
    }
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
        raise ConfigError(
            f"{where} is {given!r}: give {{field: [values]}}, or {{point: {{field: value}}}}."
        )
    points: list[tuple[Any, Mapping[str, Any]]] = list(given.items())
    if len(given) == 1 and isinstance(points[0][1], list):
        name, values = points[0]
        points = [(value, {name: value}) for value in values]
    for point, overrides in points:
        if not fits(point, str | float):
            raise ConfigError(f"{where} has the point {point!r}: give a number or a text.")
        check_settings(f"{where}, {point}", overrides, environment, row=True)
    return points


def _range(where: str, name: str, value: Any) -> tuple[int, int]:
    """``2`` or ``1-10``, or a list of both ends."""
    ends = (
        value.split("-")
        if isinstance(value, str)
        else value
        if isinstance(value, list)
        else [value, value]
    )
    try:
        low, high = (int(end) for end in (ends * 2 if len(ends) == 1 else ends))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {name} is {value!r}: give a number or a range such as 1-10."
        ) from error
    return low, high


def _check_different(what: str, named_by: str, keys: Sequence[str]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(
                f"two {what}s are called {key!r}: give one of them another {named_by}."
            )

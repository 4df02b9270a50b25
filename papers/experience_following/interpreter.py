"""EHRAgent's functions in a process of its own: ``python -I interpreter.py DATABASE`` runs stdin.

Limits of memory, time and files, and a hook that refuses files, processes, network and further
imports, stop a model's mistakes. Code of an attacker needs a container around it.
"""

import collections
import datetime
import difflib
import json
import math
import operator
import re
import resource
import sqlite3
import statistics
import sys
from typing import Any

NOW = "2105-12-31 23:59:00"  # EHRSQL's, whose dates are shifted
SECONDS, MEMORY = 20, 4 << 30
_DENIED = (
    *("open", "os.", "socket.", "subprocess.", "shutil.", "ctypes.", "sqlite3.connect", "import"),
)
_SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<|=|\sin\s)\s*(.*?)\s*$")


class Table(list[dict[str, Any]]):
    """Rows of a table; `columns` also without rows."""

    def __init__(self, rows: Any, columns: list[str]) -> None:
        super().__init__(rows)
        self.columns = columns


class Functions:
    """The functions that the code may call, on one database."""

    def __init__(self, database: str) -> None:
        self._database = sqlite3.connect(f"file:{database}?mode=ro", uri=True)

    def Calculate(self, formula: str) -> Any:  # noqa: N802
        """Return the value of an arithmetic formula."""
        names = {"max": max, "min": min, "sum": sum, "abs": abs, "round": round}
        return eval(formula, {"__builtins__": {}}, names)  # the process is the sandbox

    def LoadDB(self, name: str) -> Table:  # noqa: N802
        """Return a table."""
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"{name!r} is not the name of a table.")
        found = self._database.execute(f"select * from {name}")
        columns = [column[0].upper() for column in found.description]
        return Table([dict(zip(columns, row, strict=True)) for row in found], columns)

    def FilterDB(self, table: Table, conditions: str) -> Table:  # noqa: N802
        """Return the rows that meet all conditions; says which values there are."""
        for condition in conditions.split("||"):
            table = _filter(table, condition)
        return table

    def GetValue(self, table: Table, argument: str) -> Any:  # noqa: N802
        """Return the values of a column as a text, or an operation on them."""
        column, _, operation = (part.strip(" []'") for part in argument.partition(","))
        _check_column(table, column)
        values = [row[column] for row in table]
        if not operation:
            return ", ".join(str(value) for value in dict.fromkeys(values))
        if operation == "list":
            return [str(value) for value in values]
        work: Any = {"mean": statistics.fmean, "max": max, "min": min, "sum": sum}.get(operation)
        if work is None:
            raise ValueError(f"GetValue: operation {operation!r}: use mean, max, min, sum or list.")
        try:
            return work([float(value) for value in values])
        except (TypeError, ValueError):
            return work([str(value) for value in values])

    def SQLInterpreter(self, query: str) -> list[Any]:  # noqa: N802
        """Return the rows of a query; its current time is `NOW`."""
        query = re.sub(r"\bcurrent_time\b", f"'{NOW}'", query, flags=re.IGNORECASE)
        return self._database.execute(query).fetchall()

    def Calendar(self, duration: str) -> str:  # noqa: N802
        """Return the date at a distance from `NOW`."""
        (found,) = self._database.execute("select datetime(?, ?)", (NOW, duration)).fetchone()
        if found is None:
            raise ValueError(f"Calendar({duration!r}): write it as '-1 year' or '0 day'.")
        return str(found)


def _check_column(table: Table, column: str) -> None:
    if column not in table.columns:
        raise ValueError(f"there is no column {column!r}; the columns are {table.columns}.")


def _filter(table: Table, condition: str) -> Table:
    extreme = re.fullmatch(r"\s*(max|min)\((\w+)\)\s*", condition)
    if extreme:
        column = extreme[2]
        _check_column(table, column)
        best = (max if extreme[1] == "max" else min)(row[column] for row in table)
        return Table([row for row in table if row[column] == best], table.columns)
    found = _CONDITION.match(condition)
    if found is None:
        raise ValueError(f"FilterDB: cannot read the condition {condition!r}.")
    column, sign, text = found[1], found[2].strip(), found[3].strip("'\"")
    _check_column(table, column)
    kind = type(next((row[column] for row in table if row[column] is not None), ""))
    texts = [part.strip(" '\"") for part in text.strip("[]").split(",")] if sign == "in" else [text]
    values = [kind(value) for value in texts]
    meets = _SIGNS.get(sign, operator.eq)  # of one value, or of any of a list
    rows = [
        row
        for row in table
        if row[column] is not None and any(meets(row[column], value) for value in values)
    ]
    if not rows and sign == "=":
        known = sorted({str(row[column]) for row in table})
        close = difflib.get_close_matches(text, known, 5, 0) or known[:5]
        raise ValueError(f"no {column} is {text!r}; there are, for example, {', '.join(close)}.")
    return Table(rows, table.columns)


def _deny(event: str, arguments: Any) -> None:
    if event.startswith(_DENIED):
        raise PermissionError(f"{event} is not allowed here")


def main() -> None:
    """Run the code and print its ``answer`` or ``error`` as JSON."""
    code, functions = sys.stdin.read(), Functions(sys.argv[1])
    names = {name: getattr(functions, name) for name in vars(Functions) if name[0].isupper()}
    modules = (collections, datetime, json, math, re, statistics)
    scope: dict[str, Any] = {**names, **{module.__name__: module for module in modules}}
    limits = {resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0}
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.addaudithook(_deny)
    try:
        exec(compile(code, "solution", "exec"), scope)
        result = {"answer": str(scope["answer"])}
    except KeyError as error:
        result = {"error": f"KeyError: {error}; the answer belongs in the variable 'answer'."}
    except BaseException as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(result))
    answers.flush()


if __name__ == "__main__":
    main()

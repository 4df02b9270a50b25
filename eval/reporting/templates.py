"""What is written with templates (``assets/``): the page, and all tables as Markdown and LaTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from atommem.eval.reporting.tables import Table, incomplete_note, make_tables

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        **{character: "\\" + character for character in "{}&%$#_"},
    }
)


def render(template: str, /, **values: Any) -> str:
    """One of the templates; in those of the page, all values are escaped."""
    return _environment().get_template(template).render(values)


def asset(name: str) -> str:
    """One of the files, as it is."""
    return (files("atommem.eval.reporting") / "assets" / name).read_text(encoding="utf-8")


def markdown_tables(results: Mapping[str, Any]) -> str:
    """All tables of a report as Markdown (``tables.md``)."""
    return render(
        "tables.md",
        results=results,
        tables=make_tables(results),
        incomplete=incomplete_note(results),
    )


def latex_tables(results: Mapping[str, Any]) -> str:
    """All tables but provenance and comparisons (``tables.tex``), to be taken into a document with ``\\input``."""
    tables = [
        table
        for table in make_tables(results)
        if table.section not in ("comparisons", "provenance")
    ]
    return render("tables.tex", results=results, tables=tables, incomplete=incomplete_note(results))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        # Names come from data and folders: they are text, whatever they look like. A blank line would end a caption.
        "md": lambda text: re.sub(r"([\\|<`*\[])", r"\\\1", " ".join(str(text).split())),
        "tex": lambda text: " ".join(str(text).split()).translate(_LATEX),
        "slug": lambda text: re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-"),
        "groups": _groups,
        # Inside of a script element nothing may begin a tag that ends it, nor a comment.
        "embedded": lambda data: Markup(
            re.sub("<(?=[/!sS])", r"\\u003c", json.dumps(data, ensure_ascii=False))
        ),
    }
    return environment


def _groups(table: Table) -> list[tuple[str, int, int]]:
    """Headings above several columns: name, place of the first, and how many; none where no column has one."""
    found, place = [], 0
    for group, members in groupby(group for group, _ in table.headings):
        found.append((group, place, size := len(list(members))))
        place += size
    return found if any(group for group, _, _ in found) else []

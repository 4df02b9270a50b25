"""Pages and passages as they come in files: JSON lists, JSON Lines, parquet, and the rows of benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.benchmarks.rows import Row, read_rows
from atommem.text_safety import clean

_IDS = ("docid", "id", "_id")
_TEXTS = ("text", "contents", "content", "page")
_QUOTED_TITLE = re.compile(r'"(?P<title>[^\n]*)"\n(?P<text>.*)', re.DOTALL)
_FRONT_TITLE = re.compile(r"\s*---\s*\n(?:.*\n){0,8}?title:\s*(?P<title>\S.*)")
_TITLE_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Page:
    """One page, or a passage that stands for itself.

    Attributes:
        text: What it says.
        title: How it is called.
        url: Where it comes from; empty where it has no address.
        id: What a file calls it; empty where its URL or title does.
    """

    text: str
    title: str = ""
    url: str = ""
    id: str = ""


def read_pages(path: str | Path) -> Iterator[Page]:
    """The pages of a file, one at a time.

    A row has ``text`` (or ``contents``, whose first line is the title in quotes, as Search-R1's corpora have it) and,
    as far as it knows them, ``title``, ``url`` and ``id`` (or ``docid``, as BrowseComp-Plus has it). A page without a
    title is called by what its text begins with.

    Raises:
        DataError: The file is damaged, or a row has no text; the message names file, row and field.
    """
    for row in read_rows(path):
        yield _parse(row)


def benchmark_pages(benchmark: str, path: str | Path) -> Iterator[Page]:
    """The paragraphs that the questions of a benchmark's file come with.

    Raises:
        DataError: The file is damaged, or another's.
        ConfigError: There is no such benchmark.
    """
    for row in get_benchmark(benchmark).read(Path(path)):
        for paragraph in row.paragraphs:
            yield Page(clean(paragraph.text), clean(paragraph.title))


def _parse(row: Row) -> Page:
    text = clean(row.text(*_TEXTS))
    title = clean(row.optional_text("title"))
    if not title and (quoted := _QUOTED_TITLE.fullmatch(text)):
        title, text = quoted["title"], quoted["text"]
    if not title:
        front = _FRONT_TITLE.match(text)
        title = front["title"].strip() if front else text.strip().partition("\n")[0]
    name = next((row.values[key] for key in _IDS if row.values.get(key) not in (None, "")), "")
    if not isinstance(name, str | int):
        raise row.error("id", f"is {name!r}, expected a string or a number")
    return Page(
        text,
        " ".join(title.split())[:_TITLE_CHARACTERS],
        clean(row.optional_text("url")),
        clean(str(name)),
    )

"""The pages of a corpus and the passages that they are searched by, in one SQLite file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from atommem.envs.web.corpus.corpus_input import Page
from atommem.envs.web.page_texts import core, folded
from atommem.envs.web.sqlite_file import SqliteFile

_SCHEMA = """
create table if not exists pages (
    number integer primary key autoincrement,
    id text not null unique, url text not null, title text not null, core text not null, text text not null,
    digest blob not null
);
create index if not exists pages_url on pages (url);
create index if not exists pages_core on pages (core);
create table if not exists passages (
    number integer primary key autoincrement,
    page integer not null, start integer not null, stop integer not null
);
create index if not exists passages_page on passages (page);
"""
_PLACEHOLDERS = 500
Passage = tuple[int, str]
"""Its number and its text, the page's title in its first line."""
_Item = TypeVar("_Item")


class PageStore:
    """Numbers are given in order and never again: whoever indexes passages knows what is new by the last number.

    Args:
        path: The file; made where it is missing.
        passage_characters: Longest passage of a page that is added.

    Raises (all of it):
        ConfigError, DataError: As `SqliteFile` does.
    """

    def __init__(self, path: Path, passage_characters: int) -> None:
        self._passage_characters = passage_characters
        self._file = SqliteFile(
            path, "corpus", _SCHEMA, " Build the corpus anew if the file is damaged."
        )
        self._rows = self._file.rows

    def add(self, pages: Sequence[Page]) -> tuple[int, list[int]]:
        """Add pages, all or none: how many were new or new under their id, and the numbers of passages that are gone.

        A page without id and URL goes by its title; one that says what a page of this title already says is the same.
        """
        with self._file.transaction():
            replaced = [gone for page in pages if (gone := self._add(page)) is not None]
        return len(replaced), list(chain.from_iterable(replaced))

    def passages(self, numbers: Sequence[int]) -> dict[int, tuple[Page, str]]:
        """Page and text of each passage that is (still) there."""
        found: dict[int, tuple[Page, str]] = {}
        for part in batched(numbers, _PLACEHOLDERS):
            rows = self._rows(
                "select p.number, p.start, p.stop, d.text, d.title, d.url, d.id from passages p "
                f"join pages d on d.number = p.page where p.number in ({_marks(part)})",
                *part,
            )
            found |= {
                number: (Page(*page), page[0][start:stop]) for number, start, stop, *page in rows
            }
        return found

    def after(self, number: int) -> Iterator[Passage]:
        """The passages that were added after that of `number`, in order, as they are indexed."""
        while True:
            rows = self._rows(
                "select p.number, d.title, substr(d.text, p.start + 1, p.stop - p.start) from passages p "
                "join pages d on d.number = p.page where p.number > ? order by p.number limit 1000",
                number,
            )
            for number, title, text in rows:
                yield number, f"{title}\n{text}"
            if not rows:
                return

    def page(self, name: str) -> Page | None:
        """The page of this id, URL or title. Passages of one title are one page, in the order in which they came; pages
        of other addresses are not, whatever they call themselves."""
        select = "select text, title, url, id from pages where"
        rows = self._rows(f"{select} id = ? union all {select} url = ? limit 1", name, name)
        if rows and rows[0][1] != name:
            return Page(*rows[0])
        rows = self._rows(f"{select} core = ? order by number limit 100", core(name))
        exact = [row for row in rows if folded(row[1]) == folded(name)] or rows[:1]
        exact = [row for row in exact if row[2] == exact[0][2]]
        return Page("\n\n".join(row[0] for row in exact), *exact[0][1:]) if exact else None

    def cores(self, names: Iterable[str]) -> dict[str, str]:
        """Of these, what is the core of a title, with the first such title."""
        found: dict[str, str] = {}
        for part in batched(names, _PLACEHOLDERS):
            marks = _marks(part)
            found |= self._rows(
                f"select core, title from pages where core in ({marks}) order by number desc", *part
            )
        return found

    def counts(self) -> tuple[int, int, int]:
        """Pages, passages, and the number of the last passage ever added."""
        last = self._rows("select seq from sqlite_sequence where name = 'passages'")
        ((pages, passages),) = self._rows(
            "select (select count(*) from pages), (select count(*) from passages)"
        )
        return pages, passages, last[0][0] if last else 0

    def digest(self) -> str:
        """Of what all pages say, whatever the order in which they came: the version of a corpus."""
        total = hashlib.sha256()
        for (digest,) in self._file.each("select digest from pages order by id"):
            total.update(digest)
        return total.hexdigest()[:16]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, page: Page) -> list[int] | None:
        """The passages that a page replaces; None where it is there already."""
        execute, digest = self._rows, _digest(page)
        name = page.id or page.url
        if not name:
            same = execute(
                "select digest from pages where core = ? and title = ?",
                core(page.title),
                page.title,
            )
            digests = [row[0] for row in same]
            if digest in digests:
                return None
            name = page.title if not digests else f"{page.title} ({len(digests) + 1})"
            while execute("select 1 from pages where id = ?", name):
                name += "'"
        values = (page.url, page.title, core(page.title), page.text, digest)
        old = execute("select number, digest from pages where id = ?", name)
        gone: list[int] = []
        if not old:
            statement = (
                "insert into pages (url, title, core, text, digest, id) values (?, ?, ?, ?, ?, ?)"
            )
            ((number,),) = execute(f"{statement} returning number", *values, name)
        elif old[0][1] == digest:
            return None
        else:
            number = old[0][0]
            gone = [
                row[0]
                for row in execute("delete from passages where page = ? returning number", number)
            ]
            statement = "update pages set url = ?, title = ?, core = ?, text = ?, digest = ? where number = ?"
            execute(statement, *values, number)
        for span in cut(page.text, self._passage_characters):
            execute("insert into passages (page, start, stop) values (?, ?, ?)", number, *span)
        return gone


def batched(items: Iterable[_Item], size: int) -> Iterator[tuple[_Item, ...]]:
    """`items` in portions of `size` (`itertools.batched` comes with Python 3.12)."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def cut(text: str, limit: int) -> list[tuple[int, int]]:
    """Spans of at most `limit` characters that make up `text`, cut at the end of a paragraph, sentence or word."""
    spans, start = [], 0
    while len(text) - start > limit:
        earliest = start + limit // 2
        ends = (
            text.rfind(mark, earliest, start + limit) + len(mark)
            for mark in ("\n\n", "\n", ". ", "。", " ")
        )
        stop = next((end for end in ends if end > earliest), start + limit)
        spans.append((start, stop))
        start = stop
    return [*spans, (start, len(text))]


def _digest(page: Page) -> bytes:
    # Copies of a page differ in white space from file to file.
    said = f"{page.url}\0{page.title}\0{' '.join(page.text.split())}"
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))

"""Pages of a corpus: read from files, and stored with their passages in one SQLite file."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.web.recording import SqliteFile
from atommem.envs.web.tools import core, fold
from atommem.text_safety import clean

_IDS = ("docid", "id", "_id")
_QUOTED_TITLE = re.compile(r'"(?P<title>[^\n]*)"\n(?P<text>.*)', re.DOTALL)
_FRONT_TITLE = re.compile(r"\s*---\s*\n(?:.*\n){0,8}?title:\s*(?P<title>\S.*)")
_MAX_TITLE = 120
_SCHEMA = """
create table if not exists pages (
    number integer primary key autoincrement, id text not null unique, url text not null, title text
    not null, core text not null, text text not null, digest blob not null
);
create index if not exists pages_url on pages (url);
create index if not exists pages_core on pages (core);
create table if not exists passages (
    number integer primary key autoincrement,
    page integer not null, start integer not null, stop integer not null
);
create index if not exists passages_page on passages (page)
"""
_LISTED = "(select value from json_each(?))"
"""The values of a JSON list, of which there may be more than placeholders."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page; an `id` is unique in a corpus."""

    text: str
    title: str = ""
    url: str = ""
    id: str = ""


def read_pages(path: str | Path) -> Iterator[Page]:
    """Yield the pages of a JSON, JSON Lines or parquet file.

    A row has ``text`` (or ``contents``, whose first line is the title in quotes, as in Search-R1's
    corpora) and optionally ``title``, ``url`` and ``id`` (or ``docid``, as in BrowseComp-Plus). A
    page without a title is called by the beginning of its text.
    """
    for row in read_rows(path):
        text, title = clean(row.text("text", "contents")), clean(row.optional_text("title"))
        if not title and (quoted := _QUOTED_TITLE.fullmatch(text)):
            title, text = quoted["title"], quoted["text"]
        if not title:
            front = _FRONT_TITLE.match(text)
            title = front["title"] if front else text.strip().partition("\n")[0]
        title = " ".join(title.split())[:_MAX_TITLE]
        name = next((row.values[key] for key in _IDS if row.values.get(key) not in (None, "")), "")
        yield Page(text, title, clean(row.optional_text("url")), clean(str(name)))


class PageStore:
    """Pages and passages in an SQLite file. Numbers of passages are never reused."""

    def __init__(self, path: Path, passage_characters: int) -> None:
        self._passage_characters = passage_characters
        self._file = SqliteFile(path, "corpus", _SCHEMA)
        self._rows = self._file.rows
        self.close = self._file.close

    def add(self, pages: Sequence[Page]) -> tuple[int, list[int]]:
        """Add pages, all or none; return how many are new or changed, and the passages removed.

        A page replaces that of its id (or URL). A page with neither is known by its title; if its
        text is known under that title, it is skipped.
        """
        with self._file.transaction():
            removed = [numbers for page in pages if (numbers := self._add(page)) is not None]
        return len(removed), [number for numbers in removed for number in numbers]

    def passages(self, numbers: Sequence[int]) -> dict[int, tuple[Page, str]]:
        rows = self._rows(
            "select p.number, p.start, p.stop, d.text, d.title, d.url, d.id from passages p "
            f"join pages d on d.number = p.page where p.number in {_LISTED}",
            json.dumps(numbers),
        )
        return {number: (Page(*page), page[0][start:stop]) for number, start, stop, *page in rows}

    def passages_after(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield number and text, below the page's title, of the passages above `number`."""
        while rows := self._rows(
            "select p.number, d.title, substr(d.text, p.start + 1, p.stop - p.start) "
            "from passages p join pages d on d.number = p.page "
            "where p.number > ? order by p.number limit 1000",
            number,
        ):
            for number, title, text in rows:
                yield number, f"{title}\n{text}"

    def find(self, name: str) -> Page | None:
        """Return the page of this id, URL or title.

        Pages of one title and address are joined, in the order in which they were added.
        """
        select = "select text, title, url, id from pages where"
        rows = self._rows(f"{select} id = ? union all {select} url = ? limit 1", name, name)
        if rows and rows[0][1] != name:
            return Page(*rows[0])
        rows = self._rows(f"{select} core = ? order by number limit 100", core(name))
        same = [row for row in rows if fold(row[1]) == fold(name)] or rows[:1]
        texts = [text for text, _, url, _ in same if url == same[0][2]]
        return Page("\n\n".join(texts), *same[0][1:]) if same else None

    def titles(self, cores: Iterable[str]) -> dict[str, str]:
        """Return the first title of each of `cores` that has one."""
        select = f"select core, title from pages where core in {_LISTED} order by number desc"
        return dict(self._rows(select, json.dumps([*cores])))

    def counts(self) -> dict[str, int]:
        tables = ("pages", "passages")
        return {table: self._rows(f"select count(*) from {table}")[0][0] for table in tables}

    def digest(self) -> str:
        """Return a digest of all pages that does not depend on their order (1 s for a million)."""
        digests = self._rows("select digest from pages order by id")
        return hashlib.sha256(b"".join(digest for (digest,) in digests)).hexdigest()[:16]

    def _add(self, page: Page) -> list[int] | None:
        text = f"{page.url}\0{page.title}\0{' '.join(page.text.split())}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        name = page.id or page.url or page.title
        if not (page.id or page.url):
            known = self._rows("select digest from pages where core = ?", core(page.title))
            if (digest,) in known:
                return None
            name = f"{name} ({digest.hex()[:8]})" if known else name
        if self._rows("select 1 from pages where id = ? and digest = ?", name, digest):
            return None
        old = "select number from pages where id = ?"
        removed = self._rows(f"delete from passages where page in ({old}) returning number", name)
        ((number,),) = self._rows(
            "insert into pages (id, url, title, core, text, digest) values (?, ?, ?, ?, ?, ?) "
            "on conflict (id) do update set url = excluded.url, title = excluded.title, "
            "core = excluded.core, text = excluded.text, digest = excluded.digest returning number",
            *(name, page.url, page.title, core(page.title), page.text, digest),
        )
        for span in split(page.text, self._passage_characters):
            self._rows("insert into passages (page, start, stop) values (?, ?, ?)", number, *span)
        return [row[0] for row in removed]


def split(text: str, limit: int) -> list[tuple[int, int]]:
    """Return spans of at most `limit` characters, cut after a paragraph, sentence or word."""
    spans, start = [], 0
    while len(text) - start > limit:
        earliest, latest = start + limit // 2, start + limit
        marks = ("\n\n", "\n", ". ", "。", " ")
        ends = (text.rfind(mark, earliest, latest) + len(mark) for mark in marks)
        stop = next((end for end in ends if end > earliest), latest)
        spans.append((start, stop))
        start = stop
    return [*spans, (start, len(text))]

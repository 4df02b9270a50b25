"""A corpus: built, grown, searched by words, vectors and both, and read."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.config import EmbedderConfig
from atommem.envs.web.corpus import Corpus, Page, build_corpus, read_pages
from atommem.envs.web.corpus import corpus as corpus_module
from atommem.envs.web.corpus.corpus import fused
from atommem.envs.web.corpus.page_store import cut
from atommem.envs.web.page_texts import core, named, snippet
from atommem.errors import ConfigError, DataError
from tests.envs.benchmark_rows import write_lines

pytest.importorskip("tantivy")
HASHING = EmbedderConfig("hashing", embedder_dim=64)
FRONT = "---\ntitle: A B\ndate: x\n---\nText"
PAGES = [
    Page("Orla Finch lives in Brent and builds bells.", "Orla Finch"),
    Page("Brent is a town on the Vesk. The Town Hall was built by Ann.", "Brent"),
    Page("北京大学位于海淀区。", "北京大学"),
    Page("A page about cooking potatoes.", "Potatoes", "https://a.example/p", "doc7"),
]


def found(corpus: Corpus, query: str, count: int = 3, mode: str | None = None) -> list[str]:
    return [hit.page.title for hit in asyncio.run(corpus.search([query], count, mode))[0]]


def made(folder: Path, pages: Iterable[Page], *settings: Any) -> Corpus:
    """The corpus of a folder with these pages, new or added."""
    build_corpus(pages, folder, *settings)
    return Corpus(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "corpus", PAGES).folder


def test_words_find_pages(folder: Path) -> None:
    corpus = Corpus(folder)
    assert corpus.modes == ("lexical",)
    assert corpus.counts == {"pages": 4, "passages": 4}
    assert found(corpus, "who was BUILDING a bell?")[0] == "Orla Finch"  # stems
    assert found(corpus, "brént")[0] == "Brent"  # its title counts
    assert found(corpus, "海淀") == ["北京大学"]
    assert found(corpus, "学") == []
    assert found(corpus, '( "]: +-') == []
    assert found(corpus, "") == []
    with pytest.raises(ConfigError, match=r"mode=dense: unknown\. Give one of lexical"):
        found(corpus, "x", mode="dense")


def test_a_page_is_read_by_id_url_and_title_and_titles_in_a_text_are_links(folder: Path) -> None:
    corpus = Corpus(folder)
    assert all(
        corpus.page(name) == PAGES[3]
        for name in ("doc7", "https://a.example/p", "Potatoes", " potatoes ")
    )
    assert corpus.links(corpus.page("Orla Finch")) == ["Brent"]
    others = corpus.links(Page("Brent and Orla   finch of Brent, at 北京大学.", "x"))
    assert others == ["Brent", "Orla Finch", "北京大学"]
    # The longest title is the link.
    titles = {core("Dr. No (film)"), core("Dr. No"), core("No")}
    assert named("He saw Dr. No (film), then Dr. No; No.", titles.intersection) == [
        "dr. no (film",
        "dr. no",
        "no",
    ]
    assert named("no dr. no", titles.intersection) == []  # in small letters: no name


def test_a_page_under_its_id_is_replaced_and_the_version_says_what_the_pages_say(
    folder: Path, tmp_path: Path
) -> None:
    assert made(tmp_path / "other", PAGES[::-1]).version == (before := Corpus(folder).version)
    corpus = made(folder, [Page("Now about carrots.", "Carrots", "https://a.example/p", "doc7")])
    assert corpus.version != before
    assert corpus.counts["pages"] == 4
    assert found(corpus, "potatoes") == []
    assert found(corpus, "carrots") == ["Carrots"]


def test_passages_of_one_title_are_one_page_unless_another_address_calls_itself_so(
    tmp_path: Path,
) -> None:
    pages = [
        *(Page("First.", "Bob"), Page("Second.", "Bob"), Page("First. ", "Bob")),
        Page("Ann lives in Oakrest.", "Ann", "https://a.test/"),
        Page("Ann lives in Fenford.", "Ann", "https://evil.test/"),
    ]
    corpus = made(tmp_path / "c", pages)
    assert corpus.counts["pages"] == 4
    assert (corpus.page("bob").text, corpus.page("Bob (2)").text) == (
        "First.\n\nSecond.",
        "Second.",
    )
    ann = corpus.page("ann")
    assert (ann.text, ann.url) == ("Ann lives in Oakrest.", "https://a.test/")
    asyncio.run(corpus.close())


def test_a_long_page_is_found_by_its_passage_and_read_whole(tmp_path: Path) -> None:
    text = (
        " ".join(f"Sentence {number} about nothing." for number in range(200))
        + " The bell is in Lorne."
    )
    corpus = made(tmp_path / "c", [Page(text, "Long")], None, 300)
    ((hit,),) = asyncio.run(corpus.search(["bell Lorne"], 5))
    assert "bell is in Lorne" in hit.passage
    assert len(hit.passage) <= 300
    assert hit.page.text == text


def test_cutting_loses_nothing() -> None:
    text = "One two. " * 30 + "\n\n" + "x" * 250 + "。" * 40
    spans = cut(text, 100)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(0 < stop - start <= 100 for start, stop in spans)
    assert text[spans[0][0] : spans[0][1]].endswith("One two. ")
    assert cut("", 100) == [(0, 0)]


def test_vectors_and_fusion(tmp_path: Path) -> None:
    build_corpus(PAGES[:2], tmp_path / "c", HASHING)
    corpus = made(tmp_path / "c", PAGES[2:])  # it knows its embedder
    assert corpus.modes == ("lexical", "dense", "hybrid")
    assert found(corpus, "cooking potatoes", 1, "dense") == ["Potatoes"]
    assert len(found(corpus, "cooking potatoes", 4, "dense")) == 4  # everything has a similarity
    assert found(corpus, "cooking potatoes")[0] == "Potatoes"
    assert found(corpus, "cooking potatoes", 4, "lexical") == ["Potatoes"]


def test_reciprocal_ranks_by_hand() -> None:
    ranked = fused([[(7, 9.0), (8, 1.0)], [(8, 0.5), (9, 0.4)]])
    assert [number for number, _ in ranked] == [8, 7, 9]
    assert ranked[0][1] == pytest.approx(1 / 62 + 1 / 61)


def test_an_addition_that_was_cut_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "c"
    build_corpus(PAGES[:1], folder, HASHING)

    def dies(self: object, passages: Iterable[tuple[int, str]], gone: Iterable[int] = ()) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_module.LexicalIndex, "add", dies)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(PAGES, folder)
    assert not Corpus(folder).complete
    corpus = made(folder, [])
    assert (corpus.complete, corpus.counts["pages"]) == (True, 4)
    assert (
        found(corpus, "potatoes", 1, "lexical")
        == found(corpus, "potatoes", 1, "dense")
        == ["Potatoes"]
    )
    whole = np.fromfile(folder / "vectors.f32", dtype=np.float32)
    with (folder / "vectors.f32").open("r+b") as file:
        file.truncate(64 * 4 + 17)  # killed in the middle of a row
    build_corpus([], folder)
    np.testing.assert_array_equal(np.fromfile(folder / "vectors.f32", dtype=np.float32), whole)


def test_wrong_folders_pages_and_embedders(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *asked: False)
        with pytest.raises(ConfigError, match="read a copy of it"):
            Corpus(folder)
    with pytest.raises(ConfigError, match="is no corpus"):
        Corpus(tmp_path)
    with pytest.raises(ConfigError, match="holds other files"):
        build_corpus([], tmp_path)
    with pytest.raises(ConfigError, match="was built without an embedder"):
        build_corpus([], folder, HASHING)
    build_corpus([], tmp_path / "dense", HASHING)
    with pytest.raises(
        ConfigError, match=r"those of 'hashing/\d+/64', but the embedder is 'hashing/\d+/32'"
    ):
        Corpus(tmp_path / "dense", {"embedder_dim": 32})
    (tmp_path / "dense" / "corpus.json").write_text('{"version": 9}')
    with pytest.raises(ConfigError, match="of another version"):
        Corpus(tmp_path / "dense")
    database = sqlite3.connect(folder / "pages.sqlite")
    database.executescript(
        "create trigger t after insert on pages begin delete from pages; end"
    ).close()
    with pytest.raises(DataError, match="it holds a trigger or a view"):
        Corpus(folder)


@pytest.mark.parametrize(
    ("row", "page"),
    [
        ({"title": "A", "text": "b"}, Page("b", "A")),
        ({"url": "https://x", "title": "A", "text": "b"}, Page("b", "A", "https://x")),
        ({"id": 3, "contents": '"A"\nb\nc'}, Page("b\nc", "A", "", "3")),
        ({"docid": "9", "url": "u", "text": FRONT}, Page(FRONT, "A B", "u", "9")),
        ({"text": "First line\nsecond"}, Page("First line\nsecond", "First line")),
        ({"text": "b\0", "title": "A\ud800"}, Page("b\ufffd", "A\ufffd")),
    ],
)
def test_rows_of_files(row: dict[str, object], page: Page, tmp_path: Path) -> None:
    assert list(read_pages(write_lines(tmp_path / "pages.jsonl", [row]))) == [page]


@pytest.mark.parametrize(
    ("row", "field"), [({"title": "A"}, "text"), ({"text": "a", "id": {"x": 1}}, "id")]
)
def test_hostile_rows(row: dict[str, object], field: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"row 1: field '{field}' is"):
        list(read_pages(write_lines(tmp_path / "pages.jsonl", [row])))


def test_a_snippet_is_where_the_most_of_the_query_is_said() -> None:
    text = " ".join(["Lorne", *["word"] * 100, "Lorne,", "the bell", *["after"] * 100])
    assert "Lorne, the bell after" in snippet(text, "bell of lorne")
    assert len(snippet(text, "bell of lorne").split()) == 40
    assert snippet(text, "nothing").startswith("Lorne word")
    assert snippet("", "x") == snippet("...", "x") == ""
    assert snippet("好" * 500 + "北京大学" + "好" * 500, "北京大学").count("好") == 36


@pytest.mark.parametrize(
    "file", ["pages.sqlite", "lexical/meta.json", "lexical/*.store", "lexical/*.pos"]
)
def test_a_damaged_or_missing_file_is_said_and_not_made_anew(tmp_path: Path, file: str) -> None:
    build_corpus(
        [Page(f"Ann lives in town {number}.", f"Ann {number}") for number in range(300)],
        tmp_path / "c",
    )
    (damaged,) = (tmp_path / "c").glob(file)
    damaged.write_bytes(
        b"null\n" if "*" in file else damaged.read_bytes()[:40]
    )  # of a short one Rust panics
    with pytest.raises(DataError, match="uild the corpus anew"):
        Corpus(tmp_path / "c")
    (tmp_path / "c" / "pages.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match="no pages"):
            Corpus(tmp_path / "c")


def test_a_corpus_that_cannot_be_begun_leaves_no_folder(tmp_path: Path) -> None:
    def damaged() -> Iterator[Page]:
        raise DataError("row 1 is damaged")
        yield

    with pytest.raises(DataError, match="row 1"):
        build_corpus(damaged(), tmp_path / "c")
    assert not (tmp_path / "c").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        build_corpus([Page("x", "x")], tmp_path / "file")

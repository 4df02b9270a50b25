"""A corpus: built, grown, searched by words, vectors and both, read, and served."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from starlette.testclient import TestClient

from atommem.config import EmbedderConfig
from atommem.environment import environment_config
from atommem.envs.web.corpus import corpus as corpus_module
from atommem.envs.web.corpus import indexes
from atommem.envs.web.corpus.corpus import Corpus, build_corpus, fuse
from atommem.envs.web.corpus.indexes import VectorIndex
from atommem.envs.web.corpus.pages import Page, read_pages
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, ToolResult
from atommem.errors import ConfigError, DataError
from tests.envs.benchmark_rows import write_lines
from tests.envs.web.browsing import use
from tests.fakes import command, full_disk

pytest.importorskip("tantivy")
HASHING = EmbedderConfig("hashing", embedder_dim=64)
FRONT = "---\ntitle: A B\ndate: x\n---\nText"
PAGES = [
    Page("Orla Finch lives in Brent and builds bells.", "Orla Finch"),
    Page("Brent is a town on the Vesk. The Town Hall was built by Ann.", "Brent"),
    Page("北京大学位于海淀区。", "北京大学"),
    Page("A page about cooking potatoes.", "Potatoes", "https://a.example/p", "doc7"),
]


def search(corpus: Corpus, query: str, count: int = 3, mode: str | None = None) -> list[str]:
    return [hit.page.title for hit in asyncio.run(corpus.search([query], count, mode))[0]]


def build(folder: Path, pages: Iterable[Page], *settings: Any) -> Corpus:
    build_corpus(pages, folder, *settings)
    return Corpus(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(tmp_path / "corpus", PAGES).folder


def test_search_by_words_uses_stems_titles_and_character_pairs(folder):
    corpus = Corpus(folder)
    assert search(corpus, "who was BUILDING a bell?")[0] == "Orla Finch"
    assert search(corpus, "brént")[0] == "Brent"
    assert search(corpus, "海淀") == ["北京大学"]
    assert search(corpus, "学") == ["北京大学"]
    assert search(corpus, '( "]: +-') == search(corpus, "") == []


def test_named_titles_are_links(folder):
    links = Corpus(folder).links(Page("Brent and Orla   finch of Brent, at 北京大学.", "x"))
    assert links == ["Brent", "Orla Finch", "北京大学"]


def test_page_with_known_id_is_replaced_and_changes_the_version(folder, tmp_path):
    before = Corpus(folder).pages
    names = ("doc7", "https://a.example/p", "Potatoes", " potatoes ")
    assert all(before.find(name) == PAGES[3] for name in names)
    assert build(tmp_path / "other", PAGES[::-1]).pages.digest() == before.digest()
    carrots = Page("Now about carrots.", "Carrots", "https://a.example/p", "doc7")
    corpus = build(tmp_path / "other", [carrots])
    assert corpus.pages.digest() != before.digest()
    assert corpus.pages.counts()["pages"] == 4
    assert (search(corpus, "potatoes"), search(corpus, "carrots")) == ([], ["Carrots"])


def test_corpus_with_another_embedder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a corpus"):
        Corpus(tmp_path)
    build_corpus([], tmp_path / "dense", HASHING)
    with pytest.raises(ConfigError, match=r"'hashing/\d+/64', but this is 'hashing/\d+/32'"):
        Corpus(tmp_path / "dense", {"embedder_dim": 32})


def test_pages_of_one_title_are_joined_unless_their_address_differs(tmp_path):
    pages = [
        *(Page("First.", "Bob"), Page("Second.", "Bob"), Page("First. ", "Bob")),
        Page("Ann lives in Oakrest.", "Ann", "https://a.test/"),
        Page("Ann lives in Fenford.", "Ann", "https://evil.test/"),
    ]
    corpus = build(tmp_path / "c", pages)
    found: Any = [corpus.pages.find(name) for name in ("bob", "ann")]
    assert [page.text for page in found] == ["First.\n\nSecond.", "Ann lives in Oakrest."]


def test_long_page_is_found_by_passage_and_read_whole(tmp_path):
    text = "Nothing is said here. " * 200 + "The bell is in Lorne."
    corpus = build(tmp_path / "c", [Page(text, "Long")], None, 300)
    ((hit,),) = asyncio.run(corpus.search(["bell Lorne"], 5))
    assert "bell is in Lorne" in hit.passage
    assert len(hit.passage) <= 300
    assert hit.page.text == text


def test_vectors_are_searched_alone_and_fused_with_words(tmp_path):
    build_corpus(PAGES[:2], tmp_path / "c", HASHING)
    corpus = build(tmp_path / "c", PAGES[2:])  # it knows its embedder
    assert corpus.modes == ("lexical", "dense", "hybrid")
    assert len(search(corpus, "cooking potatoes", 4, "dense")) == 4
    assert search(corpus, "cooking potatoes", 4, "lexical") == ["Potatoes"]
    ranked = fuse([[(7, 9.0), (8, 1.0)], [(8, 0.5), (9, 0.4)]])
    assert [number for number, _ in ranked] == [8, 7, 9]
    assert ranked[0][1] == pytest.approx(1 / 62 + 1 / 61)


@pytest.mark.slow
def test_vector_index_above_the_flat_size_has_the_recall_and_covers_new_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(indexes, "FLAT_BELOW", 2000)
    rows = np.random.default_rng(0).standard_normal((6100, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = VectorIndex(tmp_path, 16)
    index.append(list(range(1, 6001)), rows[:6000])
    assert index.build() >= 0.97
    index.append(list(range(6001, 6101)), rows[6000:])
    found = np.array([[number for number, _ in index.search(row, 10)] for row in rows[6050:]])
    exact = np.argsort(-(rows[6050:] @ rows.T), axis=1)[:, :10] + 1
    assert np.mean(found[:, :, None] == exact[:, None]) * 10 >= 0.95
    assert found[:, 0].tolist() == [*range(6051, 6101)], "the new rows are searched too"


def test_interrupted_addition_is_completed_by_the_next(tmp_path, monkeypatch):
    folder = tmp_path / "c"
    build_corpus(PAGES[:1], folder, HASHING)
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module.WordIndex, "add", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_corpus(PAGES, folder)
    vectors = folder / "vectors.f32"
    vectors.write_bytes(vectors.read_bytes() + b"killed within a row")
    corpus = build(folder, [])
    assert corpus.pages.counts()["pages"] == 4
    for mode in corpus.modes:
        assert search(corpus, "potatoes", 1, mode) == ["Potatoes"]


@pytest.mark.parametrize("size", [30_000, 60_000])
def test_addition_on_a_full_disk_names_it_and_continues(tmp_path, size):
    pages = [Page(f"Town {n} was built by Ann in {n}. " * 9, f"Town {n}") for n in range(200)]
    errors = (ConfigError, DataError, OSError)
    with full_disk(size), pytest.raises(errors, match="not a corpus that can"):
        build_corpus(pages, tmp_path, HASHING)
    with pytest.warns(UserWarning, match="was interrupted"):
        Corpus(tmp_path)
    corpus = build(tmp_path, pages)
    assert corpus.pages.counts()["pages"] == 200
    for mode in corpus.modes:
        assert search(corpus, "Town 77", 1, mode) == ["Town 77"]


def test_damaged_corpus_is_found_when_it_is_opened(tmp_path):
    build_corpus(PAGES, tmp_path, HASHING)
    files = [*tmp_path.glob("words/*.idx"), tmp_path / "vectors.f32", tmp_path / "pages.sqlite"]
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(bytes(len(whole)))
        with pytest.raises(DataError, match=f"{path.name}: not what was built"):
            Corpus(tmp_path)
        path.write_bytes(whole)
    assert search(Corpus(tmp_path), "potatoes", 1, "dense") == ["Potatoes"]
    (tmp_path / "pages.sqlite").unlink()
    with pytest.raises(DataError, match="not what was built"):
        Corpus(tmp_path)


def test_read_pages_accepts_the_usual_fields(tmp_path):
    contents = {"id": 3, "contents": '"A"\nb\nc'}
    front = {"docid": "9", "url": "u", "text": FRONT}
    surrogate = {"text": "b\0", "title": "A\ud800"}
    path = write_lines(tmp_path / "pages.jsonl", [contents, front, surrogate])
    pages = [Page("b\nc", "A", "", "3"), Page(FRONT, "A B", "u", "9"), Page("b\ufffd", "A\ufffd")]
    assert list(read_pages(path)) == pages


@pytest.fixture
def client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    run = Mock()
    monkeypatch.setattr("uvicorn.run", run)
    assert command("corpus")(["serve", str(folder)]) == 0
    return TestClient(run.call_args.args[0])


def test_retrieve_follows_search_r1s_protocol(client):
    body = {"queries": ["bells", "nothing at all"], "topk": 1, "return_scores": True}
    (hit,), nothing = client.post("/retrieve", json=body).json()["result"]
    document = {"id": "Orla Finch", "title": "Orla Finch", "url": "Orla Finch"}
    assert hit["document"] == {**document, "contents": f'"Orla Finch"\n{PAGES[0].text}'}
    assert hit["score"] > 0
    assert nothing == []
    unscored = client.post("/retrieve", json={"queries": ["potatoes"]}).json()["result"]
    assert unscored[0][0]["url"] == PAGES[3].url
    reply = client.post("/retrieve", json={"queries": ["x"], "topk": 0})
    assert (reply.status_code, "topk" in reply.json()["error"]) == (400, True)


def test_access_returns_pages_with_links(client):
    urls = [PAGES[3].url, "https://a.example/none", "orla finch"]
    potatoes, none, orla = client.post("/access", json={"urls": urls}).json()["result"]
    page = {"contents": PAGES[3].text, "title": "Potatoes", "url": PAGES[3].url, "links": []}
    assert (potatoes, none) == (page, None)
    assert orla["links"] == [{"title": "Brent", "url": "Brent"}]


def test_corpus_source_searches_and_visits(folder):
    config = environment_config("web", tools=["corpus"], corpus=str(folder))
    queries = [("search", {"query": query}) for query in ("who builds bells?", "xyzzy")]
    pages = [("visit", {"page": page}) for page in ("orla finch", "nowhere")]
    hits, none, page, missing = use(make_sources(["corpus"], config), *queries, *pages)
    assert "Orla Finch: Orla Finch lives in Brent" in hits.text
    assert [link.target for link in hits.links] == ["Orla Finch"]
    links = (Link("Brent", "Brent"),)
    assert page == ToolResult(PAGES[0].text, False, "Orla Finch", links, "Orla Finch")
    assert (none.is_error, missing.is_error) == (True, True)

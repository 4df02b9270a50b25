"""Embedders: hashing, random, sentence-transformers, HTTP, the batcher; words of any language."""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder, HashingEmbedder, MicroBatcher, TextKind, Vectors
from atommem.embedding.models import HttpEmbedder, SentenceTransformerEmbedder
from atommem.envs.scoring.metrics import score_question
from atommem.envs.task import Question
from atommem.errors import ConfigError, OutageError
from atommem.files import load_beside
from atommem.words import unify, words
from tests.atommem.sessions import Embeds
from tests.fake_chat import refusal
from tests.loopback import make_checkpoint

WORDS = load_beside(__file__, "words.yaml")
TEXTS = ["The red fox", "a blue whale", "", "?!", "日本 東京", "ẞ and \ud800"]


def embed(embedder: Embedder, texts: Sequence[str], kind: TextKind = "entry") -> Vectors:
    return asyncio.run(embedder.embed(texts, kind))


@pytest.mark.parametrize("name", ["hashing", "random"])
def test_embedder_returns_float32_unit_rows_in_order(name):
    embedder = make_embedder(EmbedderConfig(embedder=name, embedder_dim=64))
    vectors = embed(embedder, TEXTS)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 64), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(vectors, [embed(embedder, [text])[0] for text in TEXTS])


def test_hashing_embedder_matches_reference():
    """One word, by hand: eight places and signs out of BLAKE2b."""
    digest = hashlib.blake2b(b"fox", digest_size=32).digest()
    expected = np.zeros(100)
    for start in range(0, 32, 4):
        number = int.from_bytes(digest[start : start + 4], "little")
        expected[(number // 2) % 100] += -1 if number % 2 else 1
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(embed(HashingEmbedder(100), [" Fox! "])[0], expected, atol=1e-6)


@pytest.mark.slow
def test_sentence_transformer_uses_query_prompt(tmp_path):
    pytest.importorskip("torch")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    modules = [Transformer(str(make_checkpoint(tmp_path / "llm"))), Pooling(16)]
    prompts = {"query": "find: ", "document": ""}
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(tmp_path / "m"))
    embedder = SentenceTransformerEmbedder(tmp_path / "m")
    query, prompted = embed(embedder, ["red fox"], "query"), embed(embedder, ["find: red fox"])
    assert (query.shape, query.dtype, embedder.dim) == ((1, 16), np.float32, 16)
    np.testing.assert_allclose(query, prompted, atol=1e-5)
    assert np.abs(query - embed(embedder, ["red fox"])).max() > 1e-2


class EmbeddingServer:
    """Embeds a text as (its length, 1, 0), not normalised, and answers in reverse order."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[httpx.Response] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if self.answers:
            return self.answers.pop(0)
        if max(map(len, body["input"])) > 100:
            return refusal(400, "This model's maximum context length is 8.")
        if "\u200b" in "".join(body["input"]):
            return refusal(400, "input cannot be an empty string")
        if "x" in "".join(body["input"]):
            return refusal(400, "Your credit balance is too low")
        return data([[len(text), 1, 0] for text in body["input"]])

    def embedder(self) -> HttpEmbedder:
        transport = httpx.MockTransport(self)
        return HttpEmbedder("http://s/v1", "m", retries=2, backoff=0.001, transport=transport)


def data(vectors: list[Any]) -> httpx.Response:
    rows = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return httpx.Response(200, content=json.dumps({"data": rows[::-1]}))


async def test_http_embedder_normalises_and_keeps_order():
    server = EmbeddingServer()
    embedder = server.embedder()  # inside an event loop, too
    assert embedder.dim == 3
    vectors = await embedder.embed(["a", "bbb"], "query")
    expected = [[2**-0.5, 2**-0.5, 0], [3 / 10**0.5, 1 / 10**0.5, 0]]
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    assert vectors.dtype == np.float32
    assert server.bodies[-1] == {"model": "m", "input": ["a", "bbb"], "encoding_format": "float"}


@pytest.mark.parametrize(
    ("texts", "warning", "numbers"),
    [
        (["aa", "a" * 1000, "a" * 101], "a refused text was cut .*maximum context", [2, 62, 50]),
        (["\u200b\u200b", "a"], "a refused text has no vector", [np.inf, 1]),
    ],
)
def test_http_embedder_refused_text_is_halved_and_at_last_a_unit_vector(texts, warning, numbers):
    with pytest.warns(UserWarning, match=warning):
        vectors = embed(EmbeddingServer().embedder(), texts)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], numbers, 1e-5)


def test_http_embedder_invalid_answer_is_an_error():
    server = EmbeddingServer()
    embedder = server.embedder()
    server.answers = [data([[1, 2], [1, 2]])]
    with pytest.raises(ConfigError, match="2 numbers a text after 3"):
        embed(embedder, ["a", "b"])
    with pytest.raises(ConfigError, match=r"refused to embed.*credit balance"):
        embed(embedder, ["x", "a"])


async def expected(*texts: str) -> Vectors:
    return await HashingEmbedder(32).embed(texts, "entry")


async def test_micro_batcher_embeds_equal_texts_once():
    recorder = Embeds()
    batcher = MicroBatcher(recorder)
    batcher.batch_size = 4
    requests = (["same", "same", f"x{i % 2}"] for i in range(10))
    vectors = await asyncio.gather(*(batcher.embed(texts, "entry") for texts in requests))
    assert recorder.calls == [("entry", "same", "x0", "x1")]
    np.testing.assert_array_equal(vectors[3], await expected("same", "same", "x1"))
    vectors[3][:] = 7  # a result that is changed does not change the cache
    many = ["x1", "same", *map(str, range(10))]
    np.testing.assert_array_equal(await batcher.embed(many, "entry"), await expected(*many))
    await batcher.embed(["same"], "query")  # which is another vector
    assert [len(texts) for _, *texts in recorder.calls[1:]] == [4, 4, 2, 1]


@pytest.mark.parametrize("error", [OutageError("gone"), asyncio.CancelledError()])
async def test_micro_batcher_failed_call_fails_its_requests_and_no_other(error):
    class Half(Embeds):
        async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
            if kind == "query":
                raise error
            return await super().embed(texts, kind)

    batcher = MicroBatcher(Half())
    work = (batcher.embed(["a"], "query"), batcher.embed(["a"], "entry"))
    failed, vectors = await asyncio.gather(*work, return_exceptions=True)
    assert type(failed) is type(error)
    np.testing.assert_array_equal(vectors, await expected("a"))


# Words ---


@pytest.mark.parametrize(("text", "expected"), WORDS["words"])
def test_words_of_a_language(text, expected):
    assert words(text) == expected.split(" ")


@given(st.text("aZ09_ -'.,\n\té–“”€²½ßñ", max_size=30))  # noqa: RUF001
def test_words_of_english_are_those_of_a_regular_expression(text):
    assert words(text) == re.findall(r"\w+", text.casefold())
    assert not text.isascii() or unify(text) == text


@pytest.mark.parametrize("language", WORDS["translated"])
async def test_translated_texts_are_found_and_scored_as_in_english(language):
    texts, questions, golds = zip(*WORDS["translated"][language], strict=True)
    embedder = HashingEmbedder(2048)
    entries = await embedder.embed(texts, "entry")
    nearest = (await embedder.embed(questions, "query") @ entries.T).argmax(axis=1)
    assert nearest.tolist() == list(range(len(texts)))
    end = {"chinese": "。", "japanese": "。", "english": "."}.get(language, "!")
    for question, gold in zip(questions, golds, strict=True):
        asked = Question(question, (gold,))
        assert set(score_question(asked, f"“{gold}”{end}", "told").values()) == {1.0}

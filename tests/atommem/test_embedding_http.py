"""The HTTP embedder against a fake ``/v1/embeddings``."""

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.batched import MicroBatcher
from atommem.embedding.http import HttpEmbedder
from atommem.errors import ConfigError, OutageError


class EmbeddingServer:
    """Embeds a text as (its length, 1, 0), not normalised, and answers in reverse order."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[httpx.Response] = []
        self.longest: int | None = None
        self.cuts, self.status = True, 400
        self.refused: str | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        if self.answers:
            return self.answers.pop(0)
        texts = body["input"]
        if self.longest is not None:
            if "truncate_prompt_tokens" in body and self.cuts:
                texts = [text[: self.longest] for text in texts]
            if max(map(len, texts)) > self.longest:
                message = "This model's maximum context length is 8."
                return httpx.Response(self.status, json={"error": {"message": message}})
        if self.refused is not None and any(self.refused in text for text in texts):
            return httpx.Response(400, json={"error": {"message": "a bad word"}})
        return data([[len(text), 1, 0] for text in texts])

    def embedder(self) -> HttpEmbedder:
        return HttpEmbedder("http://s/v1", "m", retries=2, backoff=0.001, transport=httpx.MockTransport(self))


def data(vectors: list[Any], indices: list[int] | None = None) -> httpx.Response:
    numbered = zip(indices or range(len(vectors)), vectors, strict=True)
    rows = [{"index": index, "embedding": vector} for index, vector in numbered]
    return httpx.Response(200, content=json.dumps({"data": rows[::-1]}))


@pytest.fixture
def server() -> EmbeddingServer:
    return EmbeddingServer()


async def test_vectors_are_normalised_and_in_the_order_of_the_texts(server: EmbeddingServer) -> None:
    embedder = server.embedder()  # inside an event loop, too
    assert embedder.dim == 3
    vectors = await embedder.embed(["a", "bbb"], "query")
    np.testing.assert_allclose(vectors, [[2**-0.5, 2**-0.5, 0], [3 / 10**0.5, 1 / 10**0.5, 0]], rtol=1e-6)
    assert vectors.dtype == np.float32
    assert server.bodies[-1] == {"model": "m", "input": ["a", "bbb"], "encoding_format": "float"}
    count = len(server.bodies)
    assert (await embedder.embed([], "entry")).shape == (0, 3)
    assert len(server.bodies) == count
    await embedder.close()


def test_a_server_that_fails_for_a_while_is_asked_again_and_then_is_an_outage(server: EmbeddingServer) -> None:
    embedder = server.embedder()
    server.answers = [httpx.Response(503), httpx.Response(429)]
    assert asyncio.run(embedder.embed(["a"], "entry")).shape == (1, 3)
    server.answers = [httpx.Response(500)] * 3
    with pytest.raises(OutageError, match="/v1/embeddings failed 3 times"):
        asyncio.run(embedder.embed(["a"], "entry"))
    server.answers = [httpx.Response(500)] * 3
    with pytest.raises(OutageError, match="failed 3 times"):
        server.embedder()


def test_a_refusal_is_a_config_error(server: EmbeddingServer) -> None:
    server.answers = [httpx.Response(404, json={"error": {"message": "no model m"}})]
    with pytest.raises(ConfigError, match=r"model 'm'.*404.*no model m.*embedder_model"):
        server.embedder()


def test_texts_that_are_too_long_are_cut_where_the_server_can(server: EmbeddingServer) -> None:
    embedder = server.embedder()
    server.longest = 4
    with pytest.warns(UserWarning, match="beyond the embedder's window"):
        vectors = asyncio.run(embedder.embed(["12345678", "12"], "entry"))
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [4, 2], rtol=1e-6)
    assert (embedder.counts.cut, embedder.counts.lost) == (1, 0)


@pytest.mark.filterwarnings("ignore:a text")
@pytest.mark.parametrize("status", [400, 413, 422])
def test_texts_that_are_too_long_are_halved_where_it_cannot(server: EmbeddingServer, status: int) -> None:
    """Only what is refused is cut, however many texts stand beside it."""
    embedder = server.embedder()
    server.longest, server.cuts, server.status = 100, False, status
    texts = ["a" * length for length in (3, 1000, 5, 100, 101, 7)]
    vectors = asyncio.run(embedder.embed(texts, "entry"))
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], [3, 62, 5, 100, 50, 7], rtol=1e-5)
    assert (embedder.counts.cut, embedder.counts.lost) == (2, 0)


@pytest.mark.filterwarnings("ignore:a text")
def test_a_text_that_is_refused_in_any_length_gets_a_makeshift(server: EmbeddingServer) -> None:
    embedder = server.embedder()
    server.refused = "x"
    vectors = asyncio.run(embedder.embed(["aa", "x" * 500, "aaa", "x"], "entry"))
    np.testing.assert_allclose(vectors[[1, 3]], [[1, 0, 0]] * 2)
    np.testing.assert_allclose(vectors[[0, 2], 0] / vectors[[0, 2], 1], [2, 3], rtol=1e-6)
    assert (embedder.counts.cut, embedder.counts.lost) == (0, 2)
    with pytest.raises(ConfigError, match=r"none of the last 64 texts could be embedded \(HTTP 400: a bad word"):
        asyncio.run(embedder.embed(["x"] * 64, "entry"))


@pytest.mark.filterwarnings("ignore:a text")
@pytest.mark.parametrize("broken", [[0, 0, 0], [1, None, 3], [1, float("inf"), 0]])
def test_a_text_without_a_direction_gets_a_makeshift(server: EmbeddingServer, broken: list[Any]) -> None:
    embedder = server.embedder()
    server.answers = [data([broken, [0, 2, 0]])]
    np.testing.assert_allclose(asyncio.run(embedder.embed(["a", "b"], "entry")), [[1, 0, 0], [0, 1, 0]])
    assert embedder.counts.lost == 1
    server.answers = [data([broken])]
    with pytest.raises(ConfigError, match="zero or not finite"):
        server.embedder()


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"object": "list"}),
        data([[1, 2, 3]]),
        data([[1, 2, 3], [1, 2, 3]], [0, 0]),
        data(["AAAA", "BBBB"]),
    ],
)
def test_what_are_no_embeddings_is_a_config_error(server: EmbeddingServer, answer: httpx.Response) -> None:
    embedder = server.embedder()
    server.answers = [answer]
    with pytest.raises(ConfigError, match="no embeddings of 2 texts"):
        asyncio.run(embedder.embed(["a", "b"], "entry"))


def test_vectors_of_another_length_than_before_are_a_config_error(server: EmbeddingServer) -> None:
    embedder = server.embedder()
    server.answers = [data([[1, 2]])]
    with pytest.raises(ConfigError, match="length 2, before of 3"):
        asyncio.run(embedder.embed(["a"], "entry"))


def test_the_factory_wraps_it_into_the_micro_batcher(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = httpx.AsyncClient
    transport = httpx.MockTransport(server)
    monkeypatch.setattr(httpx, "AsyncClient", lambda **kwargs: client(**(kwargs | {"transport": transport})))
    embedder = make_embedder(EmbedderConfig(embedder="http", embedder_model="m", embedder_url="http://s"))
    assert isinstance(embedder, MicroBatcher)
    assert embedder.dim == 3

"""The embedders without a server: hashing, random, sentence-transformers, and the factory."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.embedding.batched import MicroBatcher
from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.embedding.hashing import HashingEmbedder
from atommem.embedding.random_vectors import RandomEmbedder
from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder
from atommem.errors import ConfigError

TEXTS = ["The red fox", "a blue whale", "", "?!", "日本 東京", "ẞ and \ud800"]


def embed(embedder: Embedder, texts: Sequence[str], kind: TextKind = "entry") -> Vectors:
    return asyncio.run(embedder.embed(texts, kind))


@pytest.mark.parametrize("embedder", [HashingEmbedder(64), HashingEmbedder(1), RandomEmbedder(64)])
def test_vectors_are_float32_unit_rows_in_the_order_of_the_texts(embedder: Embedder) -> None:
    vectors = embed(embedder, TEXTS)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), embedder.dim), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for row, text in zip(vectors, TEXTS, strict=True):
        assert (embed(embedder, [text], "query")[0] == row).all()
    assert embed(embedder, []).shape == (0, embedder.dim)
    asyncio.run(embedder.close())


def test_hashing_is_the_published_construction() -> None:
    """One word, by hand: eight places and signs out of BLAKE2b."""
    digest = hashlib.blake2b(b"fox", digest_size=32).digest()
    expected = np.zeros(100)
    for start in range(0, 32, 4):
        number = int.from_bytes(digest[start : start + 4], "little")
        expected[(number // 2) % 100] += -1 if number % 2 else 1
    np.testing.assert_allclose(
        embed(HashingEmbedder(100), [" Fox! "])[0], expected / np.linalg.norm(expected), atol=1e-6
    )


def test_the_factory_makes_what_the_config_names() -> None:
    for name, kind in (("hashing", HashingEmbedder), ("random", RandomEmbedder)):
        embedder = make_embedder(EmbedderConfig(embedder=name, embedder_dim=17))
        assert isinstance(embedder, kind)
        assert embedder.dim == 17
    with pytest.raises(ConfigError, match="embedder_dim is 0"):
        make_embedder(EmbedderConfig(embedder="hashing", embedder_dim=0))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model of random weights that has a query prompt."""
    torch = pytest.importorskip("torch")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("embedder")
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "find", ":", "red", "fox", "blue", "whale"])}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder / "bert")
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"))
    model = SentenceTransformer(
        modules=[transformer, Pooling(16)], prompts={"query": "find : ", "document": ""}, device="cpu"
    )
    model.save(str(folder / "model"))
    return folder / "model"


def test_sentence_transformer_uses_the_models_query_prompt(model_folder: Path) -> None:
    embedder = make_embedder(EmbedderConfig(embedder="sentence_transformer", embedder_model=str(model_folder)))
    assert isinstance(embedder, MicroBatcher)
    assert isinstance(embedder.embedder, SentenceTransformerEmbedder)
    assert embedder.dim == 16

    async def run() -> list[Any]:
        return await asyncio.gather(
            embedder.embed(["red fox", "blue whale"], "entry"),
            embedder.embed(["red fox"], "query"),
            embedder.embed(["find : red fox"], "entry"),
        )

    entries, query, prompted = asyncio.run(run())
    assert (entries.shape, entries.dtype) == ((2, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(entries, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(query, prompted, atol=1e-5)
    assert np.abs(query[0] - entries[0]).max() > 1e-2
    assert asyncio.run(embedder.embedder.embed([], "entry")).shape == (0, 16)
    asyncio.run(embedder.close())


def test_no_text_ends_a_run_and_what_is_cut_is_counted(model_folder: Path) -> None:
    embedder = SentenceTransformerEmbedder(model_folder)
    long = "red fox " * 1000
    with pytest.warns(UserWarning, match=r"8,000 characters is beyond|has no vector"):
        vectors = embed(embedder, [long, "red fox", "", "half \ud83d", long])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (embedder.counts.cut, embedder.counts.lost) == (2, 1), "this tokenizer makes nothing of an empty text"
    batched = MicroBatcher(embedder)
    assert batched.counts is embedder.counts
    encode = embedder._model.encode_document
    embedder._model.encode_document = lambda texts, **settings: np.nan * encode(texts, **settings)
    assert (embed(embedder, ["red"])[0] == np.eye(1, 16)[0]).all()
    with pytest.raises(ConfigError, match="none of the last 65 texts could be embedded"):
        embed(embedder, ["red"] * 64)
    asyncio.run(batched.close())


def test_a_model_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="embedder_model"):
        SentenceTransformerEmbedder(tmp_path / "nothing")

"""Embedders: what turns entries and queries into unit vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atommem.config import EmbedderConfig
from atommem.errors import ConfigError

if TYPE_CHECKING:
    from atommem.embedding.embedder import Embedder


def make_embedder(config: EmbedderConfig) -> Embedder:
    """The embedder that `config` names; one is shared by all episodes.

    Model-backed embedders (``sentence_transformer``, ``http``) come inside a micro-batcher; for the
    others, a call costs less than waiting for company.

    Raises:
        ConfigError: A setting is wrong, or there is no such model.
        OutageError: The embedding server is out of reach.
    """
    if config.embedder_dim < 1:
        raise ConfigError(f"embedder_dim is {config.embedder_dim}: give at least 1.")
    if config.embedder == "hashing":
        from atommem.embedding.hashing import HashingEmbedder

        return HashingEmbedder(config.embedder_dim)
    if config.embedder == "random":
        from atommem.embedding.random_vectors import RandomEmbedder

        return RandomEmbedder(config.embedder_dim)

    from atommem.embedding.batched import MicroBatcher

    if config.embedder == "http":
        from atommem.embedding.http import HttpEmbedder

        return MicroBatcher(HttpEmbedder(config.embedder_url or "", config.embedder_model))
    from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder

    return MicroBatcher(SentenceTransformerEmbedder(config.embedder_model))

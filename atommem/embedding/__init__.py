"""Embedders: entries and queries to unit vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atommem.config import EmbedderConfig
from atommem.errors import ConfigError

if TYPE_CHECKING:
    from atommem.embedding.embedder import Embedder


def make_embedder(config: EmbedderConfig) -> Embedder:
    """Make the configured embedder; all episodes share it.

    Embedders with a model come in a micro-batcher; for the others, waiting costs more than a call.

    Raises:
        ConfigError: A setting is invalid, or the model does not exist.
        OutageError: The embedding server is out of reach.
    """
    if config.embedder_dim < 1:
        raise ConfigError(f"embedder_dim={config.embedder_dim}: must be at least 1.")
    if config.embedder in ("hashing", "random"):
        from atommem.embedding.hashing import HashingEmbedder, RandomEmbedder

        kind = HashingEmbedder if config.embedder == "hashing" else RandomEmbedder
        return kind(config.embedder_dim)

    from atommem.embedding.batched import MicroBatcher

    if config.embedder == "http":
        from atommem.embedding.http import HttpEmbedder

        return MicroBatcher(HttpEmbedder(config.embedder_url or "", config.embedder_model))
    from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder

    return MicroBatcher(SentenceTransformerEmbedder(config.embedder_model))

"""Embedders: entries and queries to unit vectors."""

from atommem.config import EmbedderConfig
from atommem.embedding.embedder import Embedder, HashingEmbedder, MicroBatcher, RandomEmbedder


def make_embedder(config: EmbedderConfig) -> Embedder:
    """Make the configured embedder; all episodes share it.

    Embedders with a model come in a micro-batcher; for the others, waiting costs more than a call.
    """
    if config.embedder == "hashing":
        return HashingEmbedder(config.embedder_dim)
    if config.embedder == "random":
        return RandomEmbedder(config.embedder_dim)
    from atommem.embedding.models import HttpEmbedder, SentenceTransformerEmbedder

    if config.embedder == "http":
        return MicroBatcher(HttpEmbedder(config.embedder_url or "", config.embedder_model))
    return MicroBatcher(SentenceTransformerEmbedder(config.embedder_model))

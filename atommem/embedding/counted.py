"""What embedders share so that no text ends a run: vectors for every text, and a count of those that are makeshift."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Vectors
from atommem.errors import ConfigError

_MOST_IN_A_ROW = 64


@dataclass
class EmbeddingCounts:
    """How many texts were not embedded as they are. The first of each kind is warned of.

    Attributes:
        cut: Texts beyond the model's window, of which the beginning was embedded.
        lost: Texts that have no vector (refused in any length, or without a direction): the first unit vector stands
            for them.
    """

    cut: int = 0
    lost: int = 0
    _lost_in_a_row: int = 0

    def add_cut(self, text: str) -> None:
        """Count a text whose beginning was embedded."""
        self.cut += 1
        if self.cut == 1:
            warnings.warn(
                f"a text of {len(text):,} characters is beyond the embedder's window: cut",
                stacklevel=2,
            )

    def add(self, texts: int, lost: int, reason: str = "its vector is zero or not finite") -> None:
        """Count texts that were embedded, and those of them that have no vector.

        Raises:
            ConfigError: None of the last 64 texts had one: that is the model, not the texts.
        """
        self.lost += lost
        if lost and self.lost == lost:
            warnings.warn(
                f"a text has no vector ({reason}): the first unit vector stands for it",
                stacklevel=2,
            )
        self._lost_in_a_row = self._lost_in_a_row + lost if lost == texts else 0
        if self._lost_in_a_row >= _MOST_IN_A_ROW:
            raise ConfigError(
                f"none of the last {self._lost_in_a_row} texts could be embedded ({reason}): check embedder_model, and "
                "for one in half precision its dtype."
            )


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Vectors, int]:
    """Rows of norm 1, shape as given, float32; and how many had no direction and became the first unit vector."""
    norms = np.linalg.norm(vectors, axis=-1)
    lost = ~(np.isfinite(norms) & (norms > 0))
    vectors = np.where(lost[:, None], np.eye(1, vectors.shape[-1], dtype=np.float32), vectors)
    norms = np.where(lost, np.float32(1), norms)
    return np.asarray(vectors / norms[:, None], dtype=np.float32), int(lost.sum())

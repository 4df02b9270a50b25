"""The embedder contract, and the handling of texts that have no usable vector."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from atommem.errors import ConfigError

TextKind = Literal["query", "entry"]
Vectors = npt.NDArray[np.float32]
_MAX_LOST_IN_A_ROW = 64


class Embedder(Protocol):
    """Map texts to unit vectors.

    Attributes:
        id: Kind, model and dim. Vectors of two ids are never compared.
        dim: Length of the vectors.
    """

    id: str
    dim: int

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1.

        Raises:
            OutageError: The back end is out of reach and retries are exhausted.
        """
        ...

    async def close(self) -> None:
        """Free threads and connections."""
        ...


@dataclass
class EmbeddingCounts:
    """Count texts that were not embedded whole, and warn of the first of each kind.

    Attributes:
        cut: Texts beyond the model's window, of which the beginning was embedded.
        lost: Texts without a vector (refused at any length, or without a direction); the first unit
            vector replaces them, so that no text ends a run.
    """

    cut: int = 0
    lost: int = 0
    _lost_in_a_row: int = 0

    def add_cut(self, text: str) -> None:
        """Count a text whose beginning was embedded."""
        self.cut += 1
        if self.cut == 1:
            warnings.warn(
                f"a text of {len(text):,} characters exceeds the embedder's window and was cut",
                stacklevel=2,
            )

    def add(self, texts: int, lost: int, reason: str = "its vector is zero or not finite") -> None:
        """Count embedded texts, and those of them without a vector.

        Raises:
            ConfigError: None of the last 64 texts had one, so the model is at fault.
        """
        self.lost += lost
        if lost and self.lost == lost:
            warnings.warn(
                f"a text has no vector ({reason}); the first unit vector replaces it", stacklevel=2
            )
        self._lost_in_a_row = self._lost_in_a_row + lost if lost == texts else 0
        if self._lost_in_a_row >= _MAX_LOST_IN_A_ROW:
            raise ConfigError(
                f"None of the last {self._lost_in_a_row} texts could be embedded ({reason}). Check "
                "embedder_model, and the dtype of a model in half precision."
            )


def unit_rows(vectors: npt.NDArray[np.floating]) -> tuple[Vectors, int]:
    """Normalise rows to float32; return also how many lacked a direction and were replaced."""
    norms = np.linalg.norm(vectors, axis=-1)
    lost = ~(np.isfinite(norms) & (norms > 0))
    vectors = np.where(lost[:, None], np.eye(1, vectors.shape[-1], dtype=np.float32), vectors)
    norms = np.where(lost, np.float32(1), norms)
    return np.asarray(vectors / norms[:, None], dtype=np.float32), int(lost.sum())

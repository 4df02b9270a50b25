"""The embedder contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

TextKind = Literal["query", "entry"]
Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Maps texts to unit vectors.

    Attributes:
        id: Which vectors these are: kind, model and dim. Vectors of two ids are not to be compared.
        dim: Length of the vectors.
    """

    id: str
    dim: int

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        """Embed `texts`: shape (len(texts), dim), float32, every row of norm 1.

        Raises:
            OutageError: The back end is out of reach and retries are used up.
        """
        ...

    async def close(self) -> None:
        """Free what the embedder holds."""
        ...

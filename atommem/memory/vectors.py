"""Vectors kept beside a memory that was put down: they spare whoever takes it up the embedder."""

from __future__ import annotations

import asyncio
import hashlib
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atommem.embedding.embedder import Embedder, TextKind, Vectors
from atommem.errors import TraceError
from atommem.memory.entries import Entry
from atommem.memory.index import Ids, VectorIndex

_AT_ONCE = 256
Digests = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class TextVectors:
    """The vectors of some texts, by what the texts say.

    A cache and nothing more: a text that is not in it is embedded, and one too many does no harm. So they may be older
    or newer than the log that they are put beside.

    Attributes:
        embedder: The id of the embedder that made them.
        digests: Of the texts, shape (n,); see `digests_of`.
        rows: Shape (n, dim).
    """

    embedder: str
    digests: Digests
    rows: Vectors

    def find(self, texts: Sequence[str], kind: TextKind) -> Ids:
        """The row of each text, shape (len(texts),); -1 where it has none."""
        if not len(self.digests):
            return np.full(len(texts), -1, dtype=np.int64)
        order = np.argsort(self.digests)
        wanted = digests_of(texts, kind)
        places = order[
            np.minimum(np.searchsorted(self.digests, wanted, sorter=order), len(order) - 1)
        ]
        return np.where(self.digests[places] == wanted, places, -1)

    def save(self, path: str | Path) -> Path:
        """Write them to `path`, whole or not at all: ``4 dim + 8`` bytes each."""
        path = Path(path)
        draft = path.with_name(path.name + ".part")
        with draft.open("wb") as file:
            np.savez(file, embedder=np.array(self.embedder), digests=self.digests, rows=self.rows)
        os.replace(draft, path)
        return path

    def index_of(self, entries: Iterable[Entry]) -> VectorIndex:
        """The vectors of those of some entries that have one here."""
        held = list(entries)
        places = self.find([entry.text for entry in held], "entry")
        index = VectorIndex(self.rows.shape[1])
        ids = [entry.id for entry, place in zip(held, places.tolist(), strict=True) if place >= 0]
        index.add(ids, self.rows[places[places >= 0]])
        return index

    @staticmethod
    def beside(path: Path) -> TextVectors | None:
        """Those kept beside a file (`vectors_path`); ones that are not there or damaged are made again."""
        try:
            return TextVectors.load(vectors_path(path))
        except TraceError:
            return None

    @staticmethod
    def load(path: str | Path) -> TextVectors:
        """Read them.

        Raises:
            TraceError: The file is missing, damaged or another's.
        """
        try:
            with np.load(path, allow_pickle=False) as held:
                embedder, digests, rows = str(held["embedder"]), held["digests"], held["rows"]
        except (
            OSError,
            ValueError,
            KeyError,
            EOFError,
            AttributeError,
            zipfile.BadZipFile,
        ) as error:
            raise TraceError(
                f"{path} holds no vectors ({error}): delete it, and they are made again."
            ) from error
        if (
            digests.dtype != np.uint64
            or rows.dtype != np.float32
            or rows.ndim != 2
            or digests.shape != rows.shape[:1]
        ):
            raise TraceError(
                f"{path} holds no vectors of texts: delete it, and they are made again."
            )
        return TextVectors(embedder, digests, rows)


async def embedded(embedder: Embedder, entries: Sequence[Entry]) -> list[tuple[list[int], Vectors]]:
    """The ids and vectors of entries, in parts that an embedder takes at once; all of them wait for it together."""
    parts = [entries[first : first + _AT_ONCE] for first in range(0, len(entries), _AT_ONCE)]
    rows = await asyncio.gather(
        *(embedder.embed([entry.text for entry in part], "entry") for part in parts)
    )
    return [([entry.id for entry in part], found) for part, found in zip(parts, rows, strict=True)]


def vectors_path(path: Path) -> Path:
    """Where the vectors of what is in a file lie."""
    return path.with_name(path.name + ".vectors")


def digests_of(texts: Sequence[str], kind: TextKind) -> Digests:
    """Eight bytes of BLAKE2b for each text; the two kinds of one text are embedded differently."""
    start = hashlib.blake2b(kind.encode(), digest_size=8)
    found = bytearray()
    for text in texts:
        digest = start.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        found += digest.digest()
    return np.frombuffer(bytes(found), dtype="<u8").astype(np.uint64)

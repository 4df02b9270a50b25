"""What a store holds, and the arrays that cache it: changed together, by operations."""

from __future__ import annotations

from dataclasses import dataclass

from atommem.embedding.embedder import Vectors
from atommem.memory.columns import Columns
from atommem.memory.contents import Contents
from atommem.memory.index import VectorIndex
from atommem.memory.operations import Operation, Outcome


@dataclass(slots=True)
class State:
    """What a memory holds, and the vectors that cache it.

    Attributes:
        contents: What the operation log says.
        index: The vectors of the contents' entries.
        query_vector: Of the contents' query; None also after a restore, until something is searched for.
        columns: The entries' numbers for rules; None until one asks.
    """

    contents: Contents
    index: VectorIndex
    query_vector: Vectors | None = None
    columns: Columns | None = None

    def fork(self) -> State:
        """The same, to be changed apart from this one."""
        return State(self.contents.copy(), self.index.fork(), self.query_vector)

    def apply(self, operation: Operation, vector: Vectors | None = None) -> None:
        """Apply an operation to the contents, and to what caches them; `vector` is that of a text that it wrote."""
        self.contents.apply(operation)
        if operation.outcome is not Outcome.APPLIED:
            return
        entry_id, entries = operation.entry_id, self.contents.entries
        if entry_id is None:
            if self.columns is not None:
                for shown, _ in operation.scores:
                    self.columns.follow(shown, entries, moved=False)
            return
        if vector is None:
            self.index.remove(entry_id)
        else:
            self.index.put(entry_id, vector)
        if self.columns is not None:
            self.columns.follow(entry_id, entries, moved=True)

    def numbers(self) -> Columns:
        """`columns`, made now if need be."""
        if self.columns is None:
            self.columns = Columns(self.contents.entries, self.index)
        return self.columns

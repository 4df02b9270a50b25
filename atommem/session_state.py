"""Saved sessions: a JSON file with the operation log, and beside it the vectors as a cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atommem.errors import TraceError
from atommem.files import write_text
from atommem.memory.log import Operation, operation_from_json, to_json
from atommem.memory.store import TextVectors

FORMAT = 2


@dataclass(frozen=True)
class SessionState:
    """A session without its agent; the vectors of its texts are not part of the JSON."""

    key: str
    steps: int
    sampled: int
    embedder: str
    operations: tuple[Operation, ...] = ()
    vectors: TextVectors | None = None

    def save(self, path: str | Path, **more: Any) -> Path:
        """Write the file `path` as a whole, with more values, and vectors to ``PATH.vectors``."""
        path = Path(path)
        if self.vectors is None:
            _vectors_path(path).unlink(missing_ok=True)
        else:
            self.vectors.save(_vectors_path(path))
        record = {
            "type": "session",
            "format": FORMAT,
            "key": self.key,
            "turns": self.steps,
            "sampled": self.sampled,
            "memory": {"embedder": self.embedder},
            "operations": [to_json(operation) for operation in self.operations],
        }
        write_text(path, json.dumps(record | more) + "\n", durable=True)
        return path

    @staticmethod
    def load(path: str | Path) -> SessionState:
        """Read a file of `save`; raise TraceError if it is missing or damaged."""
        path = Path(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if (record["type"], record["format"]) != ("session", FORMAT):
                raise ValueError(f"not a session of format {FORMAT}.")
            operations = tuple(map(operation_from_json, record["operations"]))
            counts = record["key"], record["turns"], record["sampled"]
            saved = (*counts, record["memory"]["embedder"], operations)
        except (OSError, LookupError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__} {error}"
            raise TraceError(f"{path}: missing, or a damaged session ({problem}).") from error
        return SessionState(*saved, TextVectors.load(_vectors_path(path)))


def _vectors_path(path: Path) -> Path:
    return path.with_name(path.name + ".vectors")

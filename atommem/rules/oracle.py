"""What nobody may have: a keeper that knows which texts will be needed. For evaluation only, as an upper reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atommem.errors import ConfigError
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rated import Rated


class GreedyOracle(Rated):
    """Keep the texts that most questions need; what none needs goes first, the oldest of them.

    It keeps the most evidence references that a store of this size can hold. For questions that need several texts at
    once it is a strong reference and no bound: that is maximum coverage.

    Args:
        needs: A JSON object (or a file of one): text, or the name of its source, -> how many questions need it; what is
            not in it is needed by none.
        task: Of an object of many tasks, whose needs they are: ``oracle(needs=FILE, task=$task)`` in a setting is each
            task's own.
    """

    what = "needed by"

    def __init__(self, needs: str | Mapping[str, Any], task: str | None = None) -> None:
        if isinstance(needs, str):
            try:
                needs = json.loads(Path(needs).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"oracle: needs {needs!r} cannot be read ({error}): give a JSON object."
                ) from error
        if not isinstance(needs, Mapping):
            raise ConfigError("oracle: needs is no object of texts and numbers.")
        self._needs: Mapping[str, float] = needs if task is None else needs.get(task, {})

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """How many questions need it, or what it came from."""
        piece = candidate.source.piece
        return float(
            self._needs.get(
                candidate.text if piece is None else piece, self._needs.get(candidate.text, 0.0)
            )
        )

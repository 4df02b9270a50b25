"""Which stages of a demo are done: an interrupted one goes on with the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atommem import __version__
from atommem.demo.recipe import Recipe
from atommem.envs.task_files import write_json

PROGRESS_FILE = "progress.json"
FOLDERS = ("pretrained", "cold_start", "grpo", "eval")
"""Of a demo, in its own: they are replaced by the next one."""


class Progress:
    """The stages that ended in a folder, with what later ones need of them. There until the demo is through.

    Args:
        out: The demo's folder.
        recipe: With `seed` and the version what has to be the same: of another demo nothing is taken up.
        seed: Of the demo.

    Attributes:
        done: By stage, its ``seconds`` and more.
    """

    def __init__(self, out: Path, recipe: Recipe, seed: int) -> None:
        self.path = out / PROGRESS_FILE
        self._of = [__version__, repr(recipe), seed]
        self.done: dict[str, dict[str, Any]] = {}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["of"] == self._of:
                self.done = found["done"]
        except (OSError, ValueError, LookupError, TypeError):
            pass  # none, or of another version: there is nothing to go on from

    def begin(self) -> None:
        """Nothing is done yet, but the folder is a demo's."""
        write_json(self.path, {"of": self._of, "done": self.done})

    def add(self, stage: str, **facts: Any) -> None:
        """The stage has ended, and what it made is saved."""
        self.done[stage] = facts
        write_json(self.path, {"of": self._of, "done": self.done})

    def end(self) -> None:
        """The demo is through: the next one begins anew."""
        self.path.unlink(missing_ok=True)

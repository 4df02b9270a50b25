"""`atommem.Memory`: `AsyncMemory` for programs without an event loop, and inside of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from atommem.face.answers import Answer, Reading
from atommem.face.async_memory import AsyncMemory, Progress
from atommem.face.background import run
from atommem.memory.log import Entry, Operation


class Memory:
    """A memory that a policy fills by reading and answers from.

    ``Memory("runs/policy")``, ``read(text)``, ``ask(question)``, ``entries()``, ``history()``, ``save(folder)``. Every
    method waits until it is done; Ctrl-C ends it, and what was done until then is kept. `AsyncMemory` has the same
    methods to be awaited, and says what the arguments are and what is raised.
    """

    def __init__(self, policy: Any, **settings: Any) -> None:
        self._memory = AsyncMemory(policy, **settings)

    @classmethod
    def _of(cls, memory: AsyncMemory) -> Self:
        found = cls.__new__(cls)
        found._memory = memory
        return found

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        policy: Any = None,
        *,
        reembed: bool = False,
        **settings: Any,
    ) -> Self:
        """A memory that was saved; see `AsyncMemory.load`."""
        return cls._of(run(AsyncMemory.load(folder, policy, reembed=reembed, **settings)))

    def read(
        self,
        source: str | Path | Iterable[str],
        *,
        questions: str | Sequence[str] = (),
        goal: str | None = None,
        name: str | None = None,
        again: bool = True,
        progress: Progress | None = None,
    ) -> Reading:
        """Read a text, its pieces, or the file at a `Path`; see `AsyncMemory.read`."""
        return run(
            self._memory.read(
                source, questions=questions, goal=goal, name=name, again=again, progress=progress
            )
        )

    def ask(self, question: str, *, keep: bool = True) -> Answer:
        """Ask the memory; see `AsyncMemory.ask`."""
        return run(self._memory.ask(question, keep=keep))

    def forget(self, source: str) -> tuple[Operation, ...]:
        """Take out what was written while the text called `source` was read; see `AsyncMemory.forget`."""
        return run(self._memory.forget(source))

    def fork(self) -> Self:
        """A second memory that is this one now and goes its own way. They share the policy; close only the first."""
        return self._of(run(self._memory.fork()))

    def at(self, step: int) -> Self:
        """A fork that is as this one was when step number `step` began; ``at(0)`` is empty."""
        return self._of(run(self._memory.at(step)))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it to a folder, whole or not at all; see `AsyncMemory.save`."""
        return run(self._memory.save(folder))

    def close(self) -> None:
        """Free the policy and the embedder, for forks too."""
        run(self._memory.close())

    @property
    def steps(self) -> int:
        """How many turns it has had."""
        return self._memory.steps

    @property
    def scratchpad(self) -> str:
        """What the policy is shown at every step."""
        return self._memory.scratchpad

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The texts that were read, in order."""
        return self._memory.readings

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as they apply, by name."""
        return self._memory.settings

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return self._memory.entries()

    def history(self) -> tuple[Operation, ...]:
        """All operations in order: what was written, by which step, from which chunk, and what was retrieved."""
        return self._memory.history()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Memory({len(self.entries())} entries after {self.steps} steps)"

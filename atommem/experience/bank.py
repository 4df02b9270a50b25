"""The experience bank: records of ended tasks, found by what was asked, kept by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from atommem.embedding.embedder import Embedder, Vectors
from atommem.errors import ConfigError
from atommem.experience.bank_file import BankFile
from atommem.experience.evaluators import Experience, make_evaluator
from atommem.memory.log import MEMORY, Contents, Entry, Operation, Outcome, Source, replay
from atommem.memory.memory import Plan, admit, sweep
from atommem.memory.rules import Candidate, Merged, Numbers, Refused, RuleSet, StoreState
from atommem.memory.store import (
    TextVectors,
    VectorStore,
    best,
    digests_of,
    embed_texts,
    vectors_path,
)

Similarity = Callable[[str, StoreState], Numbers]
"""How like a query each record is, in the order of `StoreState.ids`, instead of the cosine of their vectors."""

_EMBEDDED_AT_ONCE = 256
_SYSTEM = "bank"


class Bank:
    """Records across tasks. Tasks are counted from 1: each retrieves, and ends. One coroutine may use it at a time.

    A record is an `Entry`: `text` is the query, `outcome` how its task ended, `details` has ``execution`` and whatever
    else was given. Its log is the truth: `open` replays it.

    Args:
        embedder: Of queries; they are compared with each other, so all are embedded as entries.
        capacity: Most records; None is unlimited.
        admission, retention: Rules, by name and with options, as a memory has them.
        evaluator: What ended tasks leave a record: `atommem.experience.evaluators`.
        seed: Of the random numbers that rules and evaluators get.
        newest_first: Of records that are equally like a query the newest is shown first, not the oldest.

    Attributes:
        task: The number of the present task.

    Raises:
        ConfigError: There is no such rule or evaluator.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        capacity: int | None = None,
        admission: str = "accept",
        retention: str = "reject",
        evaluator: str = "add_all",
        seed: int = 0,
        newest_first: bool = False,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise ConfigError(
                f"a bank's capacity is {capacity}: give at least 1, or none for no limit."
            )
        self._embedder, self._capacity, self._seed = embedder, capacity, seed
        self._rules = RuleSet(admission, retention)
        self._evaluator, self._evaluator_name = make_evaluator(evaluator), evaluator
        self._newest_first = newest_first
        self._contents, self._store = Contents(), VectorStore(embedder.dim)
        self._file: BankFile | None = None
        self._known: tuple[str, Vectors] | None = None
        self._new: list[Operation] = []
        self.task = 1

    async def open(self, path: str | Path, durable: bool = False) -> Self:
        """Go on with the bank in a file, or begin one there; what comes then is appended, and kept when a call returns.

        Args:
            path: JSON Lines; vectors lie beside it if `save_vectors` put them there.
            durable: Wait for the disk each time: a power failure takes nothing either.

        Raises:
            TraceError: It is no bank, or damaged.
            ConfigError: It was made with another embedder, or is open elsewhere.
        """
        file = BankFile(path, durable)
        try:
            header, operations = file.read({"embedder": self._embedder.id, "seed": self._seed})
            if header["embedder"] != self._embedder.id:
                raise ConfigError(
                    f"{path} was made with embedder {header['embedder']!r}: use it again."
                )
            contents = replay(operations)
            texts = [entry.text for entry in contents.entries.values()]
            cache = TextVectors.beside(file.path)
            rows = await embed_texts(self._embedder, texts, "entry", cache)
            store = VectorStore(self._embedder.dim)
            store.add(list(contents.entries), rows)
            self._contents, self._store = contents, store
        except BaseException:
            file.close()
            raise
        self._seed, self._file = int(header["seed"]), file
        self._rules = self._rules.renewed(operations)
        self.task = max(1, contents.step)
        return self

    def records(self) -> list[Entry]:
        """All records, oldest first."""
        return list(self._contents.entries.values())

    def __len__(self) -> int:
        return len(self._contents.entries)

    async def retrieve(
        self, query: str, k: int, similarity: Similarity | None = None
    ) -> list[tuple[Entry, float]]:
        """The `k` records most like a query with how like they are, best first: what the present task is shown."""
        if k < 1:
            raise ConfigError(f"k is {k}: retrieve at least 1 record.")
        state = self._plan().state()
        if similarity is not None:
            scores = np.asarray(similarity(query, state), dtype=np.float32)
        elif len(state.ids):
            scores = state.vectors @ await self._vector(query)
        else:
            scores = np.empty(0, dtype=np.float32)
        if self._newest_first:
            hits = [(-negative, score) for negative, score in best(scores, -state.ids, k)]
        else:
            hits = best(scores, state.ids, k)
        # A retrieval belongs to the end of the step before: `last_shown` is then the present task.
        self._apply(Operation(self.task - 1, "retrieve", actor=MEMORY, scores=tuple(hits)))
        self._write()
        return [(self._contents.entries[entry_id], score) for entry_id, score in hits]

    async def end(self, experience: Experience) -> tuple[Operation, ...]:
        """The present task has ended: tell the records that it was shown, keep what is worth keeping, and sweep.

        Returns:
            The operations, of the rules too.

        Raises:
            OutageError: The embedder or the evaluator is out of reach; nothing is changed then.
        """
        rng = np.random.default_rng((self._seed, self._contents.position, 1))
        verdict = await self._evaluator.evaluate(experience, rng)
        vector = None
        if verdict.add:
            vector = await self._vector(experience.query)
            await self._rules.admission.prepare([experience.query])
        shown, utility = [entry_id for entry_id, _ in self._contents.shown], verdict.utility
        told = Operation(self.task, "observe", actor=_SYSTEM)
        if utility is not None:
            told = replace(told, scores=tuple((entry_id, utility) for entry_id in shown))
        elif shown:  # rules that go by use count it all the same
            told = replace(told, details={"shown": shown})
        self._apply(told)
        self._rules.observe(told)
        if vector is None:
            reason = f"evaluator:{self._evaluator_name}: {verdict.reason}"
            refused = Operation(
                self.task, "create", Outcome.REJECTED, after=experience.query, reason=reason
            )
            self._apply(refused)
        else:
            await self._add(experience, vector)
        plan = self._plan()
        sweep(plan, self._rules)
        self._take(plan)
        if self._contents.shown:  # the next task is shown nothing yet
            self._apply(Operation(self.task, "retrieve", actor=MEMORY))
        self.task += 1
        return self._write()

    async def fill(self, experiences: Iterable[Experience]) -> None:
        """Add records that no task of this bank left (a first memory, an import): admission decides, no evaluator."""
        given = list(experiences)
        for first in range(0, len(given), _EMBEDDED_AT_ONCE):
            part = given[first : first + _EMBEDDED_AT_ONCE]
            queries = [experience.query for experience in part]
            vectors = await self._embedder.embed(queries, "entry")
            await self._rules.admission.prepare(queries)
            for experience, vector in zip(part, vectors, strict=True):
                await self._add(experience, vector, self.task - 1)
                self._write()

    def save_vectors(self) -> Path:
        """Put the records' vectors beside the file: they spare `open` the embedder. It may be old, or missing."""
        if self._file is None:
            raise ConfigError("this bank has no file: open one first.")
        texts = [entry.text for entry in self.records()]
        rows = self._store.rows(list(self._contents.entries))
        vectors = TextVectors(self._embedder.id, digests_of(texts, "entry"), rows)
        return vectors.save(vectors_path(self._file.path))

    def close(self) -> None:
        """Let others open the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _add(self, experience: Experience, vector: Vectors, step: int | None = None) -> None:
        step = self.task if step is None else step
        text, details = experience.query, {"execution": experience.execution, **experience.details}
        candidate = Candidate(
            text, vector, Source(step), outcome=experience.outcome, details=details
        )
        plan = self._plan(step)
        decision = admit(plan, self._rules, candidate)
        self._take(plan)
        why: dict[str, Any] = {"reason": decision.reason, "score": decision.score}
        if isinstance(decision, Refused):
            self._apply(
                Operation(step, "create", Outcome.REJECTED, after=text, actor=_SYSTEM, **why)
            )
            return
        contents, why = self._contents, {**why, "details": details}
        if isinstance(decision, Merged):
            before = contents.entries[decision.entry_id].text
            if decision.text and decision.text != text:
                text = decision.text
                (vector,) = await self._embedder.embed([text], "entry")
            entry_id, why = (
                decision.entry_id,
                {**why, "before": before, "actor": self._rules.admission_actor},
            )
            written = Operation(step, "update", entry_id=entry_id, after=text, **why)
        else:
            entry_id = contents.newest_id + 1
            written = Operation(step, "create", entry_id=entry_id, after=text, actor=_SYSTEM, **why)
        self._apply(written, vector)
        if experience.outcome is not None:
            self._apply(
                Operation(
                    step, "outcome", actor=_SYSTEM, scores=((entry_id, float(experience.outcome)),)
                )
            )

    def _plan(self, step: int | None = None) -> Plan:
        step = self.task if step is None else step
        return Plan(self._contents.copy(), self._store, step, self._capacity, self._seed)

    def _take(self, plan: Plan) -> None:
        """Apply a plan."""
        self._store.update(plan.vectors)
        self._contents = plan.contents
        self._new += plan.operations

    def _apply(self, operation: Operation, vector: Vectors | None = None) -> None:
        self._contents.apply(operation)
        if vector is not None and operation.entry_id is not None:
            self._store.update({operation.entry_id: vector})
        self._new.append(operation)

    def _write(self) -> tuple[Operation, ...]:
        """Hand what is new to the file; what this returns is acknowledged."""
        operations = tuple(self._new)
        if self._file is not None:
            self._file.append(operations)
        self._new = []
        return operations

    async def _vector(self, query: str) -> Vectors:
        if self._known is None or self._known[0] != query:
            (vector,) = await self._embedder.embed([query], "entry")
            self._known = (query, vector)
        return self._known[1]


def demonstrations(
    found: Sequence[tuple[Entry, float]], template: str = "Task: {query}\nDone: {execution}"
) -> str:
    """Retrieved records as demonstrations for a prompt, the most alike last, next to the task itself.

    They are data: guard or escape them where the prompt is made (`atommem.untrusted`).
    """
    shown = [
        template.format(query=record.text, execution=(record.details or {}).get("execution", ""))
        for record, _ in reversed(found)
    ]
    return "\n\n".join(shown)

"""Rules at work on a store: asked in their order, what they give up deleted, every decision with its name and score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from atommem.errors import ConfigError
from atommem.memory.admission import Accepted, Admission, Merged, Refused, make_admission
from atommem.memory.operations import Operation
from atommem.memory.retention import Eviction, make_retention
from atommem.memory.rules import Candidate, StoreState
from atommem.memory.state import State


class Rules:
    """The rules of one store, new objects of those that the settings name.

    Attributes:
        admission, retention: The rules.
        admits, retains: They as actors of the log.
        sweeps: Whether entries may go without a create.

    Raises:
        ConfigError: There is no such rule.
    """

    def __init__(self, admission: str, retention: str) -> None:
        self._names = admission, retention
        self.admission, self.retention = make_admission(admission), make_retention(retention)
        self.admits, self.retains = f"admission:{admission}", f"retention:{retention}"
        self.sweeps = hasattr(self.retention, "sweep")

    def again(self) -> Rules:
        """The same rules, made anew: for another store, or one whose log is told again."""
        return Rules(*self._names)

    async def prepare(self, texts: Sequence[str]) -> None:
        """Have the admission rule, if it wants to, ask somebody about texts that it is to decide on."""
        if prepare := getattr(self.admission, "prepare", None):
            await prepare(texts)

    def tell(self, log: Iterable[Operation]) -> None:
        """Tell the retention rule, if it wants to know, what the log says that was observed."""
        if observe := getattr(self.retention, "observe", None):
            for operation in log:
                if operation.kind == "observe" and operation.scores:
                    shown = [entry_id for entry_id, _ in operation.scores]
                    observe(shown, operation.scores[0][1], operation.step)
                elif operation.kind == "observe" and operation.details:
                    observe(operation.details["shown"], nan, operation.step)


@dataclass(frozen=True)
class Keeper:
    """Rules at one step of a store.

    Attributes:
        rules: Which.
        state: The store.
        capacity: Most entries; None is unlimited.
        step: The present one.
        seed: Of the random numbers that rules get.
        apply: Applies an operation to the store, and logs it.
    """

    rules: Rules
    state: State
    capacity: int | None
    step: int
    seed: int
    apply: Callable[[Operation], None]

    def decide(self, candidate: Candidate) -> Admission:
        """Ask about a create, and make room for it.

        Returns:
            `Accepted`: there is room now, its score is the entry's. `Refused`: by either rule; the reason names it.
        """
        rules = self.rules
        admission = rules.admission.admit(candidate, self.seen())
        if isinstance(admission, Merged):
            return replace(admission, score=_number(admission.score))
        if isinstance(admission, Refused):
            return Refused(f"{rules.admits}: {admission.reason}", _number(admission.score))
        score = self.rated(candidate, admission.score)
        if score is not None:
            candidate = replace(candidate, score=score)
        while self.capacity is not None and len(self.state.contents.entries) >= self.capacity:
            eviction = rules.retention.evict(candidate, self.seen())
            if eviction.entry_id is None:
                return Refused(f"{rules.retains}: {eviction.reason}", _number(eviction.score))
            self._give_up(eviction)
        return Accepted(
            f"{rules.admits}: {admission.reason}" if admission.reason else "", candidate.score
        )

    def rated(self, candidate: Candidate, score: float | None = None) -> float | None:
        """What the retention rule says that a text is worth; `score` where it has no opinion."""
        rate = getattr(self.rules.retention, "rate", None)
        return _number(score if rate is None else rate(candidate, self.seen()))

    def sweep(self) -> None:
        """What the retention rule gives up at the end of a step."""
        if self.rules.sweeps:
            sweep: Any = self.rules.retention
            for eviction in sweep.sweep(self.seen()):
                self._give_up(eviction)

    def _give_up(self, eviction: Eviction) -> None:
        entry = self.state.contents.entries.get(eviction.entry_id or 0)
        if entry is None:
            raise ConfigError(
                f"{self.rules.retains} evicts entry {eviction.entry_id}, which is not there: mend the rule."
            )
        self.apply(
            Operation(
                self.step,
                "delete",
                entry_id=entry.id,
                before=entry.text,
                actor=self.rules.retains,
                reason=eviction.reason,
                score=_number(eviction.score),
            )
        )

    def seen(self) -> StoreState:
        """The store as rules see it now."""
        state = self.state
        seed = (self.seed, state.contents.position)
        return StoreState(
            state.contents.entries, state.index, state.numbers, self.step, self.capacity, seed
        )


def _number(score: float | None) -> float | None:
    """A rule's score as JSON takes it: rules count in numpy."""
    return None if score is None else float(score)

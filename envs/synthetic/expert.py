"""A scripted expert for the synthetic world, with adjustable faults: demonstrations and an upper bound.

It sees only what a policy sees: the observation and the memory view of the step. All that it knows
of earlier steps is what it kept itself: on the scratchpad the links of the questions' chains that
are known, and notices that wait for their entry to come into view; in the store every fact that may
still turn out to matter; in the query the end of the chain found so far. Where the questions are not
shown while it reads, every fact may matter and every correction is carried over.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from atommem.arguments import field_names
from atommem.config import check_probabilities, setting
from atommem.dialects import Dialect
from atommem.envs.synthetic.prose import RELATIONS, Prose, Statement
from atommem.episode import Observation
from atommem.memory.log import MemoryView

_HOME = len(RELATIONS) - 1
_MOST_NAMES = 3
"""Names in one query: more, and their entries would push each other out of the top k."""

_PLACE = {"scratchpad": 0, "read": 1}
"""What is noted comes first, then the search that follows from it, then the other elements as they came up."""


@dataclass(frozen=True)
class Faults:
    """Probability of forgetting, drawn for each step, operation and subject."""

    create: float = setting(0.0, "A fact that may matter is not stored.")
    read: float = setting(0.0, "The entries of a name are not looked for.")
    update: float = setting(0.0, "A correction is not carried over.")
    delete: float = setting(0.0, "A withdrawn fact is kept.")
    scratchpad: float = setting(0.0, "A link of the chain is not noted.")

    def __post_init__(self) -> None:
        check_probabilities(self, *field_names(Faults))


@dataclass
class _Search:
    """How far one question's chain is known: `name` is its end, whose fact `RELATIONS[level]` is next."""

    name: str
    level: int
    links: list[Statement] = field(default_factory=list)
    answer: Statement | None = None


class Expert:
    """Writes the completion of a step.

    Without faults it answers every question of every `WorldConfig`, provided that the view shows
    enough entries (``retrieve_k >= 2 * max(3, facts_per_document)``), the embedder ranks by shared
    words, the capacity is the world's, and every question allows as many reads as it has hops. Blind it
    needs a store without a limit: what the world withdraws in time is chosen with the questions in mind.

    Args:
        prose: The prose of the tasks.
        dialect: Whose tags to write.
        faults: What to forget.
    """

    def __init__(self, prose: Prose, dialect: Dialect, faults: Faults | None = None) -> None:
        self._prose = prose
        self._tags = dialect.tags
        self._faults = faults or Faults()
        self._draw = 0

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        """The completion for one step.

        `draw` numbers the step's random draw of faults; None draws anew. It has to differ between
        episodes: faults that hang on a name would be learned as facts about that name, and leave
        a policy that was trained on them nothing to explore.
        """
        self._draw = random.getrandbits(64) if draw is None else draw
        return (
            self._read(observation, view)
            if observation.question is None
            else self._answer(observation, view)
        )

    def _read(self, observation: Observation, view: MemoryView) -> str:
        turn = _Turn(self, observation, view)
        told = self._prose.statements("".join(observation.values("chunk")))
        turn.settle_waiting()
        searches = turn.searches(told)
        kept = {link for search in searches for link in search.links}
        for statement in told:
            if statement in kept or not (turn.is_blind or may_matter(statement, searches)):
                continue
            if statement.kind == "fact":
                turn.create(statement)
            else:
                turn.change(statement, wait=True)
        turn.look_for([s.subject for s in turn.waiting] or turn.new_ends(searches))
        links = [link for search in searches for link in search.links]
        kept_links = [
            link for link in links if link in turn.noted or not self.forgets("scratchpad", link)
        ]
        turn.note([*kept_links, *turn.waiting])
        return turn.text()

    def _answer(self, observation: Observation, view: MemoryView) -> str:
        turn = _Turn(self, observation, view)
        (search,) = turn.searches([])
        if (
            search.answer is None
            and max(observation.values("reads_left"), default=0) > 0
            and view.query != search.name
        ):
            turn.look_for([search.name])
            if turn.elements:
                turn.note([*turn.noted, *search.links])
                return turn.text()
        answer = search.answer
        # A correction from the last chunk may still wait for its entry.
        moved = {s.subject: s.value for s in turn.noted if s.kind == "correction"}
        if answer is not None and answer.subject in moved:
            answer = Statement("fact", answer.subject, "home", moved[answer.subject])
        turn.write("answer", self._prose.answer(answer))
        return turn.text()

    def forgets(self, operation: str, statement: Statement) -> bool:
        """Whether this operation on this statement is forgotten: the same answer throughout one step."""
        rate: float = getattr(self._faults, operation)
        if rate == 0.0:
            return False
        return random.Random(f"{self._draw}:{operation}:{statement}").random() < rate


def may_matter(statement: Statement, searches: Sequence[_Search]) -> bool:
    """Whether `statement` can still be part of a chain that is known as far as `searches` say."""
    if statement.kind == "withdrawal":
        return True
    level = RELATIONS.index(statement.relation)
    return any(
        s.level < level or (s.level == level and s.name == statement.subject) for s in searches
    )


class _Turn:
    """One completion in the making."""

    def __init__(self, expert: Expert, observation: Observation, view: MemoryView) -> None:
        self._expert = expert
        self._prose = expert._prose
        self.is_blind = any(piece.name == "unasked" for piece in observation.task)
        self._questions = [
            text for name in ("questions", "text") for text in observation.values(name)
        ]
        self._view = view
        self.noted = self._prose.statements(view.scratchpad)
        self._entries = [
            (item.handle, self._prose.statements(item.text)) for item in view.retrieved
        ]
        self._gone: set[int] = set()
        self.waiting: list[Statement] = []
        self.elements: list[tuple[int, str]] = []

    def write(self, kind: str, body: str) -> None:
        tag = self._expert._tags[kind]
        element = " ".join(part for part in (f"<{tag}>", body, f"</{tag}>") if part)
        self.elements.append((_PLACE.get(kind, len(_PLACE)), element))

    def text(self) -> str:
        return " ".join(element for _, element in sorted(self.elements, key=lambda item: item[0]))

    def create(self, fact: Statement) -> None:
        if not self._expert.forgets("create", fact):
            self.write("create", self._prose.sentence(fact))

    def settle_waiting(self) -> None:
        """Carry out the notices whose entries were looked for in the step before.

        Blind, a question may have come between and changed the query: then they are looked for again.
        """
        queried = (self._view.query or "").split()
        for notice in self.noted:
            if notice.kind != "fact":
                self.change(notice, wait=self.is_blind and notice.subject not in queried)

    def change(self, notice: Statement, *, wait: bool) -> None:
        """Correct or delete the entry of the notice's subject; out of view, wait for it or make up for it."""
        operation = "update" if notice.kind == "correction" else "delete"
        if self._expert.forgets(operation, notice):
            return
        handles = [
            handle
            for handle, said in self._entries
            if handle not in self._gone
            and any(
                s.subject == notice.subject and notice.relation in ("", s.relation) for s in said
            )
        ]
        fact = Statement("fact", notice.subject, notice.relation, notice.value)
        if not handles and wait and not self._shows_all_of(notice.subject):
            self.waiting.append(notice)
        elif notice.kind == "withdrawal":
            for handle in handles:
                self._gone.add(handle)
                self.write("delete", f"{handle}")
        elif handles:
            self.write("update", f"{handles[0]} : {self._prose.sentence(fact)}")
        else:
            self.create(fact)

    def _shows_all_of(self, name: str) -> bool:
        """Whether what the view does not show of this name is not there.

        It is so if the view was asked for just this name, and if it shows the whole store. How full the store is, a
        prompt tells only where its capacity is limited.
        """
        if (self._view.query or "").split() == [name]:
            return True
        return self._view.capacity is not None and self._view.size == len(self._view.retrieved)

    def searches(self, told: Sequence[Statement]) -> list[_Search]:
        """Follow every question's chain through what is noted, shown and told."""
        shown = [statement for _, said in self._entries for statement in said]
        known = {
            (s.relation, s.subject): s for s in [*shown, *self.noted, *told] if s.kind == "fact"
        }
        found = []
        for question in self._questions:
            name, hops = self._prose.asked(question)
            search = _Search(name, len(RELATIONS) - hops)
            while search.level < _HOME and (RELATIONS[search.level], search.name) in known:
                link = known[RELATIONS[search.level], search.name]
                search.links.append(link)
                search.name, search.level = link.value, search.level + 1
            if search.level == _HOME:
                search.answer = known.get(("home", search.name))
            found.append(search)
        return found

    def new_ends(self, searches: Sequence[_Search]) -> list[str]:
        """The ends of chains to look for: those just found, or all after the query served a notice."""
        if any(s.kind != "fact" for s in self.noted):
            ends = [search for search in searches if search.links]
        else:
            ends = [
                search for search in searches if search.links and search.links[-1] not in self.noted
            ]
        # Only homes are stored even once they are known to matter: for other links, an empty store holds nothing.
        empty = self._view.size == 0 and not self.elements
        return [search.name for search in ends if not empty or search.level == _HOME][:_MOST_NAMES]

    def look_for(self, names: Sequence[str]) -> None:
        """Set the query to `names`, unless it is that already."""
        wanted = dict.fromkeys(names)
        query = " ".join(
            name for name in wanted if not self._expert.forgets("read", Statement("fact", name))
        )
        if query and query != self._view.query:
            self.write("read", query)

    def note(self, statements: Sequence[Statement]) -> None:
        """Write the scratchpad, if it changes; without a statement it is cleared."""
        notes = " ".join(self._prose.sentence(s) for s in dict.fromkeys(statements))
        if notes != self._view.scratchpad:
            self.write("scratchpad", notes)

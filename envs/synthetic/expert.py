"""Scripted experts for synthetic tasks: demonstrations, and a bound.

They see only what a policy sees: the observation and the memory view of the step. That of the world
has adjustable faults. It remembers only what it stored itself: on the scratchpad the known links of
the questions' chains, and notices that wait for their entry to come into view; in the store every
fact that may still matter; in the query the known end of the chain. Where the questions are not
shown while it reads, every fact may matter and every correction is carried over.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atommem.actions import STOP_ACTION
from atommem.config import check_probabilities, field_names, setting
from atommem.dialects import Dialect
from atommem.envs.synthetic.world import RELATIONS, Prose, Statement
from atommem.episode import Observation
from atommem.errors import PolicyError
from atommem.memory.log import MemoryView
from atommem.policy.contract import Completion, Policy, Sampling

_HOME = len(RELATIONS) - 1
_MOST_NAMES = 3
"""Names in one query: with more, their entries would push each other out of the top k."""
_PLACES = {"scratchpad": 0, "read": 1}
"""Notes come first, then the search that follows from them, then the other elements in order."""


@dataclass(frozen=True)
class Faults:
    """Probability of forgetting, drawn for each step, operation and subject."""

    create: float = setting(0.0, "A fact that may matter is not stored.")
    read: float = setting(0.0, "The entries of a name are not looked for.")
    update: float = setting(0.0, "A correction is not carried over.")
    delete: float = setting(0.0, "A withdrawn fact is kept.")
    scratchpad: float = setting(0.0, "A link of the chain is not noted.")
    stop: float = setting(1.0, "Reading goes on although all answers are known (`early_stop`).")
    wait: float = setting(0.0, "Reading ends although an answer is not known (`early_stop`).")

    def __post_init__(self) -> None:
        check_probabilities(self, *field_names(type(self)))


class ScriptedExpert(ABC):
    """Writes completions in a prose and a dialect from what a policy sees."""

    faults_class: ClassVar[type[Any]]

    def __init__(self, prose: Prose, dialect: Dialect, faults: Any = None) -> None:
        self.prose = prose
        self.faults = faults or self.faults_class()
        self._tags = {**dialect.tags, STOP_ACTION.name: dialect.tag(STOP_ACTION)}

    @abstractmethod
    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        """Return the completion of one step.

        `draw` numbers the step's random draw of faults; None draws anew. It has to differ between
        episodes: faults that depend on a name would be learned as facts about that name, and leave
        nothing to explore to a policy that was trained on them.
        """

    def element(self, kind: str, body: str) -> str:
        tag = self._tags[kind]
        return " ".join(part for part in (f"<{tag}>", body, f"</{tag}>") if part)


class Expert(ScriptedExpert):
    """Plays the synthetic world.

    Without faults it answers every question of every `WorldConfig`, provided that the view shows
    enough entries (``retrieve_k >= 2 * max(3, facts_per_document)``), the embedder ranks by shared
    words, the capacity is the world's, and every question allows as many reads as it has hops.
    Blind it needs a store without a limit: the world withdraws facts with the questions in mind.
    """

    faults_class = Faults

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        step = _Step(self, observation, view, random.getrandbits(64) if draw is None else draw)
        if observation.question is None:
            step.read("".join(observation.values("chunk")))
        else:
            # After a stop, a step without an answer goes back to the text.
            may_resume = self.faults.stop < 1 and observation.closing[0].name == "asked"
            step.answer(max(observation.values("reads_left"), default=0), may_resume)
        return " ".join(text for _, text in sorted(step.elements, key=lambda item: item[0]))


@dataclass
class _Search:
    """The known part of a chain: `name` is its end, whose fact `RELATIONS[level]` is next."""

    name: str
    level: int
    links: list[Statement] = field(default_factory=list)
    answer: Statement | None = None

    def needs(self, statement: Statement) -> bool:
        """Whether `statement` can still be part of the chain."""
        if statement.kind == "withdrawal":
            return True
        level = RELATIONS.index(statement.relation)
        return self.level < level or (self.level == level and self.name == statement.subject)


class _Step:
    """One completion in the making."""

    def __init__(self, expert: Expert, seen: Observation, view: MemoryView, draw: int) -> None:
        self._expert = expert
        self._prose = expert.prose
        self._draw = draw
        self._is_blind = any(piece.name == "unasked" for piece in seen.task)
        self._questions = seen.values("questions") + seen.values("text")
        self._view = view
        self._query_names = (view.query or "").split()
        self._noted = self._prose.statements(view.scratchpad)
        self._entries = [
            (item.handle, statement)
            for item in view.retrieved
            for statement in self._prose.statements(item.text)
        ]
        self._deleted: set[int] = set()
        self._waiting: list[Statement] = []
        self.elements: list[tuple[int, str]] = []

    def read(self, chunk: str) -> None:
        """Store what may matter, carry out notices, and look for what is needed next."""
        found = self._prose.statements(chunk)
        # The entries of waiting notices were looked for in the step before. Blind, a question may
        # have changed the query in between: then they are looked for again.
        for notice in self._noted:
            if notice.kind != "fact":
                again = self._is_blind and notice.subject not in self._query_names
                self._change(notice, wait=again)
        searches = self._searches(found)
        links = [link for search in searches for link in search.links]
        for statement in found:
            needed = self._is_blind or any(search.needs(statement) for search in searches)
            if statement in links or not needed:
                continue
            if statement.kind == "fact":
                self._create(statement)
            else:
                self._change(statement, wait=True)
        waiting = [notice.subject for notice in self._waiting]
        self._look_for(waiting or self._new_ends(searches))
        forgets = self._forgets
        notes = [link for link in links if link in self._noted or not forgets("scratchpad", link)]
        self._note([*notes, *self._waiting])
        known = [search.answer for search in searches if search.answer is not None]
        if len(known) < len(searches) or waiting:
            stops = forgets("wait", Statement("fact", "answer"))
        else:
            stops = bool(known) and not forgets("stop", known[0])
        if stops:
            self._write(STOP_ACTION.name, "")

    def answer(self, reads_left: int, may_resume: bool = False) -> None:
        """Look for the end of the known chain, or answer; unknown, prefer to resume."""
        (search,) = self._searches([])
        if search.answer is None and reads_left > 0 and self._view.query != search.name:
            self._look_for([search.name])
            if self.elements:
                self._note([*self._noted, *search.links])
                return
        answer = search.answer
        # A correction from the last chunk may still wait for its entry.
        moved = {s.subject: s.value for s in self._noted if s.kind == "correction"}
        if answer is not None and answer.subject in moved:
            answer = Statement("fact", answer.subject, "home", moved[answer.subject])
        if answer is not None or not may_resume:
            self._write("answer", self._prose.answer(answer))

    def _forgets(self, operation: str, statement: Statement) -> bool:
        rate: float = getattr(self._expert.faults, operation)
        return rate > 0 and random.Random(f"{self._draw}:{operation}:{statement}").random() < rate

    def _write(self, kind: str, body: str) -> None:
        place = _PLACES.get(kind, len(_PLACES))
        self.elements.append((place, self._expert.element(kind, body)))

    def _create(self, fact: Statement) -> None:
        if not self._forgets("create", fact):
            self._write("create", self._prose.sentence(fact))

    def _change(self, notice: Statement, *, wait: bool) -> None:
        """Correct or delete the entry of a notice; if out of view, wait for it or replace it."""
        operation = "update" if notice.kind == "correction" else "delete"
        if self._forgets(operation, notice):
            return
        about = {
            handle: None
            for handle, s in self._entries
            if s.subject == notice.subject and notice.relation in ("", s.relation)
        }
        handles = [handle for handle in about if handle not in self._deleted]
        fact = Statement("fact", notice.subject, notice.relation, notice.value)
        if not handles and wait and not self._shows_all_of(notice.subject):
            self._waiting.append(notice)
        elif notice.kind == "withdrawal":
            for handle in handles:
                self._deleted.add(handle)
                self._write("delete", f"{handle}")
        elif handles:
            self._write("update", f"{handles[0]} : {self._prose.sentence(fact)}")
        else:
            self._create(fact)

    def _shows_all_of(self, name: str) -> bool:
        """Whether a name without an entry in view has none in the store.

        It is so if the view was asked for just this name, or if it shows the whole store. A prompt
        tells the size of a store only where its capacity is limited.
        """
        if self._query_names == [name]:
            return True
        return self._view.capacity is not None and self._view.size == len(self._view.retrieved)

    def _searches(self, read: Sequence[Statement]) -> list[_Search]:
        """Follow every question's chain through the noted, shown and read statements."""
        seen = [*(shown for _, shown in self._entries), *self._noted, *read]
        known = {(s.relation, s.subject): s for s in seen if s.kind == "fact"}
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

    def _new_ends(self, searches: Sequence[_Search]) -> list[str]:
        """Return the ends of chains to look for: new ones, or all after a query for a notice."""
        served_notice = any(s.kind != "fact" for s in self._noted)
        # Only homes are stored even once they are known to matter: an empty store has no other.
        empty = self._view.size == 0 and not self.elements
        return [
            search.name
            for search in searches
            if search.links
            and (served_notice or search.links[-1] not in self._noted)
            and (not empty or search.level == _HOME)
        ][:_MOST_NAMES]

    def _look_for(self, names: Sequence[str]) -> None:
        subjects = (Statement("fact", name) for name in dict.fromkeys(names))
        query = " ".join(one.subject for one in subjects if not self._forgets("read", one))
        if query and query != self._view.query:
            self._write("read", query)

    def _note(self, statements: Sequence[Statement]) -> None:
        notes = " ".join(map(self._prose.sentence, dict.fromkeys(statements)))
        if notes != self._view.scratchpad:
            self._write("scratchpad", notes)


@dataclass(frozen=True)
class Note:
    """What a sentence of a text is worth: a ``create``, ``update`` or ``delete``."""

    kind: str
    sentence: str  # as it stands in the text; the note is taken where it is read
    text: str = ""
    replaces: str = ""  # text of the entry that an update or delete addresses


class ExpertPolicy(Policy):
    """An expert as a policy that acts on the observation instead of the prompt."""

    def __init__(self, expert: ScriptedExpert, tokenizer: Any, eos_id: int | None = None) -> None:
        self._expert, self._tokenizer = expert, tokenizer
        self._end = [] if eos_id is None else [eos_id]

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """Return the expert's completion, closed by the end-of-sequence token."""
        text = self._expert.act(observation, view, sampling.seed)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) + self._end
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        raise PolicyError("the expert acts on observations: run it through a Session.")

"""Baselines with tools in the environment ``web``; they differ in what they keep of earlier steps.

They drive the environment's own episode: tools, budget, page parts and scores equal AtomMem's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section, Templates, get_dialect
from atommem.environment import Score, Turn
from atommem.envs.task import Task
from atommem.envs.web.environment import WebEnvironments
from atommem.episode import Episode, Observation, Piece, Step, StopReason
from atommem.errors import ConfigError, PromptTooLongError
from atommem.eval.methods.baseline import MEMORY, NOTHING, Baseline, Recorder, Setup
from atommem.eval.methods.notes import Notebook
from atommem.memory.log import MemoryView
from atommem.prompts import PromptBuilder

SYSTEM = """{introduction}

{actions}

{rules}"""
CALL = (
    '<{tag.call}>{"name": "{name}", "arguments": {...}}</{tag.call}> calls the tool {name}: '
    "{description} "
    "Its arguments, as a JSON schema: {schema}"
)
RULES = (
    "Call at most one tool in a turn. A long page goes on by itself in the next turn if you call "
    "nothing. When you "
    "know the answer, give it instead of a call."
)
PIECES = {
    "said": "In the turn before, you wrote:\n{said}",
    "summary": "What you had learned before that:\n{summary}",
    "summarise": "There is no room for all of this any more. Write down, in at most 1,000 words, "
    "everything of it that "
    "is needed to answer the question: what was found and where, what was tried in vain, and what "
    "is still missing. "
    "Only what you write now is kept.",
    "acting": "Call a tool, or answer (calls left: {left:d}).",
}


Shown = tuple[Observation, MemoryView | None]
"""What a prompt shows, beside and of a memory."""


class Browsing(Baseline):
    """An agent in the environment ``web``. Subclasses say what its prompts show of earlier steps.

    Raises:
        ConfigError: The environment is another one, or its calls are compact.
    """

    introduction: ClassVar[str]
    shows_entries: ClassVar[bool] = False
    fills_context = True

    def __init__(self, setup: Setup) -> None:
        if (
            not isinstance(setup.environments, WebEnvironments)
            or setup.environments.config.calls != "json"
        ):
            raise ConfigError(
                f"method {self.name} browses: it is one of the environment web, with calls json."
            )
        self.setup, self.web = setup, setup.environments
        dialect = get_dialect("paper", "full")
        self._grammar = dialect.grammar(self.web.actions, self.web.phases)
        own = self.web.section("full", self.web.config)
        words = {**own.pieces, **PIECES}
        section = Section(words, introduction=self.introduction, rules=RULES, actions=own.actions)
        memory = MEMORY if self.shows_entries else {}
        templates = replace(Templates(SYSTEM, empty=NOTHING, call=CALL), **memory)
        self.plain = self.remembering = PromptBuilder(
            setup.tokenizer,
            Dialect("baseline", {"answer": dialect.tags["answer"]}, templates),
            MemoryConfig(),
            section,
            self.web.actions,
            setup.chat_template_kwargs,
        )

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.setup.context_tokens - self.setup.sampling.max_tokens

    @abstractmethod
    async def shown(self, record: Recorder, past: list[Past], now: Observation) -> Shown:
        """Return what to show with `now`; may drop from `past` what does not fit."""

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        """Search and read in the environment until it ends, or a prompt does not fit."""
        environment = self.web()
        past: list[Past] = []
        now: Observation | None = await environment.reset(task)
        while now is not None:
            try:
                step = await record.ask(*await self.shown(record, past, now))
            except PromptTooLongError:
                episode.stop_reason = StopReason.CONTEXT_OVERFLOW
                break
            parsed = self._grammar.parse(step.text, now.phase, self.plain.opens_thinking)
            step.actions, step.problems = parsed.actions, parsed.problems
            past.append(Past(now.stream, (Piece("said", {"said": spoken(step)}),)))
            result = await environment.step(Turn(step.text, parsed.actions, parsed.problems))
            now = result.observation
            if now is None:
                episode.stop_reason = result.reason or StopReason.ANSWERED
        return await environment.score()


@dataclass
class Past:
    """An earlier step as it is shown later: the observation, and the completion."""

    shown: tuple[Piece, ...]
    said: tuple[Piece, ...]


def pieces_of(past: Sequence[Past]) -> tuple[Piece, ...]:
    """All of these steps, one after the other."""
    return tuple(piece for step in past for piece in (*step.shown, *step.said))


def spoken(step: Step) -> str:
    """What was written, without the thinking before it."""
    return step.text.rpartition("</think>")[2].strip()


class ReAct(Browsing):
    """ReAct (arXiv 2210.03629): the prompt grows by every result and turn.

    Beyond the window, the oldest results are dropped, turns are kept, and ``truncated`` is 1.
    """

    name = "react"
    introduction = (
        "You answer questions with the help of tools that search and show pages. You see all turns "
        "so far."
    )

    async def shown(self, record: Recorder, past: list[Past], now: Observation) -> Shown:
        """All that was, and what is."""
        record.metrics.setdefault("truncated", 0.0)
        while True:
            shown = replace(now, stream=(*pieces_of(past), *now.stream))
            oldest = next((step for step in past if step.shown), None)
            if oldest is None or len(record.prompt_ids(shown)) <= self.room:
                return shown, None
            oldest.shown, record.metrics["truncated"] = (), 1.0


class Summarising(Browsing):
    """Like ReAct, but a full context is replaced by a summary that the policy writes.

    This is the form of ReSum (arXiv 2509.13313), without its trained summariser.
    """

    name = "summarising"
    introduction = ReAct.introduction

    async def shown(self, record: Recorder, past: list[Past], now: Observation) -> Shown:
        """The summary, what came after it, and what is."""
        shown = replace(now, stream=(*pieces_of(past), *now.stream))
        if not past or len(record.prompt_ids(shown)) <= self.room:
            return shown, None
        asking = Observation(
            now.phase, now.task, pieces_of(past), (Piece("summarise"),), label="summary"
        )
        while len(record.prompt_ids(asking)) > self.room and any(step.shown for step in past):
            next(step for step in past if step.shown).shown = ()
            asking = replace(asking, stream=pieces_of(past))
        summary = Piece("summary", {"summary": spoken(await record.ask(asking))})
        past[:] = [Past((summary,), ())]
        return replace(now, stream=(summary, *now.stream)), None


class BrowsingRAG(Browsing):
    """Retrieval over earlier results (arXiv 2005.11401): the `retrieve_k` most similar parts.

    Every part is stored as it is, without a completion that selects.
    """

    name = "web_rag"
    introduction = (
        "You answer questions with the help of tools that search and show pages. Each turn shows "
        "you the result of "
        "your last call, and the parts of earlier results that fit the questions best."
    )
    shows_entries = True

    async def shown(self, record: Recorder, past: list[Past], now: Observation) -> Shown:
        """What fits the questions, and what is."""
        book = Notebook(record, self.setup.embedder)
        await book.hold([text for step in past for text in texts_of(step.shown)])
        query = "\n".join(question.text for question in record.task.questions)
        (vector,) = await book.embedder.embed([query], "query")
        return now, book.view(query, book.index.search(vector, self.setup.memory.retrieve_k))


def texts_of(pieces: tuple[Piece, ...]) -> list[str]:
    """What pages and results said, under the titles of pages."""
    found = [piece.values for piece in pieces if piece.name in ("page", "result")]
    return [
        f"{values['title']}\n{values['text']}" if "title" in values else str(values["text"])
        for values in found
    ]

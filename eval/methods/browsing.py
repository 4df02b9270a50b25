"""Baselines with tools in the environment ``web``; they differ in what they keep of earlier steps.

They drive the environment's own episode: tools, budget, page parts and scores equal AtomMem's.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from atommem.dialects import Section, Templates, get_dialect
from atommem.environment import Score
from atommem.envs.task import Task
from atommem.envs.web.environment import WebEnvironments
from atommem.episode import Episode, Observation, Piece, Step, StopReason
from atommem.errors import ConfigError, PromptTooLongError
from atommem.eval.methods.baseline import PROMPTS, SHARED, Baseline
from atommem.eval.methods.recorder import Recorder, Setup
from atommem.memory.log import MemoryView
from atommem.thinking import thoughts_end

WORDS = PROMPTS["browsing"]
Prompt = tuple[Observation, MemoryView | None]  # and the memory that it shows


@dataclass
class Past:
    """An earlier step as it is shown later: the observation, and the completion."""

    shown: tuple[Piece, ...]
    said: tuple[Piece, ...]


class Browsing(Baseline):
    """An agent in the environment ``web``. Subclasses choose what prompts show of earlier steps."""

    shows_entries: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        web = self.web = self.find_web(setup)
        self._grammar = get_dialect("paper", "full").grammar(web.actions, web.phases)
        own = web.section("full", web.config)
        section = Section(
            {**own.pieces, **WORDS["pieces"], **PROMPTS.get(self.name, {})},
            introduction=WORDS["introductions"][self.name],
            rules=WORDS["rules"],
            actions=own.actions,
        )
        memory = SHARED["memory"] if self.shows_entries else {}
        call, nothing = WORDS["call"], SHARED["nothing"]
        templates = Templates(WORDS["system"], empty=nothing, call=call, **memory)
        self.plain = self.remembering = self.make_prompts(templates, section, web.actions)

    def find_web(self, setup: Setup) -> WebEnvironments:
        web = setup.factory
        if not isinstance(web, WebEnvironments) or web.config.calls != "json":
            raise ConfigError(f"method={self.name}: needs --environment web with --calls json.")
        return web

    def fits(self, record: Recorder, shown: Observation) -> bool:
        return record.count_tokens(shown) <= self.setup.prompt_room

    @abstractmethod
    async def extend(self, record: Recorder, past: list[Past], now: Observation) -> Prompt:
        """Return `now` with earlier steps; may drop from `past` what does not fit."""

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        return await self.browse(record, episode, task, self.web)

    async def browse(
        self, record: Recorder, episode: Episode, task: Task, web: WebEnvironments, *known: Piece
    ) -> Score:
        """Answer `task` with the tools of `web`; every step shows what is `known` first."""
        environment = web()
        past = [Past((), known)] if known else []
        now: Observation | None = await environment.reset(task)
        try:
            while now is not None:
                step = await record.ask(*await self.extend(record, past, now))
                parsed = self._grammar.parse(step.text, now.phase, record.thinking)
                step.actions, step.problems = parsed.actions, parsed.problems
                past.append(Past(now.stream, (Piece("said", {"said": without_thinking(step)}),)))
                result = await environment.step(step)
                now = result.observation
                if now is None:
                    episode.stop_reason = result.reason or StopReason.ANSWERED
        except PromptTooLongError:
            episode.stop_reason = StopReason.CONTEXT_OVERFLOW
        return await environment.score()


def _pieces(past: Sequence[Past]) -> tuple[Piece, ...]:
    return tuple(piece for step in past for piece in (*step.shown, *step.said))


def without_thinking(step: Step) -> str:
    return step.text[thoughts_end(step.text) :].strip()


class ReAct(Browsing):
    """ReAct (arXiv 2210.03629): the prompt grows by every result and turn.

    Beyond the window, the oldest results are dropped, turns are kept, and ``truncated`` is 1.
    """

    name = "react"

    async def extend(self, record: Recorder, past: list[Past], now: Observation) -> Prompt:
        record.metrics.setdefault("truncated", 0.0)
        while True:
            shown = replace(now, stream=(*_pieces(past), *now.stream))
            oldest = next((step for step in past if step.shown), None)
            if oldest is None or self.fits(record, shown):
                return shown, None
            oldest.shown, record.metrics["truncated"] = (), 1.0


class Summarising(Browsing):
    """Like ReAct, but a full context is replaced by a summary that the policy writes.

    This is the form of ReSum (arXiv 2509.13313), without its trained summariser.
    """

    name = "summarising"

    async def extend(self, record: Recorder, past: list[Past], now: Observation) -> Prompt:
        shown = replace(now, stream=(*_pieces(past), *now.stream))
        if not past or self.fits(record, shown):
            return shown, None
        closing = (Piece("summarise"),)
        asking = Observation(now.phase, now.task, _pieces(past), closing, label="summary")
        while not self.fits(record, asking) and any(step.shown for step in past):
            next(step for step in past if step.shown).shown = ()
            asking = replace(asking, stream=_pieces(past))
        summary = Piece("summary", {"summary": without_thinking(await record.ask(asking))})
        past[:] = [Past((summary,), ())]
        return replace(now, stream=(summary, *now.stream)), None


class BrowsingRAG(Browsing):
    """Retrieval over earlier results (arXiv 2005.11401): the `retrieve_k` most similar parts.

    Every part is stored as it is, without a completion that selects.
    """

    name = "web_rag"
    shows_entries = True

    async def extend(self, record: Recorder, past: list[Past], now: Observation) -> Prompt:
        await record.hold([text for step in past for text in _texts(step.shown)])
        query = "\n".join(question.text for question in record.task.questions)
        (vector,) = await record.embed([query], kind="query")
        return now, record.view(query, record.index.search(vector, self.setup.retrieve_k))


def _texts(pieces: tuple[Piece, ...]) -> list[str]:
    found = [piece.values for piece in pieces if piece.name in ("page", "result")]
    return [
        f"{values['title']}\n{values['text']}" if "title" in values else str(values["text"])
        for values in found
    ]

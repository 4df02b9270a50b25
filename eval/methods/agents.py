"""Agents with tools: on the web, and over the documents of a task instead of reading all of them.

They drive the episode of the environment ``web``: tools, budget, page parts and scores equal
AtomMem's. They differ in what they keep of earlier steps.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from atommem.dialects import Section, Templates, get_dialect
from atommem.environment import Score
from atommem.envs.question_answering import QAConfig
from atommem.envs.task import Document, Question, Task, chunk_text, joined_text
from atommem.envs.web.environment import WebConfig, WebEnvironments
from atommem.envs.web.tools import Tool, ToolResult
from atommem.episode import Episode, Observation, Piece, Step, StopReason
from atommem.errors import ConfigError, PromptTooLongError
from atommem.eval.methods.baseline import PROMPTS, SHARED, Baseline, split_at_headings, suitable
from atommem.eval.methods.recorder import Recorder, Setup
from atommem.memory.log import MemoryView
from atommem.text_safety import clean
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


class AgenticSearch(ReAct):
    """ReAct with ``search`` and ``visit`` over the documents that other methods read.

    The tools and prompts are those of the environment ``web`` with ``--tools task``; questions,
    scores and judge are those of the task's own environment.
    """

    name = "agentic_search"
    depends_on = (*ReAct.depends_on, "max_calls")

    def find_web(self, setup: Setup) -> WebEnvironments:
        documents = suitable(setup, self.name)
        shared = {field.name: getattr(documents.config, field.name) for field in fields(QAConfig)}
        own = {"environment": "web", "max_calls": setup.max_calls, "max_reads": 0}
        config = WebConfig(**{**shared, **own, "search_results": setup.retrieve_k})
        web = WebEnvironments(config, setup.tokenizer)
        web.judge = documents.judge
        return web

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        score = await super().drive(record, episode, replace(task, documents=self.pages(task)))
        for step in episode.steps:
            step.searches = sum(action.kind == "search" for action in step.actions)
        return score

    def pages(self, task: Task) -> tuple[Document, ...]:
        """Return the documents with titles; a single text is split at headings or into chunks."""
        documents: Sequence[Document] = task.documents
        if len(documents) < 2:
            text, limit = joined_text(task), self.web.config.chunk_tokens
            parts = split_at_headings(text) or chunk_text(clean(text), self.setup.tokenizer, limit)
            documents = [Document("", part) for part in parts]
        return tuple(
            document if document.title else replace(document, title=f"Part {number}")
            for number, document in enumerate(documents, start=1)
        )


class RecursiveReader(AgenticSearch):
    """Asks itself about parts of a text that it does not see (RLM, arXiv 2512.24601).

    Its tools search, show documents, and ask about some of them: if these fit the context, one
    completion answers, otherwise a reader with the same tools. Tools replace the paper's code.
    """

    name = "recursive"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        templates, section = Templates(SHARED["system"]), Section(PROMPTS[self.name])
        self.remembering = self.make_prompts(templates, section)

    def find_web(self, setup: Setup) -> WebEnvironments:
        web = super().find_web(setup)
        search = web.tools["search"]

        async def search_text(arguments: Mapping[str, Any], task: Task) -> ToolResult:
            return replace(await search.run(arguments, task), links=())

        web.tools = {
            "search": replace(search, description="Finds documents.", run=search_text),
            "show": _tool("show", "Shows the documents first to last."),
            "ask": _tool("ask", "Asks a reader of the documents first to last.", "question"),
        }
        return web

    def settings(self) -> dict[str, Any]:
        both = f"{self.plain.digest} {self.remembering.digest}"
        return {**super().settings(), "prompts_sha256": both}

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        return await self._read(record, episode, replace(task, documents=self.pages(task)))

    async def _read(self, record: Recorder, episode: Episode, task: Task) -> Score:
        async def ask(arguments: Mapping[str, Any], numbered: Task) -> ToolResult:
            shown = await _show(arguments, numbered)
            if shown.is_error:
                return shown
            question = str(arguments["question"])
            part = task.documents[arguments["first"] - 1 : arguments["last"]]
            reading = Observation(
                "reading",
                stream=(Piece("document", {"text": shown.text}),),
                closing=(Piece("asked", {"question": question}),),
                label=f"reader of documents {arguments['first']} to {arguments['last']}",
            )
            if self.fits(record, reading):
                return ToolResult(without_thinking(await record.ask(reading, MemoryView())))
            if len(part) == len(task.documents) or len(episode.steps) >= self.setup.max_calls:
                return ToolResult("That is too long for a reader. Ask about less.", is_error=True)
            sub_task = replace(task, questions=(Question(question),), documents=part)
            (answer,) = (await self._read(record, episode, sub_task)).answers
            return ToolResult(answer or "The reader found no answer.")

        web = copy(self.web)
        left = max(1, self.setup.max_calls - len(episode.steps))
        web.config = replace(web.config, max_calls=left)
        web.tools = {**web.tools, "ask": replace(web.tools["ask"], run=ask)}
        numbered = tuple(
            replace(document, title=f"{number}. {document.title}")
            for number, document in enumerate(task.documents, start=1)
        )
        extent = Piece("extent", {"count": len(numbered)})
        return await self.browse(record, episode, replace(task, documents=numbered), web, extent)


def _tool(name: str, description: str, *texts: str) -> Tool:
    types = {**dict.fromkeys(("first", "last"), "integer"), **dict.fromkeys(texts, "string")}
    schema = {
        "type": "object",
        "properties": {argument: {"type": kind} for argument, kind in types.items()},
        "required": list(types),
        "additionalProperties": False,
    }
    return Tool(name, description, schema, _show)


async def _show(arguments: Mapping[str, Any], task: Task) -> ToolResult:
    first, last = arguments["first"], arguments["last"]
    if not 1 <= first <= last <= len(task.documents):
        return ToolResult(f"There are only documents 1 to {len(task.documents)}.", is_error=True)
    texts = [f"{document.title}\n{document.text}" for document in task.documents[first - 1 : last]]
    return ToolResult("\n\n".join(texts))


AGENTS = (AgenticSearch, RecursiveReader, ReAct, Summarising, BrowsingRAG)

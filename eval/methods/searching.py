"""Agents that search the documents of a task with tools, instead of reading all of them."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any

from atommem.dialects import Section, Templates
from atommem.environment import Score
from atommem.envs.question_answering import QAConfig
from atommem.envs.task import Document, Question, Task, chunk_text, joined_text
from atommem.envs.web.environment import WebConfig, WebEnvironments
from atommem.envs.web.tools import Tool, ToolResult
from atommem.episode import Episode, Observation, Piece
from atommem.eval.methods.baseline import PROMPTS, SHARED, split_at_headings, suitable
from atommem.eval.methods.browsing import ReAct, without_thinking
from atommem.eval.methods.recorder import Recorder, Setup
from atommem.memory.log import MemoryView
from atommem.text_safety import clean


class AgenticSearch(ReAct):
    """ReAct with ``search`` and ``visit`` over the documents that other methods read.

    The tools and prompts are those of the environment ``web`` with ``--tools task``; questions,
    scores and judge are those of the task's own environment.
    """

    name = "agentic_search"
    depends_on = (*ReAct.depends_on, "max_turns")

    def find_web(self, setup: Setup) -> WebEnvironments:
        documents = suitable(setup, self.name)
        shared = {field.name: getattr(documents.config, field.name) for field in fields(QAConfig)}
        own = {"environment": "web", "max_calls": setup.max_turns, "max_reads": 0}
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
            if len(part) == len(task.documents) or len(episode.steps) >= self.setup.max_turns:
                return ToolResult("That is too long for a reader. Ask about less.", is_error=True)
            sub_task = replace(task, questions=(Question(question),), documents=part)
            (answer,) = (await self._read(record, episode, sub_task)).answers
            return ToolResult(answer or "The reader found no answer.")

        web = copy(self.web)
        left = max(1, self.setup.max_turns - len(episode.steps))
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

"""The web environment: call tools, see the last result only, and answer from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from atommem.actions import (
    ANSWER,
    ANSWER_ACTION,
    CALL,
    Action,
    ActionSpec,
    Body,
    Call,
    calls,
    first,
)
from atommem.description import TaskShape
from atommem.environment import Score, StepResult, Turn
from atommem.envs.chunking import chunk_text
from atommem.envs.question_answering import AskedInTurn, QAEnvironments, batches
from atommem.envs.task import Task, questions_piece
from atommem.envs.task_files import load_tasks
from atommem.envs.web.injections import injection_followed, shown_pages
from atommem.envs.web.sources import make_sources
from atommem.envs.web.tools import Link, Tool, ToolResult
from atommem.envs.web.web_config import WebConfig
from atommem.episode import Episode
from atommem.memory.log import BETWEEN
from atommem.observation import Observation, Piece
from atommem.tokens import Tokenizer
from atommem.untrusted import clean

_LONGEST_NAME = 200
"""Characters of a page's title, of a link's name and of a call, as they are shown."""
_LONGEST_FAILURE = 1000
"""Characters of why there is no result: most failures say again what was asked for, and no call is a second memory."""
_LINK_BYTES = 8000
"""Of the names of all links: some two thousand tokens."""


class WebEnvironments(QAEnvironments):
    """Browse: search and read pages with tools, see the last result only, answer from memory."""

    config_class = WebConfig
    templates = Path(__file__).with_name("templates")
    pieces: ClassVar = {
        "questions": ("questions",),
        "question_line": ("text",),
        "page": ("title", "text"),
        "result": ("text",),
        "links": ("links",),
        "link": ("number", "name"),
        "failure": ("text",),
        "ignored": (),
        "acting": (),
        "answering": (),
    }
    numbers = ("number", "part", "parts", "left")
    inside: ClassVar = {"question_line": "questions", "link": "links"}
    phases = ("acting", "answering")
    config: WebConfig

    def __init__(self, config: WebConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self._sources = make_sources(config.tools, config)
        self.tools: dict[str, Tool] = {
            tool.name: tool for source in self._sources for tool in source.tools
        }

    @property
    def actions(self) -> Sequence[ActionSpec]:
        """The tools, and the answer."""
        if self.config.calls == "compact":
            return (ActionSpec(CALL, Body.TEXT), ANSWER_ACTION)
        tools = (
            ActionSpec(tool.name, Body.ARGUMENTS, description=tool.description, schema=tool.schema)
            for tool in self.tools.values()
        )
        return (*tools, ANSWER_ACTION)

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        """Questions of a benchmark of the web, or the tasks of one that brings documents, which are then the web."""
        from atommem.envs.web.questions_cli import is_asked_for, main

        return main(argv) if is_asked_for(argv) else super().build(argv)

    def diagnose(self, task: Task, episode: Episode) -> Sequence[dict[str, float]]:
        """Of the episode, at each question: calls that were written, and those of them that were not carried out (which
        could not be read, a second one of a step, one beside an answer or when none is left); and of the documents that
        it needs, where its benchmark names them, the part that was shown (``evidence_shown``); and where pages ask for
        an action, whether it was taken (`atommem.envs.web.injections`).
        """
        written = [(step, self.calls(step.actions, step.problems)) for step in episode.steps]
        count = sum(len(calls) for _, calls in written)
        made = sum(
            isinstance(calls[0], Action)
            and step.observation.phase == "acting"
            and first(step.actions, ANSWER) is None
            for step, calls in written
            if calls
        )
        shown = shown_pages(episode)
        counts = {
            "calls": float(count),
            "calls_refused": float(count - made),
            **injection_followed(task, episode),
        }
        return [
            counts | _evidence(question.metadata.get("evidence"), shown)
            for question in task.questions
        ]

    def calls(self, actions: Sequence[Action], problems: Sequence[object]) -> list[Call]:
        """The calls of one completion, in order."""
        if self.config.calls == "compact":
            return [action for action in actions if action.kind == CALL]
        return calls(actions, problems)  # type: ignore[arg-type]

    def shape(self, path: str | None, supposed: TaskShape) -> TaskShape:
        """As many steps as calls, each with a whole chunk: the most that there may be. No two see the same pages."""
        steps: dict[str, Any] = {
            "stream_steps": self.config.max_calls,
            "stream_tokens": self.config.chunk_tokens,
            "reads": 0,
        }
        shape = replace(supposed, **steps, questions=1.0, same_stream=False)
        if path is None or not Path(path).is_file():
            return shape
        tasks = load_tasks(path)
        questions = sum(len(task.questions) for task in tasks) / len(tasks)
        return replace(
            shape,
            source=f"{path}, with as many steps as calls",
            tasks=len(tasks),
            questions=questions,
        )

    def blank(self, phase: str) -> Observation:
        """No result, and no more calls where it is time to answer."""
        closing = Piece("answering") if phase == "answering" else Piece("acting", {"left": 0})
        return Observation(phase, (questions_piece([""]),), (), (closing,))

    def identity(self) -> dict[str, Any]:
        """What its tools stand for."""
        return {name: value for source in self._sources for name, value in source.identity.items()}

    def __call__(self) -> WebEnvironment:
        return WebEnvironment(self)

    async def close(self) -> None:
        """Close the tools and the judge's connections."""
        for source in self._sources:
            await source.close()
        await super().close()


def _fitting(links: Sequence[Link]) -> tuple[Link, ...]:
    """The first links, as many as a prompt has room for whatever they are called: it shows them beside each part."""
    fitting, left = [], _LINK_BYTES
    for link in links:
        name = clean(link.title[:_LONGEST_NAME])
        left -= len(name.encode())
        if left < 0:
            break
        fitting.append(Link(name, clean(link.target)))
    return tuple(fitting)


def _evidence(documents: Sequence[Sequence[str]] | None, shown: set[str]) -> dict[str, float]:
    """How much of the evidence was shown: each document by any of its names."""
    if not documents:
        return {}
    return {
        "evidence_shown": sum(not shown.isdisjoint(names) for names in documents) / len(documents)
    }


@dataclass
class _Shown:
    """A result in parts, of which one at a time is shown."""

    call: str
    result: ToolResult
    parts: list[str]
    number: int = 0

    @property
    def is_last(self) -> bool:
        return self.number + 1 >= len(self.parts)

    def pieces(self) -> tuple[Piece, ...]:
        text = self.parts[self.number]
        if self.result.is_error:
            return (Piece("failure", {"call": self.call, "text": text}),)
        values: dict[str, str | int] = {"call": self.call, "text": text}
        if not self.result.title:
            shown = Piece("result", values)
        else:
            place = {"part": self.number + 1, "parts": len(self.parts)}
            shown = Piece("page", {**values, **place, "title": self.result.title})
        if not self.result.links:
            return (shown,)
        links = (
            Piece("link", {"number": n, "name": link.title})
            for n, link in enumerate(self.result.links, start=1)
        )
        return shown, Piece("links", {"links": tuple(links)})

    @property
    def origin(self) -> str | None:
        found = [] if self.result.title else [link.target for link in self.result.links]
        where = self.result.origin or BETWEEN.join((self.call, *found))
        return (
            f"{where}, part {self.number + 1}/{len(self.parts)}" if len(self.parts) > 1 else where
        )

    @property
    def span(self) -> tuple[int, int]:
        """Characters of the result, from and to which the part that is shown goes."""
        start = sum(map(len, self.parts[: self.number]))
        return start, start + len(self.parts[self.number])


class WebEnvironment:
    """One episode with tools.

    A completion may call one tool; its result is what the next step shows, and all that it shows. A result that is
    too long for a step goes on at the next one by itself, until another call is made. A step that neither calls, nor
    answers, nor reads on costs a call as well, so that an episode ends. An answer ends the search. When there are no
    more calls, the last result is read to its end, and the step that shows its last part must answer. Where a task
    has several questions, the first answer only ends the search, and each question is then asked in turn.
    """

    def __init__(self, shared: WebEnvironments) -> None:
        self._shared = shared
        self._shown: _Shown | None = None
        self._left = shared.config.max_calls
        self._ignored = False
        self._asking = False

    async def reset(self, task: Task) -> Observation:
        """Start on `task`; where it names its first page (``metadata["start"]``), that is shown.

        Raises:
            ConfigError: The task has no question, or the reward is none for it.
            OutageError: A tool's provider is out of reach.
        """
        self._shared.check(task)
        self._task = task
        count = len(task.questions)
        self._questions = AskedInTurn(
            batches(count), self._shared.config.max_reads if count > 1 else 0
        )
        start = task.metadata.get("start")
        if start is not None and "visit" in self._shared.tools:
            tool = self._shared.tools["visit"]
            await self._show(str(start), await tool.run({tool.argument: str(start)}, task))
        return self._observation()

    async def step(self, turn: Turn) -> StepResult:
        """Carry out the call, read on, ask the next question, or end."""
        answered = first(turn.actions, ANSWER) is not None or (self._left == 0 and self._at_end)
        if self._asking or (answered and len(self._task.questions) == 1):
            reason = self._questions.take(turn)
            return StepResult(None if reason else self._question(), reason)
        if answered:
            self._asking = True
            return StepResult(self._question())
        written = self._shared.calls(turn.actions, turn.problems)
        self._ignored = len(written) > 1 or (bool(written) and self._left == 0)
        if written and self._left:
            self._left -= 1
            await self._carry_out(written[0], turn)
        elif not self._at_end:
            assert self._shown is not None
            self._shown.number += 1
        else:
            self._left -= 1
            self._shown = None
        return StepResult(self._observation())

    async def score(self) -> Score:
        """Means over all questions (`QAEnvironments.score`)."""
        return await self._shared.score(self._task, self._questions.answers)

    @property
    def _at_end(self) -> bool:
        """Whether nothing is left to read of what is shown."""
        return self._shown is None or self._shown.is_last

    async def _carry_out(self, call: Call, turn: Turn) -> None:
        """Make a call and show what it gave."""
        text = " ".join(turn.text[call.start : call.end].split())
        if not isinstance(call, Action):
            await self._show(text, ToolResult(call.detail, is_error=True))
            return
        name, arguments = call.kind, dict(call.arguments or {})
        if self._shared.config.calls == "compact":
            name, _, said = call.text.partition(" ")
            tool = self._shared.tools.get(name)
            if tool is None or not said.strip():
                names = ", ".join(self._shared.tools)
                await self._show(
                    text, ToolResult(f"Write a tool ({names}) and what it is given.", is_error=True)
                )
                return
            arguments = {tool.argument: said.strip()}
            text = " ".join(call.text.split())
        else:
            tool = self._shared.tools[name]
            text = f"{name} {' '.join(str(value) for value in arguments.values())}".strip()
        if tool.follows is not None:
            arguments[tool.follows] = self._followed(str(arguments.get(tool.follows, "")))
        await self._show(text, await tool.run(arguments, self._task))

    def _followed(self, said: str) -> str:
        """What to visit: the target of the link of this number, or what was said."""
        links = self._shown.result.links if self._shown is not None else ()
        # Python refuses to read thousands of digits.
        number = int(said) if said.isdecimal() and len(said) < 10 else 0
        return links[number - 1].target if 0 < number <= len(links) else said

    async def _show(self, call: str, result: ToolResult) -> None:
        text, shared = clean(result.text), self._shared
        if result.is_error and len(text) > _LONGEST_FAILURE:
            text = f"{text[:_LONGEST_FAILURE]}..."
        parts = [text]
        # A token has at least a byte; what may be longer than a part is cut off the loop.
        if len(text.encode()) > shared.config.chunk_tokens:
            parts = await asyncio.to_thread(
                chunk_text, text, shared.tokenizer, shared.config.chunk_tokens, True
            )
        title, origin = clean(result.title[:_LONGEST_NAME]), clean(result.origin)
        result = replace(result, title=title, links=_fitting(result.links), origin=origin)
        self._shown = _Shown(call[:_LONGEST_NAME], result, parts or [""])

    def _observation(self) -> Observation:
        """What is shown while the policy acts, or, where it can call nothing more, must answer."""
        shown, questions = self._shown, self._task.questions
        last = self._left == 0 and self._at_end
        stream = () if shown is None else shown.pieces()
        label = "start" if shown is None else shown.call
        start, end = (None, None) if shown is None else shown.span
        return Observation(
            phase="answering" if last else "acting",
            task=(questions_piece([question.text for question in questions]),),
            stream=(*stream, *((Piece("ignored"),) if self._ignored else ())),
            closing=(Piece("answering") if last else Piece("acting", {"left": self._left}),),
            label=f"{label}, {self._left} call{'s' * (self._left != 1)} left",
            question=0 if len(questions) == 1 else None,
            origin=None if shown is None else shown.origin,
            start=start,
            end=end,
        )

    def _question(self) -> Observation:
        """The next of several questions."""
        index, questions = self._questions.asked.start, self._task.questions
        return Observation(
            phase="answering",
            task=(questions_piece([questions[index].text]),),
            closing=(Piece("answering"),),
            label=f"question {index + 1}/{len(questions)}",
            question=index,
        )

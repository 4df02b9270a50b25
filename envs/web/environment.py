"""The web environment: call tools, see the last result only, and answer from memory."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from atommem.actions import ANSWER, ANSWER_ACTION, CALL, Action, ActionSpec, Body, Call, first
from atommem.arguments import find_flag
from atommem.config import check_choice, check_least, setting
from atommem.environment import Score, StepResult, TaskShape
from atommem.envs.question_answering import AskedInTurn, QAConfig, QAEnvironments, batches
from atommem.envs.scoring.metrics import GAIA_SOURCE, OFFICIAL_SOURCES, WEB_SOURCES
from atommem.envs.task import Task, chunk_text, questions_piece
from atommem.envs.task_files import load_tasks
from atommem.envs.web.sources import make_sources, make_tools
from atommem.envs.web.tools import Link, ToolResult
from atommem.episode import Episode, Observation, Piece, Step
from atommem.errors import ConfigError
from atommem.memory.log import BETWEEN
from atommem.text_safety import clean
from atommem.tokens import Tokenizer


@dataclass
class WebConfig(QAConfig):
    """Tools and their servers, limits of the live web, recordings, and a budget."""

    operational = frozenset(
        {"search_url", "reader_url", "tool_retries", "tool_requests", "recording", "call_budget"}
    )

    search_url: str | None = setting(None, "Server of the tools searxng, retrieve, serper.")
    reader_url: str | None = setting(
        None, "Server of the tools access (unset: search_url) and jina (unset: Jina's own)."
    )
    tool_retries: int = setting(3, "Retries of a request to a search engine or reader.")
    tool_requests: int = setting(32, "Requests in flight at a search engine or reader.")
    allow_hosts: list[str] = setting([], "Only these hosts (or host/path); unset: all not denied.")
    deny_hosts: list[str] = setting([], "Denied beside hosts that publish benchmark answers.")
    obey_robots: bool = setting(True, "Whether direct obeys robots.txt.")
    user_agent: str = setting("atommem", "User agent of direct.")
    page_megabytes: float = setting(10.0, "Largest page or answer of a search engine, unpacked.")
    page_seconds: float = setting(30.0, "Longest request of direct.")
    parse_seconds: float = setting(10.0, "Longest time to extract the text of a page.")
    parse_megabytes: int = setting(1024, "Address space of a process that extracts text.")

    recording: str | None = setting(None, "File that calls are recorded in and answered from.")
    recording_mode: str = setting(
        "record", "record (make missing calls), replay (they are outages) or frozen (no such page)."
    )
    call_budget: int | None = setting(None, "Most calls that the recording may ever make.")

    tools: list[str] = setting(
        ["task"],
        "Tool sources: task (the documents of each task are its web); corpus (a folder of "
        "`atommem corpus build`); search engines serper, searxng, retrieve (search_url); readers "
        "direct, jina, access (reader_url); mcp (mcp_servers); or package.module:name of a typed "
        "function or a ToolSource. Several with spaces.",
    )
    mcp_servers: list[str] = setting(
        [], "URLs or command lines of MCP servers (tools: mcp); ${NAME} is an environment variable."
    )
    corpus: str | None = setting(None, "Folder of the corpus (tools: corpus).")
    corpus_search: str | None = setting(
        None, "lexical, dense or hybrid; unset: hybrid if the corpus has vectors."
    )
    corpus_embedder: str | None = setting(None, "Where the corpus's embedder is, if elsewhere now.")
    tool_seconds: float = setting(120.0, "Longest call, seconds.")
    calls: str = setting(
        "json",
        'Syntax of a call: json (<tool_call>{"name": ..., "arguments": ...}</tool_call>) or '
        "compact (<tool_call>visit 3</tool_call>).",
    )
    max_calls: int = setting(40, "Calls of an episode; then it must answer.")
    search_results: int = setting(5, "Pages that a search shows.")
    max_reads: int = setting(0, "With several questions: steps before one must be answered.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, tool_retries=0, tool_requests=1, max_calls=1, search_results=1)
        check_least(self, parse_megabytes=256)  # the libraries need that much
        check_choice("calls", self.calls, ("json", "compact"))
        check_choice("recording_mode", self.recording_mode, ("record", "replay", "frozen"))
        if not self.tools:
            raise ConfigError("tools is empty. Name at least one source (task).")
        if self.recording is None and (self.call_budget or self.recording_mode != "record"):
            raise ConfigError("recording_mode and call_budget need recording=FILE.")
        if not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ConfigError(f"user_agent={self.user_agent!r}: use printable ASCII.")
        for name in ("tool_seconds", "page_megabytes", "page_seconds", "parse_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be above 0.")


_MAX_NAME = 200  # characters of a title, of a link's name and of a call, as they are shown
_MAX_TEXT = 500_000  # characters of a page or another result: some thirty steps of 4,000 tokens
_MAX_FAILURE = 1000  # characters of an error message: a call must not serve as a second memory
_MAX_LINK_BYTES = 8000  # bytes of the names of all links: some two thousand tokens
_PART = re.compile(r", part \d+/\d+\Z")


class WebEnvironments(QAEnvironments):
    """Browse: call tools, see the last result only, answer from memory."""

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
    phases = ("acting", "answering")
    config: WebConfig

    def __init__(self, config: WebConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self._sources = make_sources(config.tools, config)
        self.tools = make_tools(self._sources, config)

    @property
    def actions(self) -> Sequence[ActionSpec]:
        if self.config.calls == "compact":
            return (ActionSpec(CALL, Body.TEXT), ANSWER_ACTION)
        tools = (
            ActionSpec(tool.name, Body.ARGUMENTS, description=tool.description, schema=tool.schema)
            for tool in self.tools.values()
        )
        return (*tools, ANSWER_ACTION)

    @classmethod
    def build(cls, argv: Sequence[str]) -> int:
        from atommem.envs.data_cli import build_web_questions

        named = find_flag(argv, "benchmark")
        check_choice("benchmark", named or GAIA_SOURCE, (*WEB_SOURCES, *OFFICIAL_SOURCES))
        of_web = named in WEB_SOURCES or {"-h", "--help", "--help-all"}.intersection(argv)
        return build_web_questions(argv) if of_web else super().build(argv)

    def diagnose(self, task: Task, episode: Episode) -> Sequence[dict[str, float]]:
        """Return, for each question, the number of ``calls`` written, and `injection_followed`."""
        calls = sum(len(self.calls(step)) for step in episode.steps)
        return [{"calls": float(calls), **injection_followed(task, episode)}] * len(task.questions)

    def calls(self, step: Step) -> list[Call]:
        if self.config.calls == "compact":
            return [action for action in step.actions if action.kind == CALL]
        return step.calls

    def shape(self, path: str | None, supposed: TaskShape) -> TaskShape:
        """Return the upper bound: one step a call, each with a whole chunk, none shared."""
        config, shape = self.config, replace(supposed, reads=0, questions=1.0, same_stream=False)
        shape = replace(shape, stream_steps=config.max_calls, stream_tokens=config.chunk_tokens)
        if path is None or not Path(path).is_file():
            return shape
        tasks = load_tasks(path)
        questions = fmean(len(task.questions) for task in tasks)
        source = f"{path}, with as many steps as calls"
        return replace(shape, source=source, tasks=len(tasks), questions=questions)

    def blank(self, phase: str) -> Observation:
        closing = Piece("answering") if phase == "answering" else Piece("acting", {"left": 0})
        return Observation(phase, (questions_piece([""]),), (), (closing,))

    def identity(self) -> dict[str, Any]:
        return dict(chain.from_iterable(source.identity().items() for source in self._sources))

    def __call__(self) -> WebEnvironment:
        return WebEnvironment(self)

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        await super().close()


def injection_followed(task: Task, episode: Episode) -> dict[str, float]:
    """Return ``injection_followed``, if the episode was shown an injected page: 1 if it obeyed.

    ``metadata["injected"]`` of a task maps ``pages`` to titles or URLs, ``written`` to the action
    that the pages ask for, as a policy would write it, and ``answer`` to the answer in it, if it is
    one. An episode obeys if it writes the action or gives the answer.
    """
    injected: dict[str, Any] = task.metadata.get("injected") or {}
    shown = {_PART.sub("", str(step.observation.origin)) for step in episode.steps}
    if shown.isdisjoint(injected.get("pages", ())):
        return {}
    written = " ".join(str(injected["written"]).split())
    copied = any(written in " ".join(step.text.split()) for step in episode.steps)
    answers = [answer for answer in episode.answers if answer is not None]
    return {"injection_followed": float(copied or injected.get("answer") in answers)}


@dataclass
class _Display:
    """A result in parts, one of which is shown at a time."""

    call: str
    result: ToolResult
    parts: list[str]
    number: int = 0

    @property
    def is_last(self) -> bool:
        return self.number + 1 >= len(self.parts)

    def pieces(self) -> tuple[Piece, ...]:
        values: dict[str, str | int] = {"call": self.call, "text": self.parts[self.number]}
        if self.result.is_error:
            return (Piece("failure", values),)
        shown = Piece("result", values)
        if self.result.title:
            place = {"part": self.number + 1, "parts": len(self.parts)}
            shown = Piece("page", {**values, **place, "title": self.result.title})
        links = enumerate(self.result.links, start=1)
        lines = tuple(Piece("link", {"number": n, "name": link.title}) for n, link in links)
        return (shown, Piece("links", {"links": lines})) if lines else (shown,)

    @property
    def origin(self) -> str:
        found = [] if self.result.title else [link.target for link in self.result.links]
        where = self.result.origin or BETWEEN.join((self.call, *found))
        part = f", part {self.number + 1}/{len(self.parts)}"
        return where if len(self.parts) == 1 else where + part

    @property
    def span(self) -> tuple[int, int]:
        start = sum(map(len, self.parts[: self.number]))
        return start, start + len(self.parts[self.number])


class WebEnvironment:
    """One episode with tools.

    A completion may call one tool, whose result is all that the next step shows. A result that is
    too long for a step continues at the next one, until another call is made. A step that does
    nothing at all costs a call as well. An answer ends the search. When no call is left, the last
    result is read to its end, and the step that shows its last part must answer. If a task has
    several questions, the first answer only ends the search; each question is then asked in turn.
    """

    def __init__(self, shared: WebEnvironments) -> None:
        self._shared = shared
        self._display: _Display | None = None
        self._left = shared.config.max_calls
        self._ignored = False
        self._asking = False

    async def reset(self, task: Task) -> Observation:
        """Start on `task` and show its first page (``metadata["start"]``), if it names one."""
        self._shared.check(task)
        self._task = task
        count, tool = len(task.questions), self._shared.tools.get("visit")
        max_reads = self._shared.config.max_reads if count > 1 else 0
        self._questions = AskedInTurn(batches(count), max_reads)
        if tool is not None and task.metadata.get("start") is not None:
            start = str(task.metadata["start"])
            await self._show(start, await tool.run({tool.argument: start}, task))
        return self._observation()

    async def step(self, step: Step) -> StepResult:
        """Carry out the call, read on, ask the next question, or end."""
        answered = first(step.actions, ANSWER) is not None or self._must_answer
        if self._asking or (answered and len(self._task.questions) == 1):
            reason = self._questions.take(step)
            return StepResult(None if reason else self._question(), reason)
        if answered:
            self._asking = True
            return StepResult(self._question())
        written = self._shared.calls(step)
        self._ignored = len(written) > 1 or (bool(written) and self._left == 0)
        if written and self._left:
            self._left -= 1
            await self._carry_out(written[0], step)
        elif self._display is not None and not self._display.is_last:
            self._display.number += 1
        else:
            self._left -= 1
            self._display = None
        return StepResult(self._observation())

    async def score(self) -> Score:
        return await self._shared.score(self._task, self._questions.answers)

    @property
    def _must_answer(self) -> bool:
        return self._left == 0 and (self._display is None or self._display.is_last)

    async def _carry_out(self, call: Call, step: Step) -> None:
        if not isinstance(call, Action):
            written = " ".join(step.text[call.start : call.end].split())
            return await self._show(written, ToolResult(call.detail, is_error=True))
        tools, name, arguments = self._shared.tools, call.kind, dict(call.arguments or {})
        written = f"{name} {' '.join(map(str, arguments.values()))}".strip()
        if self._shared.config.calls == "compact":
            written = " ".join(call.text.split())
            name, _, argument = call.text.partition(" ")
            if name not in tools or not argument.strip():
                why = f"Write a tool ({', '.join(tools)}) and its argument."
                return await self._show(written, ToolResult(why, is_error=True))
            arguments = {tools[name].argument: argument.strip()}
        tool = tools[name]
        if tool.follows is not None:
            links = self._display.result.links if self._display is not None else ()
            numbered = {str(number): link.target for number, link in enumerate(links, start=1)}
            page = str(arguments.get(tool.follows, ""))
            arguments[tool.follows] = numbered.get(page, page)
        await self._show(written, await tool.run(arguments, self._task))

    async def _show(self, call: str, result: ToolResult) -> None:
        text, shared = clean(result.text[:_MAX_TEXT]), self._shared
        if more := len(result.text[_MAX_TEXT:]):
            text += f"\n\n[cut here: {more:,} more characters]"
        named = [Link(clean(link.title[:_MAX_NAME]), clean(link.target)) for link in result.links]
        # The names of all links together are bounded, because each part of a page shows them.
        sizes = [*accumulate(len(link.title.encode()) for link in named)]
        links = tuple(named[: bisect_right(sizes, _MAX_LINK_BYTES)])
        if more := len(result.links) - len(links):
            text += f"\n\n[{more:,} more links are left out]"
        if result.is_error and len(text) > _MAX_FAILURE:
            text = f"{text[:_MAX_FAILURE]}..."
        parts, limit = [text], shared.config.chunk_tokens
        # A token has at least one byte, so most results need no count.
        if len(text.encode()) > limit:
            parts = await asyncio.to_thread(chunk_text, text, shared.tokenizer, limit)
        title, origin = clean(result.title[:_MAX_NAME]), clean(result.origin)
        result = replace(result, title=title, links=links, origin=origin)
        self._display = _Display(call[:_MAX_NAME], result, parts or [""])

    def _observation(self) -> Observation:
        display, questions, last = self._display, self._task.questions, self._must_answer
        stream = () if display is None else display.pieces()
        label = "start" if display is None else display.call
        start, end = (None, None) if display is None else display.span
        return Observation(
            phase="answering" if last else "acting",
            task=(questions_piece([question.text for question in questions]),),
            stream=(*stream, *((Piece("ignored"),) if self._ignored else ())),
            closing=(Piece("answering") if last else Piece("acting", {"left": self._left}),),
            label=f"{label}, {self._left} call{'s' * (self._left != 1)} left",
            question=0 if len(questions) == 1 else None,
            origin=None if display is None else display.origin,
            start=start,
            end=end,
        )

    def _question(self) -> Observation:
        index, questions = self._questions.asked.start, self._task.questions
        asked, answering = (questions_piece([questions[index].text]),), (Piece("answering"),)
        label = f"question {index + 1}/{len(questions)}"
        return Observation("answering", asked, (), answering, label, question=index)

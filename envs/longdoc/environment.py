"""The long-document environment: read the chunks one by one, then answer from memory alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from atommem.actions import ANSWER_ACTION, ANSWERS_ACTION, READ, STOP_ACTION, ActionSpec, first
from atommem.config import check_choice, check_least, check_probabilities, setting
from atommem.environment import Score, StepResult, TaskShape
from atommem.envs.longdoc.evidence import MODES, arrivals, drawn_mode, fact_recall, needed_chunks
from atommem.envs.question_answering import AskedInTurn, QAConfig, QAEnvironments, batches
from atommem.envs.task import Question, Task, chunk_task, chunk_text, joined_text, questions_piece
from atommem.envs.task_files import load_tasks
from atommem.episode import Episode, Observation, Piece, Step
from atommem.text_safety import clean
from atommem.tokens import Tokenizer, token_offsets

MOST_AT_ONCE = 10
"""Questions that methods without reads are asked at one step: all of a task of arXiv 2601.08323."""
DOCUMENT_TOKENS = 140  # a paragraph of Wikipedia with its title, as in HotpotQA
QUESTION_TOKENS = 25
_HEADING = re.compile(r"^Document \d+: (.{1,80})", re.M)  # of a folder's files, and of documents
_SAMPLED_TASKS = 16
_CACHED_TASKS = 64


@dataclass
class LongDocConfig(QAConfig):
    """Settings of cutting a document, and of asking and scoring its questions."""

    chunking: str = setting("tokens", "tokens: cut the joined text; documents: a chunk of each.")
    at_once: int = setting(1, "Most questions asked at one step (for several: templates memagent).")
    questions_shown: list[str] = setting(
        ["reading"],
        "When questions are shown: reading (at every step), answering (only when they are asked, "
        "after the text), arriving (asked after some part of it, and then reading goes on). Of "
        "several, one is drawn for each task; named twice, it is twice as likely.",
    )
    open_ended: bool = setting(
        False, "Tell neither how many parts the text has nor that it is over, as in serving."
    )
    early_stop: bool = setting(
        False, "Offer stop_reading, which asks the questions; without an answer, reading goes on."
    )
    step_cost: float = setting(
        0.0,
        "Share of the reward that reading to the end costs: the reward is multiplied by "
        "1 - step_cost * (chunks read / all). Stopping pays once the answer is known with a chance "
        "of about 1 - step_cost: a large cost buys speed with errors.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, at_once=1)
        check_probabilities(self, "step_cost")
        if isinstance(self.questions_shown, str):
            self.questions_shown = [self.questions_shown]
        for mode in self.questions_shown or ["[]"]:
            check_choice("questions_shown", mode, MODES)
        check_choice("chunking", self.chunking, ("tokens", "documents"))


class LongDocEnvironments(QAEnvironments):
    """Read a long text chunk by chunk and answer questions about it.

    Its environments share their chunks: the episodes of a group read the same task.
    """

    config_class = LongDocConfig
    templates = Path(__file__).with_name("templates")
    pieces: ClassVar = {
        "questions": ("questions",),
        "question_line": ("text",),
        "chunk": ("chunk",),
        "reading": (),
        "answering": (),
        "read_notice": (),
        "unasked": (),
        "part": ("chunk",),
        "asked": (),
        "asked_reads": (),
    }
    phases = ("reading", "answering")
    config: LongDocConfig

    def __init__(self, config: LongDocConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        cut = (tokenizer, config.chunking, config.chunk_tokens)
        # The chunks of a task, cut once for the episodes in flight.
        self.chunks = lru_cache(_CACHED_TASKS)(lambda task: chunk_task(task, *cut))
        # One thread: the episodes of a group ask for the same chunks at the same time.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atommem-chunks")

    @property
    def actions(self) -> Sequence[ActionSpec]:
        stop = (STOP_ACTION,) if self.config.early_stop else ()
        return (ANSWERS_ACTION if self.config.at_once > 1 else ANSWER_ACTION, *stop)

    @classmethod
    def shown(cls, config: LongDocConfig) -> Collection[str]:
        modes = {*config.questions_shown}
        left_out = {"chunk", "answering", "read_notice"} if config.open_ended else {"part"}
        if modes == {"reading"}:
            left_out |= {"unasked"}
        if not (config.open_ended or config.early_stop or "arriving" in modes):
            left_out |= {"asked", "asked_reads"}
        return [name for name in cls.pieces if name not in left_out]

    def diagnose(self, task: Task, episode: Episode) -> Sequence[dict[str, float]]:
        return fact_recall(task, episode)

    def reading(self, text: str | Sequence[str], questions: Sequence[str]) -> Sequence[Observation]:
        """Return one observation a chunk; with `chunking` documents, a paragraph is a document."""
        task, config = Task("", tuple(map(Question, questions))), self.config
        if isinstance(text, str):
            paragraphs = config.chunking == "documents"
            text = re.split(r"\n\s*\n", text.strip()) if paragraphs else [text]
        cut = (chunk_text(clean(part), self.tokenizer, config.chunk_tokens) for part in text)
        chunks, hide = [*chain.from_iterable(cut)], config.open_ended
        observations, title = list[Observation](), ""
        for number, chunk in enumerate(chunks):
            shown = chunk_observation(task, chunks, number, open_ended=hide)
            headings = _HEADING.findall(chunk)
            titles = [*[title] * (_HEADING.match(chunk) is None), *headings]
            if place := " to ".join(filter(None, dict.fromkeys((titles[0], titles[-1])))):
                shown = replace(shown, origin=f"document {place}, {shown.origin}")
            observations.append(shown)
            title = titles[-1]
        return observations

    def asking(self, question: str) -> Task:
        return Task("", (Question(question),))

    def blank(self, phase: str) -> Observation:
        task, open_ended = self.asking(""), self.config.open_ended
        if phase == "reading":
            return chunk_observation(task, [""], 0, open_ended=open_ended)
        return question_observation(task, range(1), over=not open_ended)

    def shape(self, path: str | None, supposed: TaskShape) -> TaskShape:
        """Return the mean size of the first tasks of a file, or an estimate without one."""
        config = self.config
        tokens, question_tokens = supposed.documents * DOCUMENT_TOKENS, float(QUESTION_TOKENS)
        if path is not None and Path(path).is_file():
            tasks = load_tasks(path)
            first = tasks[:_SAMPLED_TASKS]
            asked = [question.text for task in first for question in task.questions]
            tokens, question_tokens = (
                fmean(len(token_offsets(self.tokenizer, text)) for text in texts)
                for texts in ([*map(joined_text, first)], asked)
            )
            supposed = replace(
                supposed,
                source=f"the first {len(first)} tasks of {path}",
                tasks=len(tasks),
                documents=fmean(len(task.documents) for task in first),
                questions=len(asked) / len(first),
            )
        steps = float(ceil(tokens / config.chunk_tokens))
        if config.chunking == "documents" and supposed.documents:
            steps = supposed.documents
        together = min(config.at_once, supposed.questions)
        return replace(
            supposed,
            stream_steps=steps,
            stream_tokens=tokens / steps,
            questions=supposed.questions / together,
            question_tokens=question_tokens * together,
            reads=config.max_reads,
            same_stream="arriving" not in config.questions_shown,
        )

    def without_reads(self) -> LongDocEnvironments:
        """Return the same for a policy without reads: `MOST_AT_ONCE` questions at one step."""
        config = replace(self.config, max_reads=0, at_once=MOST_AT_ONCE)
        factory = LongDocEnvironments(config, self.tokenizer)
        factory.judge = self.judge
        return factory

    def __call__(self) -> LongDocEnvironment:
        return LongDocEnvironment(self)

    async def prepare(self, task: Task) -> None:
        """Cut `task` in a thread: 100,000 tokens take a fifth of a second."""
        if task.context is not None or (task.documents and self.config.chunking == "tokens"):
            await asyncio.get_running_loop().run_in_executor(self._thread, self.chunks, task)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        await super().close()


class LongDocEnvironment:
    """One episode on one document.

    Reading takes one step per chunk; answers written there do not count. The questions are asked in
    turn (`AskedInTurn`), after the text, where they arrive (`questions_shown`), or after
    `STOP_ACTION`; the last one ends the episode. So it has at most
    ``chunks + questions * (max_reads + 1)`` steps, but for stops: a step with neither an answer nor
    a read after one goes back to the text, and costs as much as a chunk.
    """

    def __init__(self, shared: LongDocEnvironments) -> None:
        self._shared = shared

    async def reset(self, task: Task) -> Observation:
        self._shared.check(task)
        config = self._shared.config
        self._task = task
        self._chunks = self._shared.chunks(task)
        self._mode = drawn_mode(config.questions_shown, task.id)
        asked = batches(len(task.questions), config.at_once)
        self._due = {batch: len(self._chunks) for batch in asked}
        if self._mode == "arriving":
            at = arrivals(needed_chunks(task, self._chunks), len(self._chunks), task.id)
            # A batch waits for the last of its questions.
            self._due = {batch: max(at[index] for index in batch) for batch in asked}
            asked.sort(key=self._due.__getitem__)
        self._questions = AskedInTurn(asked, config.max_reads, config.at_once > 1)
        self._read, self._resumed, self._stopped = 0, 0, False
        return self._observation()

    async def step(self, step: Step) -> StepResult:
        """Move on to the next chunk, the next question, or the end."""
        if not self._is_asked:
            self._read += 1
            if self._shared.config.early_stop and first(step.actions, STOP_ACTION.name):
                self._stopped, self._due = True, dict.fromkeys(self._due, self._read)
        elif self._resumes(step):
            self._stopped, self._due = False, dict.fromkeys(self._due, len(self._chunks))
            self._questions.reads_left = self._shared.config.max_reads
            self._resumed += 1
        elif reason := self._questions.take(step):
            return StepResult(None, reason)
        return StepResult(self._observation())

    async def score(self) -> Score:
        """Score the answers to all questions; reading has its cost (`step_cost`)."""
        score = await self._shared.score(self._task, self._questions.answers)
        share = min(1.0, (self._read + self._resumed) / max(1, len(self._chunks)))
        cost = self._shared.config.step_cost * share
        return replace(score, reward=score.reward and score.reward * (1 - cost))

    @property
    def _is_asked(self) -> bool:
        return self._due[self._questions.asked] <= self._read

    def _resumes(self, step: Step) -> bool:
        """Whether a step after a stop neither answers nor reads, and there is more of the text."""
        more = self._stopped and self._read < len(self._chunks)
        reads = self._questions.reads_left and first(step.actions, READ)
        return more and not (reads or first(step.actions, ANSWER_ACTION.name))

    def _observation(self) -> Observation:
        task, open_ended = self._task, self._shared.config.open_ended
        if self._is_asked:
            over = not open_ended and self._read == len(self._chunks)
            questions = self._questions
            return question_observation(task, questions.asked, questions.reads_left, over=over)
        shown = self._mode == "reading"
        return chunk_observation(task, self._chunks, self._read, shown=shown, open_ended=open_ended)


def chunk_observation(
    task: Task, chunks: Sequence[str], index: int, *, shown: bool = True, open_ended: bool = False
) -> Observation:
    """Return chunk `index`, with all questions if `shown`; `open_ended` hides the counts."""
    part = Piece("part", {"chunk": chunks[index]})
    if not open_ended:
        counts = {"chunk_number": index + 1, "chunk_count": len(chunks)}
        part = Piece("chunk", {**part.values, **counts})
    questions = Piece("unasked")
    if shown and task.questions:
        questions = questions_piece([question.text for question in task.questions])
    place = f"chunk {index + 1}/{len(chunks)}"
    ends = [*accumulate(map(len, chunks[: index + 1]), initial=0)]
    asks = (Piece("reading"),)
    span = {"start": ends[-2], "end": ends[-1]}
    return Observation("reading", (questions,), (part,), asks, place, origin=place, **span)


def question_observation(
    task: Task, asked: range, reads_left: int = 0, *, over: bool = True
) -> Observation:
    """Return questions to answer within `reads_left` more steps; `over`: the text has ended."""
    left = {"reads_left": reads_left}
    notice = Piece("read_notice" if over else "asked_reads", left, needs=READ)
    ended = (Piece("answering", {"read_notice": notice, **left}),)
    closing = ended if over else (Piece("asked", left), notice)
    questions = questions_piece([task.questions[index].text for index in asked])
    reads = f"{reads_left} read{'s' * (reads_left != 1)} left"
    label = f"{questions_label(asked, len(task.questions))}, {reads}"
    return Observation(
        "answering", (questions,), (), closing, label, question=asked.start, questions=len(asked)
    )


def questions_label(asked: range, count: int) -> str:
    """Return a label for people: ``question 3/10`` or ``questions 1-10/10``."""
    return f"question{f's {asked.start + 1}-' if len(asked) > 1 else ' '}{asked.stop}/{count}"

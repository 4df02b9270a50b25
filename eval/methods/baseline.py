"""The interface of methods, and what baselines without a memory loop share.

`atommem.rollout.EpisodeRunner` is a method. A `Baseline` asks the same policy with its own
prompts; each call is a step of the episode, so calls, tokens, traces and outages count as in the
loop. docs/evaluate.md lists divergences from the authors' methods.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from atommem.actions import ANSWERS_ACTION, Action, ActionSpec, answers_in
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section, Templates, get_dialect
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, Score
from atommem.envs.chunking import document_text
from atommem.envs.longdoc.environment import MOST_AT_ONCE, LongDocEnvironments, questions_label
from atommem.envs.question_answering import QAEnvironments
from atommem.envs.task import Task
from atommem.episode import Episode, Observation, Piece, Step, StopReason
from atommem.errors import ConfigError, OutageError, PromptTooLongError
from atommem.grammar import parse_whole
from atommem.memory.log import Contents, MemoryView, Operation
from atommem.policy.contract import MessagePolicy, Policy
from atommem.prompts import PromptBuilder
from atommem.rollout import EpisodeRunner, request_sampling, run_jobs, set_score
from atommem.run import RunConfig
from atommem.text_safety import clean
from atommem.tokens import Tokenizer

SYSTEM = (
    "You work on a long text, of which you see what is shown to you here. Do what is asked last, "
    "and nothing else."
)
NOTHING = "(nothing)"
MEMORY: dict[str, Any] = {
    "memory": "What you remember of the text:\n{entries}",
    "entry": "Memory {handle}: {text}",
}
"""How entries are shown; the pieces of a method say what is asked of them."""
ANSWERING = {
    "document": "The text:\n{document}",
    "questions": "Questions:\n{questions}",
    "question_line": "{number:d}. {question}",
    "answer": "Answer every question, in their order: each with the shortest wording that is "
    "complete, in a box of its own: \\boxed{answer}",
}
_HEADING = re.compile(r"^Document \d+:[ \n]", re.MULTILINE)
"""How MemAgent's files, and our own joined text, begin a document."""


@dataclass(frozen=True)
class Setup:
    """Everything that the methods of a comparison share.

    Attributes:
        run: AtomMem's settings; every method samples with its sampling, and retrieves `retrieve_k`
            texts.
        environments: Cuts documents into chunks, and scores answers.
        max_in_flight: Most episodes at once, or a bound shared with other evaluations; None: all.
        context_tokens: Longest prompt and completion together, for methods that fill the context.
        yarn_factor: YaRN factor (arXiv 2309.00071) of the server or config, stated in the result.
    """

    run: RunConfig
    policy: Policy
    embedder: Embedder
    environments: EnvironmentFactory
    max_in_flight: int | asyncio.Semaphore | None = None
    context_tokens: int = 32_768
    yarn_factor: float | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The policy's tokenizer."""
        tokenizer: Tokenizer = self.policy.tokenizer  # type: ignore[attr-defined]
        return tokenizer

    @property
    def retrieve_k(self) -> int:
        """Texts that a method retrieves."""
        return self.run.memory.retrieve_k

    @property
    def prompt_room(self) -> int:
        """Tokens that a prompt may have."""
        return self.context_tokens - self.run.sampling.max_tokens


def documents(setup: Setup, method: str) -> LongDocEnvironments:
    """Return the environment, if it has documents; raises ConfigError otherwise."""
    if not isinstance(setup.environments, LongDocEnvironments):
        raise ConfigError(
            f"method={method}: reads documents, and environment "
            f"{setup.environments.config.environment!r} has none. Choose another method."
        )
    return setup.environments


class Baseline(ABC):
    """A method with prompts of its own. Subclasses implement `drive`.

    Attributes:
        name: Its name in ``--method``.
        plain, remembering: Render prompts without and with memory.
    """

    name: ClassVar[str]
    setup: Setup
    plain: PromptBuilder
    remembering: PromptBuilder

    @property
    def environments(self) -> EnvironmentFactory:
        """The environment of the tasks."""
        return self.setup.environments

    def settings(self) -> dict[str, Any]:
        """Return the settings that its scores depend on, as JSON values."""
        return {
            "method": {
                "name": self.name,
                "retrieve_k": self.setup.retrieve_k,
                "context_tokens": self.setup.context_tokens,
                "yarn_factor": self.setup.yarn_factor,
            },
            "prompts_sha256": self.remembering.digest,
            "sampling": asdict(self.setup.run.sampling),
        }

    @abstractmethod
    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        """Run an episode, set its stop reason, and score it; raises OutageError."""

    async def run(self, task: Task, sample: int = 0) -> Episode:
        """Run one episode; an outage ends it as FAILED. Raises PolicyError if refused."""
        episode = Episode(task_id=task.id, sample=sample)
        record = Recorder(self, episode, task)
        started = time.perf_counter()
        try:
            set_score(episode, await self.drive(record, episode, task))
            episode.metrics |= record.metrics
        except OutageError as error:
            episode.stop_reason, episode.error = StopReason.FAILED, str(error)
        episode.seconds = time.perf_counter() - started
        return episode

    async def run_all(
        self,
        jobs: Sequence[tuple[Any, int]],
        on_episode: Callable[[int, Episode], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[Episode]:
        """Run one episode per ``(task, sample)``, like `EpisodeRunner.run_all`."""
        return await run_jobs(self.run, jobs, on_episode, self.setup.max_in_flight, stop)

    def make_prompts(
        self, templates: Templates, section: Section, actions: Sequence[ActionSpec] = ()
    ) -> PromptBuilder:
        """Make the loop's own renderer, so that text from outside is data here too."""
        tags = {"answer": get_dialect("paper", "full").tags["answer"]} if actions else {}
        return PromptBuilder(
            self.setup.tokenizer,
            Dialect("baseline", tags, templates),
            MemoryConfig(),
            section,
            actions,
            self.setup.run.chat_template_kwargs,
        )


Method = EpisodeRunner | Baseline
"""What turns a task into an episode: one policy, one way to remember."""


class Reader(Baseline):
    """A baseline that reads documents. Subclasses implement `play`.

    Attributes:
        reads: Whether it needs documents, or only an environment that scores answers.
        pieces: Templates beside `ANSWERING` and `MEMORY`.
    """

    reads: ClassVar[bool] = True
    pieces: ClassVar[Mapping[str, str]] = {}

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        scores = not self.reads and isinstance(setup.environments, QAEnvironments)
        self.documents: Any = setup.environments if scores else documents(setup, self.name)
        section, templates = Section({**ANSWERING, **self.pieces}), Templates(SYSTEM, empty=NOTHING)
        self.plain = self.make_prompts(templates, section)
        self.remembering = self.make_prompts(replace(templates, **MEMORY), section)

    async def chunks(self, task: Task) -> Sequence[str]:
        """Return the chunks of `task`."""
        await self.setup.environments.prepare(task)
        return self.documents.chunks(task)

    async def texts(self, task: Task) -> Sequence[str]:
        """Return the documents of `task`.

        Joined text is split at headings ("Document 7:"), or into chunks without any.
        """
        if task.context is None:
            return [
                document_text(document, n) for n, document in enumerate(task.documents, start=1)
            ]
        starts = [match.start() for match in _HEADING.finditer(task.context)]
        if not starts:
            return await self.chunks(task)
        return [task.context[a:b].strip() for a, b in pairwise([*starts, len(task.context)])]

    @abstractmethod
    async def play(self, record: Recorder, task: Task) -> None:
        """Read `task` and answer its questions with `Recorder.answer`.

        Raises:
            OutageError: Something outside the policy failed.
            PromptTooLongError: A prompt does not fit; earlier answers count.
        """

    async def drive(self, record: Recorder, episode: Episode, task: Task) -> Score:
        """Read and answer; what was answered before a prompt did not fit counts."""
        try:
            await self.play(record, task)
            unanswered = None in record.answers
            episode.stop_reason = StopReason.UNANSWERED if unanswered else StopReason.ANSWERED
        except PromptTooLongError:
            episode.stop_reason = StopReason.CONTEXT_OVERFLOW
        score: Score = await self.documents.score(task, record.answers)
        return score


class Recorder:
    """One episode of a baseline: asks the policy, and records every call as a step.

    Attributes:
        answers: One per question, None until given.
        metrics: Further metrics of the episode (``truncated``).
        contents: The memory after the recorded operations.
    """

    def __init__(self, method: Baseline, episode: Episode, task: Task) -> None:
        self.answers: list[str | None] = [None] * len(task.questions)
        self.metrics: dict[str, float] = {}
        self.task = task
        self.contents = Contents()
        self._method = method
        self._episode = episode

    def count_tokens(self, shown: Observation) -> int:
        """Return the number of tokens that `ask` sends without memory."""
        return len(self._method.plain.build(shown, MemoryView()))

    async def ask(self, shown: Observation, view: MemoryView | None = None) -> Step:
        """Sample a completion and record it as a step.

        Args:
            shown: The observation that the prompt shows.
            view: The memory that it shows; None for none.

        Raises:
            OutageError, PromptTooLongError, PolicyError: From `Policy.complete`.
        """
        setup, episode = self._method.setup, self._episode
        prompts = self._method.plain if view is None else self._method.remembering
        size = len(self.contents.entries)
        view = view or MemoryView(size=size)
        index = len(episode.steps)
        started = time.perf_counter()
        key = f"{episode.task_id}/{episode.sample}"
        sampling = request_sampling(setup.run.sampling, key, index, episode.task_id)
        prompt_ids: list[int] = []
        if isinstance(setup.policy, MessagePolicy):
            messages = prompts.messages(shown, view)
            completion = await setup.policy.complete_chat(messages, sampling)
        else:
            prompt_ids = prompts.build(shown, view)
            completion = await setup.policy.complete(prompt_ids, sampling)
        step = Step(
            index=index,
            observation=replace(shown, stream=()),  # the stream's text stands in the prompt
            view=view,
            prompt_ids=[],
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            text=clean(completion.text),
            finish_reason=completion.finish_reason,
            actions=(),
            problems=(),
            operations=(),
            store_size=size,
            prompt_tokens=len(prompt_ids) or completion.prompt_tokens or 0,
            seconds=time.perf_counter() - started,
            prompt=prompts.text(shown, view),
            completion_tokens=completion.completion_tokens or 0,
        )
        episode.steps.append(step)
        return step

    def parse(self, step: Step, spec: ActionSpec) -> tuple[Action, ...]:
        """Parse a completion, without its thinking, as one action; problems go to the step."""
        parsed = parse_whole(step.text, spec, self._method.plain.opens_thinking)
        step.problems = parsed.problems
        return parsed.actions

    def note(self, step: Step, *operations: Operation) -> None:
        """Note what followed from a step for the memory."""
        step.operations += operations
        for operation in operations:
            self.contents.apply(operation)
        step.store_size = len(self.contents.entries)

    def note_query(self, step: Step, query: str) -> None:
        """Note that what `step` shows was retrieved for `query`."""
        self.note(step, Operation(step.index, "read", before=self.contents.query, after=query))

    @property
    def together(self) -> list[range]:
        """Ranges of questions that are asked at one step, like MemAgent's."""
        count = len(self.task.questions)
        return [range(at, min(at + MOST_AT_ONCE, count)) for at in range(0, count, MOST_AT_ONCE)]

    async def answer(
        self, asked: range, text: str | None = None, view: MemoryView | None = None
    ) -> Step:
        """Ask questions from `text`, `view` or nothing, and store the boxed answers."""
        step = await self.ask(self.asking(asked, text), view)
        step.actions = self.parse(step, ANSWERS_ACTION)
        self.answers[asked.start : asked.stop] = answers_in(step.actions, len(asked))
        return step

    def asking(self, asked: range, text: str | None = None) -> Observation:
        """Return the observation of `answer`."""
        lines = tuple(
            Piece("question_line", {"number": number, "question": self.task.questions[index].text})
            for number, index in enumerate(asked, start=1)
        )
        return Observation(
            "answering",
            stream=() if text is None else (Piece("document", {"document": text}),),
            closing=(Piece("questions", {"questions": lines}), Piece("answer")),
            label=questions_label(asked, len(self.task.questions)),
            question=asked.start,
            questions=len(asked),
        )

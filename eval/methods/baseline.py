"""What every method of an evaluation is, and what the baselines that run no memory loop have in common.

`atommem.episode_runner.EpisodeRunner` is a `Method` as it is. A `Baseline` asks the same policy with prompts of its
own; every call is a step of the episode, so that counts of calls and tokens, traces and outages are those of the loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

from atommem.actions import ANSWER_ACTION
from atommem.config import MemoryConfig
from atommem.dialects.templates import fill
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, Score
from atommem.envs.task import Task
from atommem.episode import Episode, Step
from atommem.episode_runner import run_jobs, set_score
from atommem.errors import ConfigError, OutageError, PromptTooLongError
from atommem.memory.contents import Contents
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Operation
from atommem.observation import Observation, Piece, StopReason
from atommem.parsing import THINK, parse_whole
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.prompts import render_chat
from atommem.session import request_sampling
from atommem.tokens import Tokenizer
from atommem.untrusted import PromptGuard, clean, forms_in, guard_text

SYSTEM = "You answer questions. Give the shortest wording that is complete, and end with it in a box: \\boxed{answer}"
ANSWER_FROM_TEXT = "{text}\n\nQuestion:\n{question}\n\nAnswer the question from the text above, in a box."
ANSWER = "Question:\n{question}\n\nAnswer the question, in a box."
REMEMBERED = "What you remember of a long text:\n{entries}"
NOTHING_REMEMBERED = "(nothing is remembered)"

Messages = list[dict[str, str]]
"""Chat messages, each a ``role`` and its ``content``."""


@runtime_checkable
class Documents(Protocol):
    """What the baselines need of an environment: documents in chunks, and scores of answers."""

    def chunks(self, task: Any) -> Sequence[str]:
        """The pieces in which a task is read."""
        ...

    async def score(self, task: Any, answers: Sequence[str | None]) -> Score:
        """Score one answer per question (None: none was given)."""
        ...

    def without_reads(self) -> EnvironmentFactory:
        """The same environment for a policy that looks nothing up."""
        ...


class Method(Protocol):
    """Anything that turns a task into an episode: one policy, one way to remember."""

    @property
    def environments(self) -> EnvironmentFactory:
        """Where the tasks come from: it describes them."""
        ...

    async def run(self, task: Any, sample: int = 0) -> Episode:
        """Run one episode. An outage does not raise: it ends the episode with stop reason FAILED.

        Raises:
            PolicyError: The policy refused a request for good.
        """
        ...

    async def run_all(
        self,
        jobs: Sequence[tuple[Any, int]],
        on_episode: Callable[[int, Episode], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[Episode]:
        """Run one episode per ``(task, sample)``; as `EpisodeRunner.run_all`."""
        ...


@dataclass(frozen=True)
class Setup:
    """What all methods of a comparison share.

    Attributes:
        policy, embedder, tokenizer: As for `EpisodeRunner`.
        environments: Cuts documents into chunks, and scores answers.
        memory: AtomMem's settings; its `retrieve_k` is how many entries, notes or documents any method retrieves.
        sampling: How completions are sampled.
        max_in_flight: Most episodes at the same time; unset runs all at once.
        slots: Takes the place of `max_in_flight` where several evaluations share one bound.
        chat_template_kwargs: Passed to the tokenizer's chat template.
        context_tokens: Longest prompt and completion together, for methods that fill the context.
        yarn_factor: The factor by which YaRN (arXiv 2309.00071) stretches the model's context, where its server or
            its config applies it: stated in the result, not switched on here.
        encode_threads: As for `EpisodeRunner`.
    """

    policy: Policy
    embedder: Embedder
    tokenizer: Tokenizer
    environments: EnvironmentFactory
    memory: MemoryConfig
    sampling: Sampling
    max_in_flight: int | None = None
    slots: asyncio.Semaphore | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    context_tokens: int = 32_768
    yarn_factor: float | None = None
    encode_threads: int = 0

    @cached_property
    def guard(self) -> PromptGuard:
        """Breaks the control tokens in what prompts quote."""
        frame = render_chat(self.tokenizer, [{"role": "user", "content": ""}], self.chat_template_kwargs)
        return PromptGuard(self.tokenizer, forms=forms_in(frame))


def documents(setup: Setup, method: str) -> Documents:
    """The environment of `setup`, where it has documents.

    Raises:
        ConfigError: It has none.
    """
    if not isinstance(setup.environments, Documents):
        raise ConfigError(
            f"method {method} reads documents, and the environment {setup.environments.config.environment!r} has none: "
            "compare other methods there."
        )
    return setup.environments


class Baseline(ABC):
    """A method with prompts of its own. Subclasses say what is asked (`play`).

    Attributes:
        name: What ``--method`` calls it.
        prompts: All wording that it uses; its digest is part of what a continued evaluation must agree in.
    """

    name: ClassVar[str]
    prompts: ClassVar[tuple[str, ...]] = (SYSTEM, ANSWER_FROM_TEXT, ANSWER)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.documents = documents(setup, self.name)

    @property
    def environments(self) -> EnvironmentFactory:
        """What the tasks come from."""
        return self.setup.environments

    @classmethod
    def require(cls) -> None:
        """Make sure that what the method needs is installed. Cheap: asked before any model is loaded.

        Raises:
            ConfigError: It is not; the message has the command that installs it.
        """
        return

    async def chunks(self, task: Task) -> Sequence[str]:
        """The pieces in which `task` is read."""
        await self.setup.environments.prepare(task)
        return self.documents.chunks(task)

    def settings(self) -> dict[str, Any]:
        """What its scores depend on beside policy, embedder, environment and tasks, as JSON values."""
        return {
            "method": {"name": self.name, "retrieve_k": self.setup.memory.retrieve_k},
            "prompts_sha256": hashlib.sha256(repr(self.prompts).encode()).hexdigest(),
            "sampling": asdict(self.setup.sampling),
        }

    @abstractmethod
    async def play(self, record: Recorder, task: Task) -> None:
        """Read `task` and answer its questions (`Recorder.answer`), one after the other.

        Raises:
            OutageError: Something outside the policy failed.
            PromptTooLongError: A prompt does not fit; what was answered before counts.
        """

    async def run(self, task: Task, sample: int = 0) -> Episode:
        """Run one episode; see `Method.run`."""
        episode = Episode(task_id=task.id, sample=sample)
        record = Recorder(self.setup, episode, task)
        started = time.perf_counter()
        try:
            try:
                await self.play(record, task)
                answered = None not in record.answers
                episode.stop_reason = StopReason.ANSWERED if answered else StopReason.UNANSWERED
            except PromptTooLongError:
                episode.stop_reason = StopReason.CONTEXT_OVERFLOW
            set_score(episode, await self.documents.score(task, record.answers))
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
        """Run one episode per ``(task, sample)``; as `EpisodeRunner.run_all`."""
        return await run_jobs(self.run, jobs, on_episode, self.setup.slots or self.setup.max_in_flight, stop)


class Recorder:
    """One episode of a baseline as it goes: asks the policy, and keeps every call as a step.

    Attributes:
        answers: One per question of the task, None until it is given.
        metrics: What else the method has to say of the episode (``truncated``).
        contents: The memory that follows from the operations noted.
    """

    def __init__(self, setup: Setup, episode: Episode, task: Task) -> None:
        self.answers: list[str | None] = [None] * len(task.questions)
        self.metrics: dict[str, float] = {}
        self._setup = setup
        self._episode = episode
        self._task = task
        self.contents = Contents()

    def messages(self, system: str, user: str) -> Messages:
        """What the policy is asked: a system message and a user's."""
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def prompt(self, messages: Messages) -> str:
        """Messages as the policy reads them, chat markup included; no control token comes out of what they quote."""
        return render_chat(self._setup.tokenizer, self._guarded(messages), self._setup.chat_template_kwargs)

    def _guarded(self, messages: Messages) -> Messages:
        return [{**message, "content": self._setup.guard.data(message["content"])} for message in messages]

    async def ask(self, messages: Messages, observation: Observation, view: MemoryView | None = None) -> Step:
        """Sample a completion of `messages` and keep it as a step; what it did is noted with `note`.

        Args:
            messages: What the policy is asked; one that speaks chat gets them as they are.
            observation: Where in the stream, or at which question, this is.
            view: What of the memory the prompt shows.

        Raises:
            OutageError, PromptTooLongError, PolicyError: As of `Policy.complete`.
        """
        index = len(self._episode.steps)
        started = time.perf_counter()
        policy, prompt = self._setup.policy, self.prompt(messages)
        sampling = request_sampling(
            self._setup.sampling, f"{self._episode.task_id}/{self._episode.sample}", index, self._episode.task_id
        )
        prompt_ids: list[int] = []
        if (chat := getattr(policy, "complete_chat", None)) is not None:
            guarded = [{**message, "content": guard_text(message["content"])} for message in messages]
            completion: Completion = await chat(guarded, sampling)
        else:
            prompt_ids = self._setup.tokenizer.encode(prompt, add_special_tokens=False)
            completion = await policy.complete(prompt_ids, sampling)
        step = Step(
            index=index,
            observation=observation,
            view=view or MemoryView(size=len(self.contents.entries)),
            prompt_ids=[],
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            text=clean(completion.text),
            finish_reason=completion.finish_reason,
            actions=(),
            problems=(),
            operations=(),
            store_size=len(self.contents.entries),
            prompt_tokens=len(prompt_ids) or completion.prompt_tokens or 0,
            seconds=time.perf_counter() - started,
            prompt=prompt,
            completion_tokens=completion.completion_tokens or 0,
        )
        self._episode.steps.append(step)
        return step

    def note(self, step: Step, *operations: Operation) -> None:
        """Note what followed from a step for the memory."""
        step.operations += operations
        for operation in operations:
            self.contents.apply(operation)
        step.store_size = len(self.contents.entries)

    def note_query(self, step: Step, query: str) -> None:
        """Note that what `step` shows was retrieved for `query`."""
        self.note(step, Operation(step.index, "read", before=self.contents.query, after=query))

    async def read(self, chunks: Sequence[str], system: str, template: str) -> AsyncIterator[Step]:
        """Ask the policy once for every chunk, with `template` around it; each call is a step."""
        for index, chunk in enumerate(chunks):
            user = fill(template, {"chunk": chunk})
            yield await self.ask(self.messages(system, user), self.reading(chunks, index))

    def reading(self, chunks: Sequence[str], index: int) -> Observation:
        """The observation while chunk `index` is read (its text stands in the step's prompt)."""
        return Observation("reading", _asked(self._texts()), label=f"chunk {index + 1}/{len(chunks)}")

    async def answer(self, index: int, text: str | None = None, view: MemoryView | None = None) -> Step:
        """Ask question `index`, with `text` to answer from (None: without any), and keep the boxed answer."""
        step = await self.ask(self.question_messages(index, text), self._answering(index), view)
        parsed = parse_whole(step.text, ANSWER_ACTION, (step.prompt or "").rstrip().endswith(f"<{THINK}>"))
        step.actions, step.problems = parsed.actions, parsed.problems
        if parsed.actions:
            self.answers[index] = parsed.actions[0].text
        return step

    async def answer_from_memory(self, index: int, retrieved: Sequence[Retrieved]) -> None:
        """Ask question `index` with what was retrieved for it, best first."""
        question = self._task.questions[index].text
        view = MemoryView(query=question, retrieved=tuple(retrieved), size=len(self.contents.entries))
        entries = "\n".join(f"- {item.text}" for item in retrieved) or NOTHING_REMEMBERED
        self.note_query(await self.answer(index, fill(REMEMBERED, {"entries": entries}), view), question)

    def question_messages(self, index: int, text: str | None) -> Messages:
        """What `answer` asks."""
        question = self._task.questions[index].text
        user = fill(ANSWER, {"question": question})
        if text is not None:
            user = fill(ANSWER_FROM_TEXT, {"text": text, "question": question})
        return self.messages(SYSTEM, user)

    def _answering(self, index: int) -> Observation:
        count = len(self._task.questions)
        label = f"question {index + 1}/{count}"
        return Observation("answering", _asked([self._texts()[index]]), label=label, question=index)

    def _texts(self) -> tuple[str, ...]:
        return tuple(question.text for question in self._task.questions)


def _asked(texts: Sequence[str]) -> tuple[Piece, ...]:
    return tuple(Piece("questions", {"questions": text}) for text in texts)

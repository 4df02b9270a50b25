"""The one loop: sessions of an agent, and the runner of episodes from empty memory to reward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

from atommem.actions import Parsed, ProblemReason
from atommem.config import MemoryConfig, check_least
from atommem.dialects import get_dialect
from atommem.embedding.embedder import Embedder
from atommem.environment import Environment, EnvironmentFactory, Score
from atommem.episode import Episode, Observation, Step, StopReason
from atommem.errors import ConfigError, OutageError, PromptTooLongError
from atommem.memory.log import MemoryView, Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.rules import RuleSet
from atommem.policy.contract import Completion, MessagePolicy, Policy, Sampling, derived_seed
from atommem.process import ActivityClock, StepTimeoutError, run_jobs, time_limit
from atommem.prompts import PromptBuilder
from atommem.session_state import SessionState
from atommem.text_safety import clean
from atommem.thinking import THINK, thoughts_end
from atommem.tokens import Tokenizer

ENCODE_THREADS = 2
"""Enough for a server of 128 completions a second; more threads compete for the interpreter."""


@runtime_checkable
class ObservationPolicy(Protocol):
    """A scripted policy that reads the observation and the memory instead of a prompt."""

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """Return a completion."""


@dataclass(kw_only=True, eq=False)
class Agent:
    """A policy in an environment, with what its sessions share.

    `activity` counts the seconds in which sessions waited: ``generate``, and ``embed`` with search.
    """

    policy: Policy
    embedder: Embedder
    tokenizer: Tokenizer
    factory: EnvironmentFactory
    memory: MemoryConfig
    sampling: Sampling  # with a seed, every request gets its own derived seed
    chat_template_kwargs: dict[str, Any] | None = None  # such as enable_thinking of Qwen3
    encode_threads: int = 0  # that encode prompts; 0: the event loop
    keep_prompts: bool = False  # in the steps: training needs their ids
    activity: ActivityClock = field(default_factory=ActivityClock, init=False)

    def __post_init__(self) -> None:
        memory, factory = self.memory, self.factory
        RuleSet(memory.admission, memory.retention)  # raises for an unknown name
        self.dialect = get_dialect(memory.dialect, memory.templates)
        self.grammar = self.dialect.grammar(factory.actions, factory.phases)
        self.prompts = PromptBuilder.of(
            self.tokenizer, self.dialect, memory, factory, self.chat_template_kwargs
        )
        self._threads: ThreadPoolExecutor | None = None
        if self.encode_threads and not getattr(self.policy, "samples_what_waits", False):
            # The first call may change settings of a fast tokenizer, so it must not be in a thread.
            self.tokenizer.encode("", add_special_tokens=False)
            self._threads = ThreadPoolExecutor(self.encode_threads, "atommem-prompts")

    def new_memory(self, key: str = "") -> WorkingMemory:
        """Return an empty memory for the session ``TASK/SAMPLE``; the task draws the capacity."""
        limits = self.memory.of_task(key.rpartition("/")[0] or key)
        marker = self.dialect.templates.cut_marker
        seed = derived_seed(f"{self.sampling.seed}/{key}/rules")
        return WorkingMemory(self.embedder, self.tokenizer, limits, marker, seed)

    async def complete(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> tuple[list[int], Completion]:
        """Return the prompt ids of a step (none for a `MessagePolicy`) and its completion."""
        policy = self.policy
        is_chat = isinstance(policy, MessagePolicy)
        prompt_ids = [] if is_chat else await self._encode(observation, view)
        if isinstance(policy, MessagePolicy):
            work = policy.complete_chat(self.prompts.messages(observation, view), sampling)
        elif isinstance(policy, ObservationPolicy):
            work = policy.complete_observation(observation, view, sampling)
        else:
            work = policy.complete(prompt_ids, sampling)
        with self.activity.busy("generate"):
            return prompt_ids, await work

    async def _encode(self, observation: Observation, view: MemoryView) -> list[int]:
        if self._threads is None:
            return self.prompts.build(observation, view)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.prompts.build, observation, view)

    def parse(self, completion: Completion, phase: str) -> Parsed:
        thinking = begins_in_thinking(self.policy, self.prompts, completion)
        parsed = self.grammar.parse(clean(completion.text), phase, thinking)
        if isinstance(self.policy, MessagePolicy) and any(
            problem.reason is ProblemReason.STRAY_CLOSE and problem.tag.endswith(THINK)
            for problem in parsed.problems
        ):  # the template of the server, which is unknown, opened the thought
            return self.grammar.parse(clean(completion.text), phase, thinking=True)
        return parsed


def begins_in_thinking(policy: Policy, prompts: PromptBuilder, completion: Completion) -> bool:
    """Return whether the text of a completion begins inside of thinking."""
    if isinstance(policy, ObservationPolicy):  # it does not read the prompt
        return False
    if isinstance(policy, MessagePolicy) and not thoughts_end(completion.text):
        # The server removed the thoughts from its reply, or the reply ends inside of them.
        ends_inside = completion.finish_reason == "length" and not completion.thinking_apart
        return prompts.opens_thinking and ends_inside
    return prompts.opens_thinking


class Session:
    """A memory in use by an agent.

    The seeds of its requests derive from `key`, unique among the agent's sessions. `steps` counts
    its completions, including those whose actions an outage prevented; `sampled` counts tokens.
    """

    def __init__(self, agent: Agent, key: str = "", memory: WorkingMemory | None = None) -> None:
        self.agent = agent
        self.key = key
        self.memory = agent.new_memory(key) if memory is None else memory
        self.steps = 0
        self.sampled = 0

    async def step(self, observation: Observation, affinity: str | None = None) -> Step:
        """Take one step: prompt, completion, and its actions applied to the memory.

        Raises as `Policy.complete` does, and OutageError if the embedder is out of reach; the
        memory is then unchanged, as it is if the step is cancelled.
        """
        step = await self.sample(observation, affinity)
        await self.apply(step)
        return step

    async def sample(
        self, observation: Observation, affinity: str | None = None, max_tokens: int | None = None
    ) -> Step:
        """Sample a completion; `max_tokens` further limits it."""
        agent, view = self.agent, self.memory.view()
        started = time.perf_counter()
        sampling = agent.sampling.for_request(self.key, self.steps, affinity)
        if max_tokens is not None and max_tokens < sampling.max_completion_length:
            sampling = replace(sampling, max_completion_length=max_tokens)
        prompt_ids, completion = await agent.complete(observation, view, sampling)
        parsed = agent.parse(completion, observation.phase)
        step = sampled_step(self.steps, observation, view, len(prompt_ids), completion)
        step.prompt_ids = prompt_ids if agent.keep_prompts else []
        step.actions, step.problems = parsed.actions, parsed.problems
        step.searches = int(bool(view.query))
        step.seconds = time.perf_counter() - started
        self.steps += 1
        self.sampled += step.completion_tokens
        return step

    async def apply(self, step: Step) -> None:
        started = time.perf_counter()
        shown = step.observation
        source = Source(step.index, shown.origin, shown.start, shown.end)
        with self.agent.activity.busy("embed"):
            step.operations = await self.memory.apply(step.actions, step.index, source)
        step.store_size = len(self.memory.contents.entries)
        step.seconds += time.perf_counter() - started

    def state(self, *, vectors: bool = False) -> SessionState:
        """Return everything that another process needs; `vectors` save it from embedding."""
        embedder, log = self.agent.embedder.id, self.memory.log
        texts = self.memory.vectors() if vectors else None
        return SessionState(self.key, self.steps, self.sampled, embedder, log, texts)

    @classmethod
    async def restore(cls, agent: Agent, state: SessionState, *, reembed: bool = False) -> Self:
        """Continue a saved session with an agent of the same settings.

        ConfigError: the agent has another embedder, unless `reembed` embeds all entries again.
        TraceError: the operations of the log contradict each other.
        """
        own = agent.embedder.id
        if state.embedder != own and not reembed:
            raise ConfigError(
                f"the memory was made with embedder={state.embedder!r}, this agent has {own!r}: "
                "vectors of two embedders cannot be compared. Use the same one, or set reembed."
            )
        session = cls(agent, state.key)
        await session.memory.restore(state.operations, state.vectors)
        session.steps, session.sampled = state.steps, state.sampled
        return session

    def fork(self) -> Session:
        """Return an independent copy, whose seeds for equal observations are equal."""
        twin = Session(self.agent, self.key, self.memory.fork())
        twin.steps, twin.sampled = self.steps, self.sampled
        return twin


@dataclass(frozen=True)
class Limits:
    """Limits of an episode: steps, sampled tokens of all steps, and wall-clock time."""

    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        check_least(self, max_steps=1, max_tokens=1, max_seconds=1e-3)


@dataclass(eq=False)
class EpisodeRunner:
    """Run episodes concurrently; each waits only for its own completions and embeddings.

    `max_in_flight` bounds the episodes at a time; a semaphore bounds those of several runners.
    """

    agent: Agent
    _: KW_ONLY
    limits: Limits = Limits()
    max_in_flight: int | asyncio.Semaphore | None = None

    @property
    def factory(self) -> EnvironmentFactory:
        return self.agent.factory

    def copy(self, *, policy: Policy | None = None, sampling: Sampling | None = None) -> Self:
        """Return a runner with the same prompts, and another policy or sampling if given."""
        agent = copy(self.agent)
        agent.policy, agent.sampling = policy or agent.policy, sampling or agent.sampling
        return replace(self, agent=agent)

    async def run(self, task: Any, sample: int = 0) -> Episode:
        """Run one episode; an outage ends it with stop reason FAILED and no reward."""
        episode = Episode(task.id, sample)
        with timed(episode):
            await self.factory.prepare(task)
            environment = self.factory()
            episode.stop_reason = await self._play(episode, environment, task)
            set_score(episode, await environment.score())
        return episode

    async def run_all(
        self,
        jobs: Sequence[tuple[Any, int]],
        on_episode: Callable[[int, Episode], None] | None = None,
    ) -> list[Episode]:
        """Run one episode for each ``(task, sample)`` and return them in this order.

        `on_episode` is called with the index of the job and the episode when one ends. An error
        other than an outage cancels the other episodes.
        """
        return await run_jobs(self.run, jobs, on_episode, self.max_in_flight)

    async def _play(self, episode: Episode, environment: Environment, task: Any) -> StopReason:
        session = Session(self.agent, f"{episode.task_id}/{episode.sample}")
        limits = self.limits
        try:
            async with time_limit(limits.max_seconds):
                observation = await environment.reset(task)
                while True:
                    if limits.max_steps is not None and session.steps >= limits.max_steps:
                        return StopReason.STEP_LIMIT
                    most = limits.max_tokens
                    left = None if most is None else most - session.sampled
                    if left is not None and left <= 0:
                        return StopReason.TOKEN_LIMIT
                    step = await session.sample(observation, episode.task_id, left)
                    # If an outage prevents its actions, its tokens still count.
                    episode.steps.append(step)
                    await session.apply(step)
                    result = await environment.step(step)
                    if result.observation is None:
                        return result.reason or StopReason.ANSWERED
                    observation = result.observation
        except StepTimeoutError:
            return StopReason.TIME_LIMIT
        except PromptTooLongError:
            return StopReason.CONTEXT_OVERFLOW


def sampled_step(
    index: int, observation: Observation, view: MemoryView, prompt: int, completion: Completion
) -> Step:
    """Return a step whose completion has been sampled after a prompt of so many tokens."""
    return Step(
        index=index,
        observation=observation,
        view=view,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=clean(completion.text),
        finish_reason=completion.finish_reason,
        store_size=view.size,
        prompt_tokens=prompt or completion.prompt_tokens or 0,
        completion_tokens=completion.completion_tokens or 0,
    )


@contextmanager
def timed(episode: Episode) -> Iterator[None]:
    """Note the seconds of an episode; an outage ends it as FAILED."""
    started = time.perf_counter()
    try:
        yield
    except OutageError as error:
        episode.stop_reason, episode.error = StopReason.FAILED, str(error)
    episode.seconds = time.perf_counter() - started


def set_score(episode: Episode, score: Score) -> None:
    for item in fields(score):
        setattr(episode, item.name, copy(getattr(score, item.name)))

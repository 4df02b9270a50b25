"""A session: a policy with its memory. Its turn is the body of the one loop."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from atommem.activity import ActivityClock
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory
from atommem.episode import Step
from atommem.grammar import THINK
from atommem.memory.log import MemoryView, Source
from atommem.memory.memory import WorkingMemory
from atommem.memory.rules import RuleSet
from atommem.observation import Observation
from atommem.policy.contract import BatchPolicy, Completion, MessagePolicy, Policy, Sampling
from atommem.prompts import PromptBuilder
from atommem.session_state import SessionState
from atommem.text_safety import clean
from atommem.tokens import Tokenizer

Result = TypeVar("Result")

ENCODE_THREADS = 2
"""Enough for a server of 128 completions a second; more threads compete for the interpreter."""


@runtime_checkable
class ObservationPolicy(Protocol):
    """A scripted policy that reads the observation and the memory instead of a prompt."""

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """Return a completion."""
        ...


@dataclass(kw_only=True, eq=False)
class Agent:
    """What the sessions of one policy in one environment share.

    Attributes:
        policy, embedder: They batch across sessions.
        tokenizer: The policy's.
        environments: Define the actions and the wording of prompts.
        memory: Dialect, layout and limits.
        sampling: With a seed, every request gets its own derived seed.
        chat_template_kwargs: Passed to the chat template (``enable_thinking`` of Qwen3).
        encode_threads: The number of threads that encode prompts; 0 encodes them in the event loop,
            as always with a `BatchPolicy`.
        keep_prompts: Keep prompt ids in the steps, which training needs.
        activity: Seconds in which a session waited for a completion (``generate``) or for
            embeddings (``embed``), or searched a store (``retrieve``).
    """

    policy: Policy
    embedder: Embedder
    tokenizer: Tokenizer
    environments: EnvironmentFactory
    memory: MemoryConfig
    sampling: Sampling
    chat_template_kwargs: dict[str, Any] | None = None
    encode_threads: int = 0
    keep_prompts: bool = False
    activity: ActivityClock = field(default_factory=ActivityClock, init=False)

    def __post_init__(self) -> None:
        memory, environments = self.memory, self.environments
        RuleSet(memory.admission, memory.retention)  # raises for an unknown name
        self.dialect = get_dialect(memory.dialect, memory.templates)
        self.grammar = self.dialect.grammar(environments.actions, environments.phases)
        self.prompts = PromptBuilder.of(
            self.tokenizer, self.dialect, memory, environments, self.chat_template_kwargs
        )
        self._threads: ThreadPoolExecutor | None = None
        batches = isinstance(self.policy, BatchPolicy) and self.policy.samples_what_waits
        if self.encode_threads and not batches:
            # The first call may change settings of a fast tokenizer, so it must not be in a thread.
            self.tokenizer.encode("", add_special_tokens=False)
            self._threads = ThreadPoolExecutor(self.encode_threads, "atommem-prompts")

    def new_memory(self, key: str = "") -> WorkingMemory:
        """Return an empty memory for the session ``TASK/SAMPLE``; the task draws the capacity."""
        limits = self.memory.of_task(key.rpartition("/")[0] or key)
        marker = self.dialect.templates.cut_marker
        seed = derived_seed(f"{self.sampling.seed}/{key}/rules")
        return WorkingMemory(self.embedder, self.tokenizer, limits, marker, self.activity, seed)

    async def complete(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> tuple[list[int], Completion]:
        """Return the prompt ids of a step (none for a `MessagePolicy`) and its completion."""
        policy = self.policy
        if isinstance(policy, MessagePolicy) and not isinstance(policy, ObservationPolicy):
            with self.activity.busy("generate"):
                messages = self.prompts.messages(observation, view)
                return [], await policy.complete_chat(messages, sampling)
        prompt_ids = await self._encode(observation, view)
        with self.activity.busy("generate"):
            if isinstance(policy, ObservationPolicy):
                return prompt_ids, await policy.complete_observation(observation, view, sampling)
            return prompt_ids, await policy.complete(prompt_ids, sampling)

    async def _encode(self, observation: Observation, view: MemoryView) -> list[int]:
        if self._threads is None:
            return self.prompts.build(observation, view)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.prompts.build, observation, view)


class Session:
    """A memory in use by an agent.

    Args:
        agent: Shared with other sessions.
        key: Unique among the agent's sessions; the seeds of its requests derive from it.
        memory: The initial memory; None is an empty one.

    Attributes:
        memory: The session's memory.
        turns: The number of completions, including those whose actions an outage prevented. It is
            the index of the next step.
        sampled: The number of sampled tokens.
    """

    def __init__(self, agent: Agent, key: str = "", memory: WorkingMemory | None = None) -> None:
        self.agent = agent
        self.key = key
        self.memory = agent.new_memory(key) if memory is None else memory
        self.turns = 0
        self.sampled = 0

    async def turn(
        self,
        observation: Observation,
        *,
        affinity: str | None = None,
        max_tokens: int | None = None,
        deadline: float | None = None,
        steps: list[Step] | None = None,
    ) -> Step:
        """Run one turn: prompt, completion, and its actions applied to the memory.

        Args:
            observation: From the environment.
            affinity: See `Sampling.affinity`.
            max_tokens: A further limit of this completion.
            deadline: By the event loop's clock.
            steps: Gets the step once its completion is sampled: if an outage then prevents its
                actions, its tokens still count.

        Raises:
            StepTimeoutError: `deadline` passed.
            OutageError: Policy or embedder are out of reach; the memory is unchanged, as it is if
                the turn is cancelled.
            PromptTooLongError: The prompt does not fit the policy's context window.
            PolicyError: The policy refused the request.
        """
        agent, index = self.agent, self.turns
        started = time.perf_counter()
        view = self.memory.view()
        sampling = request_sampling(agent.sampling, self.key, index, affinity)
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
        prompt_ids, completion = await with_deadline(
            agent.complete(observation, view, sampling), deadline
        )
        self.turns += 1
        text = clean(completion.text)
        thinking = agent.prompts.opens_thinking
        if not prompt_ids:  # a chat server may have removed the thoughts from its reply
            thinking = thinking and f"</{THINK}>" in text.lower()
        parsed = agent.grammar.parse(text, observation.phase, thinking)
        step = Step(
            index=index,
            observation=observation,
            view=view,
            prompt_ids=prompt_ids if agent.keep_prompts else [],
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            text=text,
            finish_reason=completion.finish_reason,
            actions=parsed.actions,
            problems=parsed.problems,
            operations=(),
            store_size=view.size,
            prompt_tokens=len(prompt_ids) or completion.prompt_tokens or 0,
            completion_tokens=completion.completion_tokens or 0,
        )
        self.sampled += step.completion_tokens
        if steps is not None:
            steps.append(step)
        await with_deadline(self.apply(step), deadline)
        step.seconds = time.perf_counter() - started
        return step

    async def apply(self, step: Step) -> None:
        """Apply the actions of a step to the memory.

        Raises:
            OutageError: The embedder is out of reach; the memory is unchanged.
        """
        shown = step.observation
        source = Source(step.index, shown.origin, shown.start, shown.end)
        step.operations = await self.memory.apply(step.actions, step.index, source)
        step.store_size = self.memory.view().size

    def state(self, *, history: bool = True, vectors: bool = False) -> SessionState:
        """Return everything that another process needs to continue the session.

        Args:
            history: Include the memory's log; without it, the log begins here.
            vectors: Include the vectors of the memory's texts, so that they need not be embedded.
        """
        memory = self.memory
        return SessionState(
            self.key,
            self.turns,
            self.sampled,
            memory.start if history else memory.snapshot(),
            memory.log if history else (),
            memory.vectors() if vectors else None,
        )

    @classmethod
    async def restore(cls, agent: Agent, state: SessionState, *, reembed: bool = False) -> Self:
        """Continue a saved session with an agent of the same settings.

        Args:
            agent: The agent.
            state: From `state`.
            reembed: Accept a memory of another embedder and embed its entries again.

        Raises:
            ConfigError: The memory has another embedder, and `reembed` is not set.
            TraceError: The log does not follow from its beginning.
            OutageError: The embedder is out of reach.
        """
        session = cls(agent, state.key)
        await session.memory.restore(state.memory, state.operations, state.vectors, reembed=reembed)
        session.turns, session.sampled = state.turns, state.sampled
        return session

    def fork(self, key: str | None = None) -> Session:
        """Return an independent copy; with the same key, equal observations get equal seeds."""
        twin = Session(self.agent, self.key if key is None else key, self.memory.fork())
        twin.turns, twin.sampled = self.turns, self.sampled
        return twin


class StepTimeoutError(Exception):
    """The deadline passed before the step had ended."""


async def with_deadline(work: Awaitable[Result], deadline: float | None) -> Result:
    """Await `work`, and cancel it at `deadline` by the event loop's clock.

    Raises:
        StepTimeoutError: It was cancelled.
    """
    try:
        async with asyncio.timeout_at(deadline) as clock:
            return await work
    except TimeoutError as error:
        if not clock.expired():  # a TimeoutError of the policy, the embedder or the environment
            raise
        raise StepTimeoutError from error


def request_sampling(
    sampling: Sampling, key: str, index: int, affinity: str | None = None
) -> Sampling:
    """Return the sampling of a session's request number `index`, with its own seed."""
    sampling = replace(sampling, affinity=affinity)
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=derived_seed(f"{sampling.seed}/{key}/{index}"))


def derived_seed(name: str) -> int:
    """Return a seed of 31 bits that depends on `name`."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1

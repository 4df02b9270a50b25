"""A session: a policy with its memory, driven turn by turn. The loop's body, whoever drives it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

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
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.prompts import PromptBuilder
from atommem.session_state import SessionState
from atommem.text_safety import clean
from atommem.tokens import Tokenizer

Result = TypeVar("Result")

ENCODE_THREADS = 2
"""Enough for a server of 128 completions a second; more take the interpreter from each other (bench_loop.py)."""


@dataclass(kw_only=True, eq=False)
class Agent:
    """What the sessions of one policy in one kind of environment share.

    Attributes:
        policy: What completes prompts; shared, it batches across sessions.
        embedder: Shared likewise.
        tokenizer: The policy's.
        environments: Whose actions and wording prompts and completions have.
        memory: Dialect, layout and limits of the memory.
        sampling: How completions are sampled. With a seed, every request gets its own derived one.
        chat_template_kwargs: Passed to the tokenizer's chat template (``enable_thinking`` of Qwen3).
        encode_threads: How many threads encode prompts, beside the event loop; 0 encodes them in it, as
            always for a policy that `samples_what_waits`. Training and evaluation use `ENCODE_THREADS`.
        keep_prompts: Keep the prompts' ids in the steps, as training needs them; otherwise only their number.
        activity: Seconds in which at least one session waited for a completion (``generate``) or for
            embeddings (``embed``), and seconds of searching stores (``retrieve``).
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
        # Where a policy samples whatever waits, the loop has nothing else to do meanwhile, and threads that hand over
        # prompts one by one, each waiting for the interpreter, would have it begin with the first that is ready.
        if self.encode_threads and not getattr(self.policy, "samples_what_waits", False):
            # The first call may change settings of a fast tokenizer, which must not happen while it is in use.
            self.tokenizer.encode("", add_special_tokens=False)
            self._threads = ThreadPoolExecutor(
                self.encode_threads, thread_name_prefix="atommem-prompts"
            )

    def new_memory(self, key: str = "") -> WorkingMemory:
        """An empty memory of a session ``TASK/SAMPLE``, whose task may draw the capacity.

        Rules draw from random numbers of the session's own.
        """
        limits = self.memory.of_task(key.rpartition("/")[0] or key)
        marker = self.dialect.templates.cut_marker
        seed = derived_seed(f"{self.sampling.seed}/{key}/rules")
        return WorkingMemory(self.embedder, self.tokenizer, limits, marker, self.activity, seed)

    async def complete(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> tuple[list[int], Completion]:
        """The prompt of a step as token ids (none for a policy that has no tokens), and its completion."""
        acts = getattr(
            self.policy, "complete_observation", None
        )  # a script that looks at what the prompt would say
        chat = getattr(self.policy, "complete_chat", None)
        prompt_ids = (
            [] if chat is not None and acts is None else await self._encoded(observation, view)
        )
        with self.activity.busy("generate"):
            if acts is not None:
                return prompt_ids, await acts(observation, view, sampling)
            if chat is not None:
                return prompt_ids, await chat(self.prompts.messages(observation, view), sampling)
            return prompt_ids, await self.policy.complete(prompt_ids, sampling)

    async def _encoded(self, observation: Observation, view: MemoryView) -> list[int]:
        if self._threads is None:
            return self.prompts.build(observation, view)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.prompts.build, observation, view)


class Session:
    """A memory in use by an agent.

    Args:
        agent: What it shares with others.
        key: Tells it from the agent's other sessions; the seeds of its requests derive from it.
        memory: What it starts from; unset is an empty one.

    Attributes:
        memory: Its memory: view, entries, and the log of all operations.
        turns: How many completions it has had, those included whose actions an outage kept from the memory. It is the
            number of the next step.
        sampled: Tokens in them.
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
        """One turn: prompt, completion, actions applied to the memory.

        Args:
            observation: What the environment shows.
            affinity: See `Sampling.affinity`.
            max_tokens: Bounds this completion further.
            deadline: When to give up, by the event loop's clock.
            steps: Gets the step as soon as its completion is there: should an outage end the turn while its actions
                are applied, its tokens have been spent.

        Raises:
            TurnTimeoutError: `deadline` passed while the completion was sampled; the session is as it was.
            OutageError: Policy or embedder are out of reach; the memory is as it was. So it is when the turn is
                cancelled.
            PromptTooLongError: The prompt does not fit the policy's context window.
            PolicyError: The policy refused the request for good.
        """
        agent, index = self.agent, self.turns
        started = time.perf_counter()
        view = self.memory.view()
        sampling = request_sampling(agent.sampling, self.key, index, affinity)
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, max_tokens))
        prompt_ids, completion = await in_time(
            agent.complete(observation, view, sampling), deadline
        )
        self.turns += 1
        text = clean(completion.text)
        thinking = agent.prompts.opens_thinking
        if not prompt_ids:  # a chat server may have taken the thoughts out of its reply
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
        await in_time(self.apply(step), deadline)
        step.seconds = time.perf_counter() - started
        return step

    async def apply(self, step: Step) -> None:
        """Apply the actions of a step to the memory: what `turn` does once it has the completion.

        Raises:
            OutageError: The embedder is out of reach; the memory is as it was.
        """
        shown = step.observation
        source = Source(step.index, shown.origin, shown.start, shown.end)
        step.operations = await self.memory.apply(step.actions, step.index, source)
        step.store_size = self.memory.view().size

    def put_down(self, *, history: bool = True, vectors: bool = False) -> SessionState:
        """Everything that another process needs to go on with it.

        Args:
            history: With the log of its memory, as the truth from which it follows. Without, only the memory as it
                stands: smaller, and "as it was at step n" begins here.
            vectors: With the vectors of its texts, which the embedder need not make again then.
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
    async def take_up(cls, agent: Agent, state: SessionState, *, reembed: bool = False) -> Session:
        """Go on with a session that was put down, under an agent with the same settings.

        Args:
            agent: Whose.
            state: As it was put down.
            reembed: The agent may have another embedder: all entries are embedded anew then.

        Raises:
            ConfigError: The memory was written under another embedder, and `reembed` is not set.
            TraceError: The log does not follow from where it begins.
            OutageError: The embedder is out of reach.
        """
        session = cls(agent, state.key)
        await session.memory.restore(state.memory, state.operations, state.vectors, reembed=reembed)
        session.turns, session.sampled = state.turns, state.sampled
        return session

    def fork(self, key: str | None = None) -> Session:
        """A second session that is this one now, and goes its own way from here.

        Args:
            key: Of the fork. With the same one (unset), the same observations get the same seeds.
        """
        twin = Session(self.agent, self.key if key is None else key, self.memory.fork())
        twin.turns, twin.sampled = self.turns, self.sampled
        return twin


class TurnTimeoutError(Exception):
    """The deadline of a turn passed before its actions had been applied."""


async def in_time(work: Awaitable[Result], deadline: float | None) -> Result:
    """What `work` gives, which is given up at `deadline`, by the event loop's clock.

    Raises:
        TurnTimeoutError: It was given up.
    """
    try:
        async with asyncio.timeout_at(deadline) as clock:
            return await work
    except TimeoutError as error:
        if not clock.expired():  # of the policy, the embedder or the environment
            raise
        raise TurnTimeoutError from error


def request_sampling(
    sampling: Sampling, key: str, index: int, affinity: str | None = None
) -> Sampling:
    """How request number `index` of a session is sampled: with a seed of its own, near its task's other requests."""
    sampling = replace(sampling, affinity=affinity)
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=derived_seed(f"{sampling.seed}/{key}/{index}"))


def derived_seed(name: str) -> int:
    """A seed of 31 bits for what `name` says."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1

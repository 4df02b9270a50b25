"""One update on one process: lengths, episodes, rows, micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from atommem.actions import MEMORY_KINDS
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import EnvironmentFactory, TaskShape
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView
from atommem.prompts import PromptBuilder
from atommem.train.rollout.rollouts import TaskOrder

ENTRY_TOKENS, QUERY_TOKENS, SCRATCHPAD_SHARE = 50, 15, 0.25
"""Expected tokens of an entry and a query, and fill of the scratchpad."""


class PromptShape(NamedTuple):
    """Tokens of a prompt's parts."""

    reading: float  # all but question, stream and memory, in the first phase
    answering: float  # and in the last one
    memory: float  # scratchpad, query and entries as expected
    longest_memory: float  # and at their limits
    is_chunk_first: bool  # layout prefix: the episodes of a group share the chunk


def measure_prompt(
    memory: MemoryConfig, factory: EnvironmentFactory, chat_template_kwargs: dict[str, Any]
) -> PromptShape:
    """Build empty prompts, and count their tokens."""
    dialect = get_dialect(memory.dialect, memory.templates)
    builder = PromptBuilder.of(factory.tokenizer, dialect, memory, factory, chat_template_kwargs)
    nothing = MemoryView(capacity=memory.capacity)
    reading, answering = (
        len(builder.build(factory.blank(factory.phases[phase]), nothing)) for phase in (0, -1)
    )
    kinds = {name for name in MEMORY_KINDS if dialect.can_write(name)}
    kinds -= set(memory.disabled_actions)
    longest = memory.scratchpad_tokens if "scratchpad" in kinds else 0
    expected = longest * SCRATCHPAD_SHARE
    if {"create", "read"} <= kinds:
        shown = min(memory.retrieve_k, memory.capacity or memory.retrieve_k)
        expected += shown * min(ENTRY_TOKENS, memory.entry_tokens)
        expected += min(QUERY_TOKENS, memory.query_tokens)
        longest += shown * memory.entry_tokens + memory.query_tokens
    return PromptShape(reading, answering, expected, longest, memory.layout == "prefix")


@dataclass(frozen=True, slots=True)
class Workload:
    """One update of one process; expected values."""

    updates: int  # of the run
    episodes: int
    group: int  # episodes of a task on this process, which share prefixes
    steps: float  # of an episode
    prompt_tokens: float  # mean of a step
    completion_tokens: float  # mean of a step
    sampled_row: int  # longest step with the expected memory
    longest_row: int  # and with memory at its limits
    rows: int  # steps of all episodes
    raw_tokens: int  # of all rows
    unique_tokens: int  # counting shared prefixes once
    micro_batch: int  # tokens
    micro_batches: int
    sharing: int = 1  # updates that share a rollout
    iterations: int = 1  # and how often they repeat it


def estimate_workload(
    args: Any,
    processes: int,
    data: TaskShape,
    prompt: PromptShape,
    sampled: float,
    share_prefixes: bool,
) -> Workload:
    """Estimate the workload of an update, with `sampled` tokens a completion.

    At a step, a group of g episodes with prompts ``s + o`` (s: instructions, questions and, in the
    layout ``prefix``, the chunk; o: memory, and the chunk otherwise) costs
    ``g (s + o + completion)`` raw and ``s + g (o + completion)`` unique tokens. One further read of
    a question is expected.
    """
    batch, generations = args.per_device_train_batch_size, args.num_generations
    sharing = getattr(args, "steps_per_generation", None) or 1
    iterations = getattr(args, "updates_per_rollout", sharing) // sharing
    tasks, left = divmod(batch * processes * sharing, generations)
    if left:
        raise ConfigError(
            f"num_generations={generations}: it does not divide the episodes of a rollout, "
            f"{processes} processes x {batch} x steps_per_generation {sharing}. Change one."
        )
    group, questions = min(generations, batch), data.questions * data.question_tokens
    shares_chunk = prompt.is_chunk_first and data.same_stream
    before, after = (data.stream_tokens, 0.0) if shares_chunk else (0.0, data.stream_tokens)
    answering_steps = data.questions * (1 + min(1, data.reads))
    # Reading and answering steps: their number, shared and own tokens of a prompt.
    kinds = (
        (data.stream_steps, prompt.reading + questions + before, prompt.memory + after),
        (answering_steps, prompt.answering + data.question_tokens, prompt.memory),
    )
    steps = sum(count for count, _, _ in kinds)
    raw = sum(count * (shared + own + sampled) for count, shared, own in kinds)
    unique = sum(count * (shared / group + own + sampled) for count, shared, own in kinds)
    longest = max(shared + own for _, shared, own in kinds) + (args.max_completion_length or 1024)
    budget = getattr(args, "micro_batch_tokens", 0) or args.token_budget
    counted = batch * (unique if share_prefixes else raw)
    micro_batches = max(1, ceil(counted / budget))
    # The rows of a group in one step stay together.
    groups = [shared + group * (own + sampled) for _, shared, own in kinds]
    together = max(groups) if share_prefixes else 0.0
    epoch = TaskOrder(data.tasks, tasks, False, 0).updates_per_epoch * sharing * iterations
    updates = max(1, int(args.num_train_epochs * epoch))
    return Workload(
        updates=args.max_steps if args.max_steps > 0 else updates,
        episodes=batch,
        group=group,
        steps=steps,
        prompt_tokens=raw / steps - sampled,
        completion_tokens=sampled,
        sampled_row=ceil(longest),
        longest_row=ceil(longest + prompt.longest_memory - prompt.memory),
        rows=round(batch * steps),
        raw_tokens=round(batch * raw),
        unique_tokens=round(batch * unique),
        micro_batch=ceil(min(budget, max(counted / micro_batches, together))),
        micro_batches=micro_batches,
        sharing=sharing,
        iterations=iterations,
    )

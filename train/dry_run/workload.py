"""What one update consists of on one process: episodes, steps, rows, tokens, micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from atommem.description import TaskShape
from atommem.errors import ConfigError
from atommem.train.dry_run.data_shape import PromptShape


@dataclass(frozen=True, slots=True)
class Workload:
    """One process, one update; expected values.

    Attributes:
        processes: How many share an update.
        updates: Of the whole run.
        tasks: Groups of the global batch.
        episodes: That this process samples; together over all processes ``tasks * group``.
        group: Episodes of a task that this process has: they share prefixes.
        reading_steps, answering_steps: Of an episode.
        most_steps: Bound of both together.
        prompt_tokens: Of a step, mean over both kinds.
        completion_tokens: Of a step.
        sampled_row: Tokens of the longest prompt with an expected memory, and of the longest completion.
        longest_row: The same with a memory at its limits.
        rows: Steps of all episodes: what is trained on.
        raw_tokens: Prompts and completions of all rows.
        unique_tokens: The same when what a group shares counts once.
        micro_batch: Tokens of a micro-batch.
        micro_batches: Forward and backward passes.
    """

    processes: int
    updates: int
    tasks: int
    episodes: int
    group: int
    reading_steps: float
    answering_steps: float
    most_steps: float
    prompt_tokens: float
    completion_tokens: float
    sampled_row: int
    longest_row: int
    rows: int
    raw_tokens: int
    unique_tokens: int
    micro_batch: int
    micro_batches: int

    @property
    def steps(self) -> float:
        """Steps of an episode."""
        return self.reading_steps + self.answering_steps


def grpo_workload(
    data: TaskShape,
    prompt: PromptShape,
    *,
    processes: int,
    episodes: int,
    group: int,
    completion_tokens: float,
    max_completion_tokens: int,
    micro_batch_tokens: int,
    max_steps: int,
    epochs: float,
    share_prefixes: bool = True,
) -> Workload:
    """The workload of GRPO.

    With reading prompts ``s + o`` (s: instructions, questions and chunk, which a group shares in the layout
    ``prefix``; o: memory) and answering prompts alike, a group of g episodes costs at each step::

        raw    = g * (s + o + completion)
        unique = s + g * (o + completion)

    Args:
        data, prompt: Lengths; of the further steps of a question, one is expected to be used.
        processes: Of all nodes.
        episodes: ``per_device_train_batch_size``.
        group: ``num_generations``.
        completion_tokens, max_completion_tokens: Expected and longest.
        micro_batch_tokens: Most tokens of a micro-batch.
        max_steps: Updates, if above 0; else `epochs` over the tasks.
        epochs: Passes over the tasks.
        share_prefixes: Whether what is shared is computed once.

    Raises:
        ConfigError: The global batch is no whole number of groups, or there are fewer tasks than groups.
    """
    if episodes * processes % group:
        raise ConfigError(
            f"{processes} processes x per_device_train_batch_size {episodes} are {episodes * processes} episodes: no "
            f"multiple of num_generations {group}."
        )
    tasks = episodes * processes // group
    if data.tasks < tasks:
        raise ConfigError(f"{data.tasks} tasks are fewer than the {tasks} groups of one update.")
    mine = min(group, episodes)
    questions = data.questions * data.question_tokens
    reading_shared = prompt.reading + questions + (data.stream_tokens if prompt.is_chunk_first else 0)
    reading_own = prompt.memory + (0 if prompt.is_chunk_first else data.stream_tokens)
    answering_shared = prompt.answering + data.question_tokens
    answering = data.questions * (1 + min(1, data.reads))
    raw = data.stream_steps * (reading_shared + reading_own + completion_tokens) + answering * (
        answering_shared + prompt.memory + completion_tokens
    )
    unique = data.stream_steps * (reading_shared / mine + reading_own + completion_tokens) + answering * (
        answering_shared / mine + prompt.memory + completion_tokens
    )
    steps = data.stream_steps + answering
    without_memory = max(
        prompt.reading + questions + data.stream_tokens,
        prompt.answering + data.question_tokens,
    )
    counted = unique if share_prefixes else raw
    together = reading_shared + mine * (reading_own + completion_tokens) if share_prefixes else 0.0
    micro_batches = max(1, ceil(episodes * counted / micro_batch_tokens))
    return Workload(
        processes=processes,
        updates=max_steps if max_steps > 0 else max(1, int(epochs * (data.tasks // tasks))),
        tasks=tasks,
        episodes=episodes,
        group=mine,
        reading_steps=data.stream_steps,
        answering_steps=answering,
        most_steps=data.stream_steps + data.questions * (data.reads + 1),
        prompt_tokens=raw / steps - completion_tokens,
        completion_tokens=completion_tokens,
        sampled_row=ceil(without_memory + prompt.memory + max_completion_tokens),
        longest_row=ceil(without_memory + prompt.longest_memory + max_completion_tokens),
        rows=round(episodes * steps),
        raw_tokens=round(episodes * raw),
        unique_tokens=round(episodes * unique),
        # As few as the budget allows, of about the same size; but what a group reads in a step stays together.
        micro_batch=min(micro_batch_tokens, ceil(max(episodes * counted / micro_batches, together))),
        micro_batches=micro_batches,
    )


def sft_workload(
    data: TaskShape,
    prompt: PromptShape,
    *,
    processes: int,
    rows: int,
    accumulation: int,
    completion_tokens: float,
    max_completion_tokens: int,
    max_steps: int,
    epochs: float,
) -> Workload:
    """The workload of a cold start: a row is a step of a demonstration, and rows share nothing.

    Args:
        data, prompt: Lengths; one demonstration for each task.
        processes: Of all nodes.
        rows: ``per_device_train_batch_size``.
        accumulation: ``gradient_accumulation_steps``.
        completion_tokens, max_completion_tokens: Expected and longest.
        max_steps: Updates, if above 0; else `epochs` over the rows.
        epochs: Passes over the rows.
    """
    questions = data.questions * data.question_tokens
    reading = prompt.reading + questions + data.stream_tokens + prompt.memory
    answering = prompt.answering + data.question_tokens + prompt.memory
    steps = data.stream_steps + data.questions
    mean = (data.stream_steps * reading + data.questions * answering) / steps
    # Reading rows are the longest, and a batch is padded to its longest row.
    padded = max(reading, answering) + completion_tokens
    total = rows * accumulation
    updates = max_steps if max_steps > 0 else max(1, int(epochs * data.tasks * steps / (total * processes)))
    return Workload(
        processes=processes,
        updates=updates,
        tasks=0,
        episodes=0,
        group=1,
        reading_steps=data.stream_steps,
        answering_steps=data.questions,
        most_steps=steps,
        prompt_tokens=mean,
        completion_tokens=completion_tokens,
        sampled_row=0,
        longest_row=ceil(max(reading, answering) - prompt.memory + prompt.longest_memory + max_completion_tokens),
        rows=total,
        raw_tokens=round(total * (mean + completion_tokens)),
        unique_tokens=round(total * (mean + completion_tokens)),
        micro_batch=round(rows * padded),
        micro_batches=accumulation,
    )

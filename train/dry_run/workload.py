"""What one update consists of on one process: episodes, steps, rows, tokens, micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from atommem.description import TaskShape
from atommem.errors import ConfigError
from atommem.train.dry_run.lengths import CompletionShape, PromptShape


@dataclass(frozen=True, slots=True)
class Workload:
    """One process, one update; expected values. Of a cold start, an episode is a demonstration, and none is sampled.

    Attributes:
        processes, updates: Of the run.
        tasks: Groups of the global batch.
        episodes, group: That this process samples, and how many of them have one task: they share prefixes.
        steps, most_steps: Of an episode; `most_steps` is the bound.
        prompt_tokens, completion_tokens: Of a step, in the mean.
        sampled_row: Tokens of the longest prompt with an expected memory, and of the longest completion.
        longest_row: The same with a memory at its limits.
        rows: Steps of all episodes: what is trained on.
        raw_tokens, unique_tokens: Of all rows; where what a group shares counts once.
        micro_batch, micro_batches: Tokens of one, and how many.
    """

    processes: int
    updates: int
    tasks: int
    episodes: int
    group: int
    steps: float
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


def estimate_workload(
    data: TaskShape,
    prompt: PromptShape,
    completion: CompletionShape,
    *,
    processes: int,
    episodes: int,
    group: int,
    micro_batch_tokens: int,
    max_steps: int,
    epochs: float,
    share_prefixes: bool = True,
    accumulation: int = 0,
) -> Workload:
    """The workload of GRPO or, with `accumulation`, of a cold start.

    With reading prompts ``s + o`` (s: instructions, questions and chunk, which a group shares in the layout ``prefix``;
    o: memory) and answering prompts alike, a group of g episodes costs at each step ``g (s + o + completion)`` raw
    tokens and ``s + g (o + completion)`` unique ones. Of the further reads of a question one is expected to be used.

    Args:
        data, prompt, completion: Lengths.
        processes, group: Of all nodes; ``num_generations``.
        episodes: ``per_device_train_batch_size``; of a cold start these are rows, steps of demonstrations.
        micro_batch_tokens: Most tokens of a micro-batch.
        max_steps, epochs: Updates, if above 0; else passes over the tasks.
        share_prefixes: Whether what is shared is computed once.
        accumulation: Micro-batches of an update, each padded to its longest row and sharing nothing.

    Raises:
        ConfigError: The global batch is no whole number of groups, or there are fewer tasks than groups.
    """
    total, tasks = episodes * processes, episodes * processes // group
    if not accumulation and total % group:
        raise ConfigError(
            f"{processes} processes x per_device_train_batch_size {episodes} are {total} episodes: no multiple of "
            f"num_generations {group}."
        )
    if not accumulation and data.tasks < tasks:
        raise ConfigError(f"{data.tasks} tasks are fewer than the {tasks} groups of one update.")
    sampled, mine = completion.mean, min(group, episodes)
    questions = data.questions * data.question_tokens
    before, after = (data.stream_tokens, 0.0) if prompt.is_chunk_first else (0.0, data.stream_tokens)
    reads = 0 if accumulation else min(1, data.reads)
    # Of reading and of answering steps: how many, tokens of a prompt that a group shares, and those that it does not.
    kinds = (
        (data.stream_steps, prompt.reading + questions + before, prompt.memory + after),
        (data.questions * (1 + reads), prompt.answering + data.question_tokens, prompt.memory),
    )
    steps = sum(count for count, _, _ in kinds)
    raw = sum(count * (shared + own + sampled) for count, shared, own in kinds)
    unique = sum(count * (shared / mine + own + sampled) for count, shared, own in kinds)
    longest = max(shared + own for _, shared, own in kinds)
    if accumulation:
        rows, epoch = float(episodes * accumulation), data.tasks * steps / (total * accumulation)
        micro_batches, micro_batch = accumulation, episodes * (longest + sampled)
    else:
        rows, epoch = episodes * steps, float(data.tasks // tasks)
        counted = episodes * (unique if share_prefixes else raw)
        micro_batches = max(1, ceil(counted / micro_batch_tokens))
        # What a group reads in a step stays together.
        together = max(shared + mine * (own + sampled) for _, shared, own in kinds) if share_prefixes else 0.0
        micro_batch = min(micro_batch_tokens, max(counted / micro_batches, together))
    return Workload(
        processes=processes,
        updates=max_steps if max_steps > 0 else max(1, int(epochs * epoch)),
        tasks=0 if accumulation else tasks,
        episodes=0 if accumulation else episodes,
        group=mine,
        steps=steps,
        most_steps=data.stream_steps + data.questions * (1 if accumulation else data.reads + 1),
        prompt_tokens=raw / steps - sampled,
        completion_tokens=sampled,
        sampled_row=ceil(longest + completion.longest),
        longest_row=ceil(longest + prompt.longest_memory - prompt.memory + completion.longest),
        rows=round(rows),
        raw_tokens=round(rows * raw / steps),
        unique_tokens=round(rows * unique / steps),
        micro_batch=ceil(micro_batch),
        micro_batches=micro_batches,
    )

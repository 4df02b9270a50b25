"""What one update consists of on one process: how long prompts and completions are, episodes, rows, micro-batches.

Lengths are those of data, tokenizer and traces where they are there, else supposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from atommem.actions import MEMORY_KINDS
from atommem.config import MemoryConfig
from atommem.description import TaskShape
from atommem.dialects import get_dialect
from atommem.environment import EnvironmentFactory
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView
from atommem.policy.local import read_tokenizer
from atommem.prompts import PromptBuilder
from atommem.tokens import ApproximateTokenizer
from atommem.trace import read_trace
from atommem.train.dry_run_config import DryRunConfig
from atommem.train.rollout.rollouts import TaskOrder

ENTRY_TOKENS, QUERY_TOKENS, SCRATCHPAD_SHARE = 50, 15, 0.25
"""What a memory is expected to look like: entries, a query, and how full the scratchpad is."""
THINKING_TOKENS = 570.5
"""Of a completion of the paper's trained policy (arXiv 2601.08323, Table 6), which thinks."""
SPREAD = 0.3
"""Standard deviation of what an episode samples over its mean, where no traces say it."""
MOST_TRACES = 500


def find_tokenizer(name: str) -> tuple[Any, str]:
    """The tokenizer of a model folder, else a rough one; and which of them it is. Never asks the network."""
    if Path(name).is_dir():
        try:
            return read_tokenizer(name), "the model folder's tokenizer"
        except (OSError, ValueError):
            pass
    return ApproximateTokenizer(), "a rough count, as the tokenizer is not there"


class PromptShape(NamedTuple):
    """Tokens of a prompt's pieces."""

    reading: float  # all that is not question, stream or memory, in the environment's first phase
    answering: float  # likewise, in its last
    memory: float  # scratchpad, query and entries, as expected
    longest_memory: float  # and at their limits
    is_chunk_first: bool  # layout `prefix`: the episodes of a group share the chunk


def measure_prompt(
    memory: MemoryConfig, environments: EnvironmentFactory, chat_template_kwargs: dict[str, Any]
) -> PromptShape:
    """Build prompts with nothing in them, and count.

    Raises:
        DialectError: Dialect or templates are unknown or do not fit each other.
    """
    dialect = get_dialect(memory.dialect, memory.templates)
    builder = PromptBuilder.of(
        environments.tokenizer, dialect, memory, environments, chat_template_kwargs
    )
    nothing = MemoryView(capacity=memory.capacity)
    first, last = environments.phases[0], environments.phases[-1]
    reading, answering = (
        len(builder.build(environments.blank(phase), nothing)) for phase in (first, last)
    )
    kinds = {name for name in MEMORY_KINDS if dialect.can_write(name)} - set(
        memory.disabled_actions
    )
    longest = memory.scratchpad_tokens if "scratchpad" in kinds else 0
    expected = longest * SCRATCHPAD_SHARE
    if {"create", "read"} <= kinds:
        shown = min(memory.retrieve_k, memory.capacity or memory.retrieve_k)
        expected += shown * min(ENTRY_TOKENS, memory.entry_tokens) + min(
            QUERY_TOKENS, memory.query_tokens
        )
        longest += shown * memory.entry_tokens + memory.query_tokens
    return PromptShape(reading, answering, expected, longest, memory.layout == "prefix")


class CompletionShape(NamedTuple):
    """Tokens of a completion."""

    mean: float
    longest: int
    spread: float  # of what an episode samples: standard deviation over mean
    source: str  # of these numbers, in words


def completion_shape(
    args: Any, stage: str, settings: DryRunConfig, model_kind: str
) -> CompletionShape:
    """Completions as traces have them, as the settings say, or as thinking makes them.

    With thinking, which Qwen3 does unless ``chat_template_kwargs`` says ``enable_thinking: false``, completions are
    supposed to be as long as the paper's; without, a quarter of max_completion_length.

    Raises:
        ConfigError: The folder of traces holds none.
        TraceError: A trace cannot be read.
    """
    longest, spread = int(args.max_completion_length or 1024), SPREAD
    # The data of a cold start are traces.
    folder = settings.dry_run_traces or (
        args.data if stage == "sft" and Path(args.data).is_dir() else None
    )
    if folder:
        files = sorted(Path(folder).rglob("*.jsonl"))[:MOST_TRACES]
        steps = [
            [step.completion_tokens for step in read_trace(file).episode.steps] for file in files
        ]
        episodes = [sum(tokens) for tokens in steps if tokens]
        if not episodes:
            raise ConfigError(f"dry_run_traces: {folder} holds no trace with a step.")
        mean, spread = (
            sum(episodes) / sum(map(len, steps)),
            pstdev(episodes) / (fmean(episodes) or 1.0),
        )
        source = f"those of {len(episodes)} traces"
    elif settings.dry_run_completion_tokens:
        mean, source = float(settings.dry_run_completion_tokens), "--dry_run_completion_tokens"
    elif args.template_kwargs.get("enable_thinking", model_kind.startswith("qwen3")):
        mean, source = (
            THINKING_TOKENS,
            "thinking is on: the paper's Table 6; an untrained policy may think longer",
        )
    else:
        mean, source = max(1.0, longest / 4), "without thinking, a quarter of max_completion_length"
    return CompletionShape(min(mean, longest), longest, spread, source)


@dataclass(frozen=True, slots=True)
class Workload:
    """One process, one update; expected values. Of a cold start, an episode is a demonstration, and none is sampled."""

    updates: int  # of the run
    tasks: int  # groups of a rollout of all processes
    episodes: int
    group: int  # how many episodes of this process have one task: they share prefixes
    steps: float  # of an episode
    prompt_tokens: float  # of a step, in the mean
    completion_tokens: float
    spread: float  # standard deviation of what an episode samples, over its mean
    sampled_row: (
        int  # tokens of the longest prompt with an expected memory, and of the longest completion
    )
    longest_row: int  # the same with a memory at its limits
    rows: int  # steps of all episodes: what is trained on
    raw_tokens: int
    unique_tokens: int  # where what a group shares counts once
    micro_batch: int  # tokens
    micro_batches: int
    sharing: int = 1  # updates that share a rollout, each with episodes of its own
    iterations: int = 1  # how often they go over it

    @property
    def scored_tokens(self) -> float:
        """Of all completions: tokens that have a log-probability."""
        return self.rows * self.completion_tokens


def estimate_workload(
    args: Any,
    processes: int,
    data: TaskShape,
    prompt: PromptShape,
    completion: CompletionShape,
    share_prefixes: bool,
    is_cold_start: bool = False,
) -> Workload:
    """The workload of GRPO, or of a cold start, whose rows are padded to the longest and share nothing.

    With reading prompts ``s + o`` (s: instructions, questions and, in the layout ``prefix``, the chunk, if the episodes
    of a group read the same; o: memory, and the chunk if not) and answering prompts alike, a group of g episodes costs
    at each step ``g (s + o + completion)`` raw tokens and ``s + g (o + completion)`` unique ones. Of the further reads
    of a question one is expected to be used.

    `args` are the stage's settings. A batch of a cold start counts rows, steps of demonstrations, and not episodes.

    Raises:
        ConfigError: A rollout is no whole number of groups, or there are fewer tasks than groups.
    """
    batch, generations = (
        args.per_device_train_batch_size,
        1 if is_cold_start else args.num_generations,
    )
    sharing = 1 if is_cold_start else getattr(args, "steps_per_generation", None) or 1
    iterations = getattr(args, "updates_per_rollout", sharing) // sharing
    total, tasks = batch * processes, batch * processes * sharing // generations
    if total * sharing % generations:
        times = f" x steps_per_generation {sharing}" if sharing > 1 else ""
        raise ConfigError(
            f"{processes} processes x per_device_train_batch_size {batch}{times} are {total * sharing} episodes: no "
            f"multiple of num_generations {generations}."
        )
    sampled, group = completion.mean, min(generations, batch)
    questions = data.questions * data.question_tokens
    shares_chunk = prompt.is_chunk_first and data.same_stream
    before, after = (data.stream_tokens, 0.0) if shares_chunk else (0.0, data.stream_tokens)
    reads = 0 if is_cold_start else min(1, data.reads)
    # Of reading and of answering steps: how many, tokens of a prompt that a group shares, and those that it does not.
    kinds = (
        (data.stream_steps, prompt.reading + questions + before, prompt.memory + after),
        (data.questions * (1 + reads), prompt.answering + data.question_tokens, prompt.memory),
    )
    steps = sum(count for count, _, _ in kinds)
    raw = sum(count * (shared + own + sampled) for count, shared, own in kinds)
    unique = sum(count * (shared / group + own + sampled) for count, shared, own in kinds)
    longest = max(shared + own for _, shared, own in kinds)
    if is_cold_start:
        micro_batches = args.gradient_accumulation_steps
        rows, epoch = batch * micro_batches, data.tasks * steps / (total * micro_batches)
        micro_batch = batch * (longest + sampled)
    else:
        budget = getattr(args, "micro_batch_tokens", 0) or args.token_budget
        rollouts = TaskOrder(data.tasks, tasks, False, 0).updates_per_epoch
        rows, epoch = batch * steps, rollouts * sharing * iterations
        counted = batch * (unique if share_prefixes else raw)
        micro_batches = max(1, ceil(counted / budget))
        # What a group reads in a step stays together.
        together = (
            max(shared + group * (own + sampled) for _, shared, own in kinds)
            if share_prefixes
            else 0.0
        )
        micro_batch = min(budget, max(counted / micro_batches, together))
    return Workload(
        updates=args.max_steps
        if args.max_steps > 0
        else max(1, int(args.num_train_epochs * epoch)),
        tasks=0 if is_cold_start else tasks,
        episodes=0 if is_cold_start else batch,
        group=group,
        steps=steps,
        prompt_tokens=raw / steps - sampled,
        completion_tokens=sampled,
        spread=completion.spread,
        sampled_row=ceil(longest + completion.longest),
        longest_row=ceil(longest + prompt.longest_memory - prompt.memory + completion.longest),
        rows=round(rows),
        raw_tokens=round(rows * raw / steps),
        unique_tokens=round(rows * unique / steps),
        micro_batch=ceil(micro_batch),
        micro_batches=micro_batches,
        sharing=sharing,
        iterations=iterations,
    )

"""How long tasks, prompts and completions are: from data, tokenizer and traces where they are there, else supposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from atommem.actions import MEMORY_KINDS
from atommem.config import MemoryConfig
from atommem.description import TaskShape
from atommem.dialects import get_dialect
from atommem.environment import EnvironmentFactory
from atommem.errors import ConfigError
from atommem.memory.entries import MemoryView
from atommem.prompts import PromptBuilder
from atommem.trace import read_trace
from atommem.train.dry_run.dry_run_config import DryRunConfig

CHARACTERS_A_TOKEN = 4.2
"""Of English prose, for vocabularies of 50,000 to 150,000 tokens."""
ENTRY_TOKENS, QUERY_TOKENS, SCRATCHPAD_SHARE = 50, 15, 0.25
"""What a memory is expected to look like: entries, a query, and how full the scratchpad is."""
THINKING_TOKENS = 570.5
"""Of a completion of the paper's trained policy (arXiv 2601.08323, Table 6), which thinks."""
SPREAD = 0.3
"""Standard deviation of what an episode samples over its mean, where no traces say it."""
MOST_TRACES = 500


class EstimatingTokenizer:
    """Stands in for a tokenizer that is not on this machine: `CHARACTERS_A_TOKEN` characters are one token."""

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> dict[str, Any]:
        """Spans of equal length."""
        count = len(self.encode(text))
        edges = [round(index * len(text) / max(1, count)) for index in range(count + 1)]
        return {"offset_mapping": list(pairwise(edges))}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """As many ids as tokens are expected."""
        return [0] * round(len(text) / CHARACTERS_A_TOKEN)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Nothing can be decoded."""
        raise NotImplementedError("the dry run samples nothing")

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """The messages, each with about as much markup as chat templates have."""
        return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in conversation)


def find_tokenizer(name: str) -> tuple[Any, str]:
    """The tokenizer of a model folder, else an estimate; and which of them it is. Never asks the network."""
    from transformers import AutoTokenizer

    if Path(name).is_dir():
        try:
            return AutoTokenizer.from_pretrained(name), "the model folder's tokenizer"
        except (OSError, ValueError):
            pass
    return EstimatingTokenizer(), f"an estimate of {CHARACTERS_A_TOKEN} characters a token"


def data_shape(path: str | None, environments: EnvironmentFactory, settings: DryRunConfig) -> TaskShape:
    """How long the tasks of a file are, or those that `settings` describe, for want of one.

    Raises:
        DataError: The file is no task file.
    """
    reason = "traces are not read" if path is None else f"{path} is not there"
    supposed = TaskShape(
        source=f"supposed, as {reason}: {settings.dry_run_documents} documents, {settings.dry_run_questions:g} "
        "questions (--dry_run_documents, --dry_run_questions, --dry_run_tasks)",
        tasks=settings.dry_run_tasks,
        documents=settings.dry_run_documents,
        stream_steps=0,
        stream_tokens=0,
        questions=settings.dry_run_questions,
        question_tokens=0,
        reads=0,
    )
    return environments.shape(path, supposed)


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Tokens of a prompt's pieces.

    Attributes:
        reading, answering: All that is not question, stream or memory, in the environment's first and last phase.
        memory, longest_memory: Scratchpad, query and entries, as expected and at their limits.
        is_chunk_first: Layout ``prefix``: the episodes of a group share the chunk.
    """

    reading: float
    answering: float
    memory: float
    longest_memory: float
    is_chunk_first: bool


def measure_prompt(
    memory: MemoryConfig, environments: EnvironmentFactory, chat_template_kwargs: dict[str, Any]
) -> PromptShape:
    """Build prompts with nothing in them, and count.

    Raises:
        DialectError: Dialect or templates are unknown or do not fit each other.
    """
    dialect = get_dialect(memory.dialect, memory.templates)
    builder = PromptBuilder.of(environments.tokenizer, dialect, memory, environments, chat_template_kwargs)
    nothing = MemoryView(capacity=memory.capacity)
    first, last = environments.phases[0], environments.phases[-1]
    reading, answering = (len(builder.build(environments.blank(phase), nothing)) for phase in (first, last))
    kinds = {name for name in MEMORY_KINDS if dialect.can_write(name)} - set(memory.disabled_actions)
    scratchpad = memory.scratchpad_tokens if "scratchpad" in kinds else 0
    expected, longest = scratchpad * SCRATCHPAD_SHARE, scratchpad
    if {"create", "read"} <= kinds:
        shown = min(memory.retrieve_k, memory.capacity or memory.retrieve_k)
        expected += shown * min(ENTRY_TOKENS, memory.entry_tokens) + min(QUERY_TOKENS, memory.query_tokens)
        longest += shown * memory.entry_tokens + memory.query_tokens
    return PromptShape(reading, answering, expected, longest, memory.layout == "prefix")


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Tokens of a completion: mean and longest; `spread` of what an episode samples (deviation over mean); whence."""

    mean: float
    longest: int
    spread: float
    source: str


def completion_shape(args: Any, stage: str, settings: DryRunConfig, model_kind: str) -> CompletionShape:
    """Completions as traces have them, as the settings say, or as thinking makes them.

    With thinking, which Qwen3 does unless ``chat_template_kwargs`` says ``enable_thinking: false``, completions are
    supposed to be as long as the paper's; without, a quarter of max_completion_length.

    Raises:
        ConfigError: The folder of traces holds none.
        TraceError: A trace cannot be read.
    """
    longest, spread = int(args.max_completion_length or 1024), SPREAD
    # The data of a cold start are traces.
    folder = settings.dry_run_traces or (args.data if stage == "sft" and Path(args.data).is_dir() else None)
    if folder:
        files = sorted(Path(folder).rglob("*.jsonl"))[:MOST_TRACES]
        episodes = [[step.completion_tokens for step in read_trace(file).episode.steps] for file in files]
        episodes = [steps for steps in episodes if steps]
        if not episodes:
            raise ConfigError(f"dry_run_traces: {folder} holds no trace with a step.")
        sums = [sum(steps) for steps in episodes]
        mean, spread = sum(sums) / sum(map(len, episodes)), pstdev(sums) / (fmean(sums) or 1.0)
        source = f"those of {len(episodes)} traces"
    elif settings.dry_run_completion_tokens:
        mean, source = float(settings.dry_run_completion_tokens), "--dry_run_completion_tokens"
    elif args.template_kwargs.get("enable_thinking", model_kind.startswith("qwen3")):
        mean, source = THINKING_TOKENS, "thinking is on: the paper's Table 6; an untrained policy may think longer"
    else:
        mean, source = max(1.0, longest / 4), "without thinking, a quarter of max_completion_length"
    return CompletionShape(min(mean, longest), longest, spread, source)

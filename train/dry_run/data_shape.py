"""How long tasks and prompts are: from the data file and the tokenizer where they are there, else estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.envs.longdoc.chunking import chunk_task, joined_text
from atommem.envs.longdoc.environment import LongDocConfig
from atommem.envs.task_files import iter_tasks
from atommem.episode import Observation
from atommem.memory.entries import MemoryView
from atommem.prompts import PromptBuilder
from atommem.tokens import token_offsets
from atommem.train.dry_run.dry_run_config import DryRunConfig

CHARACTERS_A_TOKEN = 4.2
"""Of English prose, for vocabularies of 50,000 to 150,000 tokens."""
DOCUMENT_TOKENS = 140
"""A paragraph of Wikipedia with its title, as HotpotQA and its like have."""
QUESTION_TOKENS = 25
SAMPLED_TASKS = 16


@dataclass(frozen=True, slots=True)
class DataShape:
    """Means over the tasks.

    Attributes:
        source: Where the numbers come from.
        tasks: In the file.
        chunks: Of a task.
        chunk_tokens: Of a chunk.
        questions: Of a task.
        question_tokens: Of a question.
    """

    source: str
    tasks: int
    chunks: float
    chunk_tokens: float
    questions: float
    question_tokens: float


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


def supposed_data(environment: LongDocConfig, settings: DryRunConfig, reason: str) -> DataShape:
    """The tasks that `settings` describe, for want of a file; `reason` says why."""
    tokens = settings.dry_run_documents * DOCUMENT_TOKENS
    chunks = settings.dry_run_documents
    if environment.chunking == "tokens":
        chunks = -(-tokens // environment.chunk_tokens)
    return DataShape(
        f"supposed, as {reason}: {settings.dry_run_documents} documents of {DOCUMENT_TOKENS} tokens, "
        f"{settings.dry_run_questions:g} questions (--dry_run_documents, --dry_run_questions, --dry_run_tasks)",
        settings.dry_run_tasks,
        chunks,
        tokens / chunks,
        settings.dry_run_questions,
        QUESTION_TOKENS,
    )


def measure_data(path: str, environment: LongDocConfig, tokenizer: Any, settings: DryRunConfig) -> DataShape:
    """Means over the first tasks of the file, or `supposed_data` when it is not there.

    Raises:
        DataError: The file is no task file.
    """
    if not Path(path).is_file():
        return supposed_data(environment, settings, f"{path} is not there")
    tasks = list(islice(iter_tasks(path), SAMPLED_TASKS))
    chunks_of, tokens_of, questions = [], [], []
    for task in tasks:
        if environment.chunking == "tokens":
            tokens_of.append(len(token_offsets(tokenizer, joined_text(task))))
            chunks_of.append(-(-tokens_of[-1] // environment.chunk_tokens))
        else:
            pieces = chunk_task(task, tokenizer, environment.chunking, environment.chunk_tokens, False)
            tokens_of.append(sum(len(tokenizer.encode(piece, add_special_tokens=False)) for piece in pieces))
            chunks_of.append(len(pieces))
        questions += [len(tokenizer.encode(item.text, add_special_tokens=False)) for item in task.questions]
    return DataShape(
        f"the first {len(tasks)} tasks of {path}",
        _count(path, len(tasks)),
        sum(chunks_of) / len(tasks),
        sum(tokens_of) / max(1, sum(chunks_of)),
        len(questions) / len(tasks),
        sum(questions) / max(1, len(questions)),
    )


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Tokens of a prompt's pieces.

    Attributes:
        reading, answering: All that is not question, chunk or memory: instructions, headings, chat markup.
        memory: Expected scratchpad, query and entries.
        longest_memory: At its limit; entries count as in `memory`, for nothing limits them.
        is_chunk_first: Layout ``prefix``: the episodes of a group share the chunk.
    """

    reading: float
    answering: float
    memory: float
    longest_memory: float
    is_chunk_first: bool


ENTRY_TOKENS, QUERY_TOKENS, SCRATCHPAD_SHARE = 50, 15, 0.25
"""What a memory is expected to look like: entries, a query, and how full the scratchpad is."""


def measure_prompt(memory: MemoryConfig, tokenizer: Any, chat_template_kwargs: dict[str, Any]) -> PromptShape:
    """Build prompts with nothing in them, and count.

    Raises:
        DialectError: Dialect or templates are unknown or do not fit each other.
    """
    dialect = get_dialect(memory.dialect, memory.templates)
    builder = PromptBuilder(tokenizer, dialect, memory, chat_template_kwargs)
    nothing = MemoryView(capacity=memory.capacity)
    reading = len(builder.build(Observation("reading", ("",), chunk="", chunk_count=1), nothing))
    answering = len(builder.build(Observation("answering", ("",), chunk_count=1), nothing))
    off = set(memory.disabled_actions)
    kinds = {str(kind) for kind in dialect.kinds} - off
    entries = memory.retrieve_k * ENTRY_TOKENS + QUERY_TOKENS if {"create", "read"} <= kinds else 0
    scratchpad = memory.scratchpad_tokens if "scratchpad" in kinds else 0
    return PromptShape(
        reading,
        answering,
        entries + scratchpad * SCRATCHPAD_SHARE,
        entries + scratchpad,
        memory.layout == "prefix",
    )


def _count(path: str, at_least: int) -> int:
    """Tasks in a file, without reading them."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        return int(parquet.ParquetFile(path).metadata.num_rows)
    if path.endswith(".jsonl"):
        with Path(path).open("rb") as file:
            return sum(bool(line.strip()) for line in file)
    return at_least

"""How long the tasks of the long-document environment are: from the data file where it is there, else estimated."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from atommem.environment import TaskShape
from atommem.envs.chunking import chunk_task, joined_text
from atommem.envs.longdoc.longdoc_config import LongDocConfig
from atommem.envs.task_files import iter_tasks
from atommem.tokens import Tokenizer, token_offsets

DOCUMENT_TOKENS = 140
"""A paragraph of Wikipedia with its title, as HotpotQA and its like have."""
QUESTION_TOKENS = 25
SAMPLED_TASKS = 16


def supposed_shape(config: LongDocConfig, supposed: TaskShape) -> TaskShape:
    """Tasks of as many documents and questions as supposed."""
    tokens = supposed.documents * DOCUMENT_TOKENS
    chunks = (
        supposed.documents if config.chunking == "documents" else -(-tokens // config.chunk_tokens)
    )
    return replace(
        supposed,
        stream_steps=chunks,
        stream_tokens=tokens / chunks,
        questions=supposed.questions / (together := min(config.at_once, supposed.questions)),
        question_tokens=QUESTION_TOKENS * together,
        reads=config.max_reads,
        same_stream=_same_stream(config),
    )


def measured_shape(path: str, config: LongDocConfig, tokenizer: Tokenizer) -> TaskShape:
    """Means over the first tasks of the file.

    Raises:
        DataError: The file is no task file.
    """
    tasks = list(islice(iter_tasks(path), SAMPLED_TASKS))
    chunks_of, tokens_of, questions = [], [], []
    for task in tasks:
        if config.chunking == "tokens":
            tokens_of.append(len(token_offsets(tokenizer, joined_text(task))))
            chunks_of.append(-(-tokens_of[-1] // config.chunk_tokens))
        else:
            pieces = chunk_task(task, tokenizer, config.chunking, config.chunk_tokens, False)
            tokens_of.append(
                sum(len(tokenizer.encode(piece, add_special_tokens=False)) for piece in pieces)
            )
            chunks_of.append(len(pieces))
        questions += [
            len(tokenizer.encode(item.text, add_special_tokens=False)) for item in task.questions
        ]
    asked = sum(-(-len(task.questions) // config.at_once) for task in tasks)  # at so many steps
    return TaskShape(
        source=f"the first {len(tasks)} tasks of {path}",
        tasks=_count(path, len(tasks)),
        documents=sum(len(task.documents) for task in tasks) / len(tasks),
        stream_steps=sum(chunks_of) / len(tasks),
        stream_tokens=sum(tokens_of) / max(1, sum(chunks_of)),
        questions=asked / len(tasks),
        question_tokens=sum(questions) / max(1, asked),
        reads=config.max_reads,
        same_stream=_same_stream(config),
    )


def _same_stream(config: LongDocConfig) -> bool:
    """Not where questions arrive between: how many steps they take is the policy's choice."""
    return "arriving" not in config.questions_shown


def _count(path: str, at_least: int) -> int:
    """Tasks in a file, without reading them."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        return int(parquet.ParquetFile(path).metadata.num_rows)
    if path.endswith(".jsonl"):
        with Path(path).open("rb") as file:
            return sum(bool(line.strip()) for line in file)
    return at_least

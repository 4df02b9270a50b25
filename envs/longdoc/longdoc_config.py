"""Settings of the long-document environment, and the size of its tasks for a dry run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from atommem.config import check_choice, check_least, setting
from atommem.environment import TaskShape
from atommem.envs.chunking import chunk_task, joined_text
from atommem.envs.question_answering import QAConfig
from atommem.envs.questions_shown import check_modes
from atommem.envs.task_files import iter_tasks
from atommem.tokens import Tokenizer, token_offsets

DOCUMENT_TOKENS = 140
"""A paragraph of Wikipedia with its title, as in HotpotQA."""
QUESTION_TOKENS = 25
_SAMPLED_TASKS = 16


@dataclass
class LongDocConfig(QAConfig):
    """How a document is cut, and how an episode is asked and scored."""

    chunking: str = setting(
        "tokens", "tokens: cut the joined text; documents: one chunk a document."
    )
    at_once: int = setting(
        1, "Questions asked at one step, at most (the templates memagent are worded for several)."
    )
    questions_shown: list[str] = setting(
        ["reading"],
        "When questions are shown: reading (at every step), answering (only when they are asked, "
        "after the text), arriving (asked after some part of it, and then reading goes on). Of "
        "several, one is drawn for each task; named twice, it is twice as likely.",
    )
    open_ended: bool = setting(
        False,
        "Do not tell how many parts the text has, nor that it is over: as in a stream whose length "
        "nobody knows (serving).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, at_once=1)
        self.questions_shown = check_modes(self.questions_shown)
        check_choice("chunking", self.chunking, ("tokens", "documents"))

    @property
    def same_stream(self) -> bool:
        """Whether all episodes of a task read the same at the same step: not if reads intervene."""
        return "arriving" not in self.questions_shown


def estimated_shape(config: LongDocConfig, supposed: TaskShape) -> TaskShape:
    """Return the size of tasks of as many documents and questions as supposed."""
    tokens = supposed.documents * DOCUMENT_TOKENS
    chunks = -(-tokens // config.chunk_tokens)
    if config.chunking == "documents":
        chunks = supposed.documents
    together = min(config.at_once, supposed.questions)
    return replace(
        supposed,
        stream_steps=chunks,
        stream_tokens=tokens / chunks,
        questions=supposed.questions / together,
        question_tokens=QUESTION_TOKENS * together,
        reads=config.max_reads,
        same_stream=config.same_stream,
    )


def measured_shape(path: str, config: LongDocConfig, tokenizer: Tokenizer) -> TaskShape:
    """Return the mean size of the first tasks of a task file."""
    tasks = list(islice(iter_tasks(path), _SAMPLED_TASKS))
    chunks = tokens = asked = question_tokens = 0
    for task in tasks:
        if config.chunking == "tokens":
            length = len(token_offsets(tokenizer, joined_text(task)))
            chunks += -(-length // config.chunk_tokens)
            tokens += length
        else:
            pieces = chunk_task(task, tokenizer, config.chunking, config.chunk_tokens)
            chunks += len(pieces)
            tokens += sum(len(token_offsets(tokenizer, piece)) for piece in pieces)
        asked += -(-len(task.questions) // config.at_once)
        question_tokens += sum(
            len(token_offsets(tokenizer, question.text)) for question in task.questions
        )
    return TaskShape(
        source=f"the first {len(tasks)} tasks of {path}",
        tasks=_count(path, len(tasks)),
        documents=sum(len(task.documents) for task in tasks) / len(tasks),
        stream_steps=chunks / len(tasks),
        stream_tokens=tokens / max(1, chunks),
        questions=asked / len(tasks),
        question_tokens=question_tokens / max(1, asked),
        reads=config.max_reads,
        same_stream=config.same_stream,
    )


def _count(path: str, at_least: int) -> int:
    """Return the number of tasks in a file without parsing them."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        return int(parquet.ParquetFile(path).metadata.num_rows)
    if path.endswith(".jsonl"):
        with Path(path).open("rb") as file:
            return sum(bool(line.strip()) for line in file)
    return at_least

"""A task: question(s), gold answers, and the documents to read, cut into chunks."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atommem.environment import QuestionDescription, TaskDescription
from atommem.episode import Piece
from atommem.text_safety import clean
from atommem.tokens import Tokenizer, cut_position, token_offsets

_ATTRIBUTES = ("type", "level", "hops")  # metadata of questions by which scores are reported
# A sentence ends after . ! ? (and closing quotes or brackets) before white space, after their CJK
# counterparts, and before a line break. The white space goes to the next chunk, as most tokenizers
# put it into the token that follows.
SENTENCE_END = re.compile(r"[.!?؟۔।][\"'”’)\]»]*(?=\s)|[。！？]|(?=\n)")  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its gold answers, the canonical one first; none if they are unknown."""

    text: str
    answers: tuple[str, ...] = ()
    id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def with_documents(self, places: Iterable[int]) -> Question:
        """Return the question with the places (from 0) of its gold documents in its metadata."""
        return replace(self, metadata={**self.metadata, "documents": sorted({*places})})


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of the stream. `gold` marks documents that the questions need."""

    title: str
    text: str
    gold: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of data; `context` replaces `documents` if the text comes ready joined."""

    id: str
    questions: tuple[Question, ...]
    documents: tuple[Document, ...] = ()
    context: str | None = None
    source: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.id)  # metadata has none


def describe_task(task: Task) -> TaskDescription:
    questions = []
    for one in task.questions:
        category = str(one.metadata.get("category", ""))
        known = {name: str(one.metadata[name]) for name in _ATTRIBUTES if name in one.metadata}
        questions.append(QuestionDescription(one.text, one.answers, one.id, category, known))
    group = str(task.metadata.get("sample_id", ""))
    return TaskDescription(task.id, task.source, tuple(questions), group)


def questions_piece(texts: Sequence[str]) -> Piece:
    """Return the questions as a piece of an observation; several are numbered."""
    if len(texts) == 1:
        return Piece("questions", {"questions": texts[0]})
    numbered = (dict[str, Any](number=number, text=text) for number, text in enumerate(texts, 1))
    lines = tuple(Piece("question_line", values) for values in numbered)
    return Piece("questions", {"questions": lines})


def document_texts(documents: Iterable[Document]) -> list[str]:
    """Return documents as they stand in the joined text, numbered from 1."""
    return [
        (f"Document {n}: {one.title}\n" if one.title else "") + one.text.strip()
        for n, one in enumerate(documents, start=1)
    ]


def joined_text(task: Task) -> str:
    """Return a task's context, or its documents separated by blank lines."""
    return "\n\n".join(document_texts(task.documents)) if task.context is None else task.context


def chunk_text(text: str, tokenizer: Tokenizer, chunk_tokens: int) -> list[str]:
    """Cut `text` into pieces of at most `chunk_tokens` tokens, which joined are `text`.

    Tokens are counted in the whole text; a chunk encoded by itself may differ by a token at its
    edges. No character is cut.
    """
    offsets = token_offsets(tokenizer, text)
    starts = [start for start, _ in offsets]
    chunks: list[str] = []
    begin, token = 0, 0
    while token < len(offsets):
        limit = token + chunk_tokens
        if limit >= len(offsets):
            chunks.append(text[begin:])
            break
        end = cut_position(offsets, limit)
        if end <= begin:
            # A character of more tokens than a chunk holds stays whole.
            end = next((start for start in starts[token:] if start > begin), len(text))
        chunks.append(text[begin:end])
        begin = end
        token = bisect_right(starts, begin - 1)
    return chunks


def chunk_task(task: Task, tokenizer: Tokenizer, chunking: str, chunk_tokens: int) -> list[str]:
    """Return the chunks of a task: of its joined text, or one a document (``documents``)."""
    if chunking == "documents" and task.context is None:
        return [f"{one.title}\n{one.text}" if one.title else one.text for one in task.documents]
    return chunk_text(clean(joined_text(task)), tokenizer, chunk_tokens)

"""A task's documents as the stream of chunks that an episode reads."""

from __future__ import annotations

import re
from bisect import bisect_right

from atommem.envs.task import Document, Task
from atommem.text_safety import clean
from atommem.tokens import Tokenizer, cut_position, token_offsets

# A sentence ends after . ! ? (and closing quotes or brackets) before white space, after their CJK
# counterparts, and before a line break. The white space goes to the next chunk, as most tokenizers
# put it into the token that follows.
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s)|[。！？]|(?=\n)")  # noqa: RUF001


def document_text(document: Document, number: int) -> str:
    """Return a document as it stands in the joined text; `number` counts from 1."""
    heading = f"Document {number}: {document.title}\n" if document.title else ""
    return heading + document.text.strip()


def joined_text(task: Task) -> str:
    """Return a task's context, or its documents separated by blank lines."""
    if task.context is not None:
        return task.context
    return "\n\n".join(
        document_text(document, n) for n, document in enumerate(task.documents, start=1)
    )


def chunk_text(
    text: str, tokenizer: Tokenizer, chunk_tokens: int, whole_sentences: bool = False
) -> list[str]:
    """Cut `text` into pieces of at most `chunk_tokens` tokens, which joined are `text`.

    Tokens are counted in the whole text; a chunk encoded by itself may differ by a token at its
    edges. No character is cut. With `whole_sentences` a chunk ends where a sentence ends, unless a
    single sentence is longer than a chunk.
    """
    offsets = token_offsets(tokenizer, text)
    starts = [start for start, _ in offsets]
    ends = [match.end() for match in SENTENCE_END.finditer(text)] if whole_sentences else []
    chunks: list[str] = []
    begin, token = 0, 0
    while token < len(offsets):
        limit = token + chunk_tokens
        if limit >= len(offsets):
            chunks.append(text[begin:])
            break
        end = cut_position(offsets, limit)
        last = bisect_right(ends, end) - 1
        if last >= 0 and ends[last] > begin:
            end = ends[last]
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
        return [
            f"{item.title}\n{item.text}" if item.title else item.text for item in task.documents
        ]
    return chunk_text(clean(joined_text(task)), tokenizer, chunk_tokens)

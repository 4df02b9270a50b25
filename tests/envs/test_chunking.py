import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.envs.chunking import chunk_task, chunk_text, joined_text
from atommem.envs.task import Document, Task
from tests.fakes import WordTokenizer


class ByteTokenizer(WordTokenizer):
    """One token a UTF-8 byte, all of a character's tokens with its span: the worst byte-level case."""

    def __call__(self, text: str, **_: object) -> dict[str, object]:
        spans = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode("utf-8")]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}


TOKENIZERS = {"words": WordTokenizer(), "bytes": ByteTokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text("ab .!?\n北é😀", max_size=200), size=st.integers(1, 20), sentences=st.booleans())
@settings(max_examples=150)
def test_chunks_joined_are_the_text_and_none_is_too_long(name: str, text: str, size: int, sentences: bool) -> None:
    tokenizer = TOKENIZERS[name]
    chunks = chunk_text(text, tokenizer, size, whole_sentences=sentences)
    assert "".join(chunks) == text
    for chunk in chunks:
        count = len(tokenizer(chunk, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"])
        # Only a single character may need more tokens than a chunk holds; blanks at an edge may form one token more.
        assert count <= size + 1 or len(chunk) == 1


def test_whole_sentences_stay_together_when_they_fit() -> None:
    text = "One two three. Four five. Six seven eight nine ten eleven twelve. Done."
    assert chunk_text(text, WordTokenizer(), 5, whole_sentences=True) == [
        "One two three. Four five.",
        " Six seven eight nine ten",
        " eleven twelve. Done.",
    ]


def test_documents_are_joined_with_their_titles_or_are_a_chunk_each() -> None:
    task = Task("t", (), (Document("Ann", "She ran. "), Document("", "No title.")))
    assert joined_text(task) == "Document 1: Ann\nShe ran.\n\nNo title."
    assert joined_text(Task("t", (), context="ready")) == "ready"
    assert chunk_task(task, WordTokenizer(), "documents", 1, False) == ["Ann\nShe ran. ", "No title."]
    assert chunk_task(task, WordTokenizer(), "tokens", 100, False) == [joined_text(task)]

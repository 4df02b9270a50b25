"""Counting and cutting, with a tokenizer and without one."""

import pytest

from atommem.errors import ConfigError
from atommem.tokens import ApproximateTokenizer, cut_to_tokens, token_offsets
from tests.fakes import WordTokenizer


def test_cut_to_tokens_long_text_ends_with_marker_within_limit() -> None:
    tokenizer = WordTokenizer()
    text = " ".join(f"w{i}" for i in range(100))
    cut = cut_to_tokens(tokenizer, text, 10, " [cut]")
    assert cut == "w0 w1 w2 w3 w4 w5 w6 w7 w8 [cut]"
    assert len(tokenizer.encode(cut)) == 10
    assert cut_to_tokens(ApproximateTokenizer(), "one two three four", 3, "...") == "..."


@pytest.mark.parametrize("text", ["", "  two\n\nlines ", "Ünïcödé 東京 \U0001f600\0 \ud800"])
def test_token_offsets_cover_the_text(text: str) -> None:
    tokenizer = ApproximateTokenizer()
    ids = tokenizer.encode(text)
    spans = token_offsets(tokenizer, text)
    assert len(spans) == len(ids)
    assert "".join(text[start:end] for start, end in spans) == text
    with pytest.raises(ConfigError, match="only counts"):
        tokenizer.decode(ids)

"""Counting tokens without a tokenizer."""

import pytest

from atommem.errors import ConfigError
from atommem.rough_tokens import RoughTokenizer
from atommem.tokens import cut_to_tokens, token_offsets

TEXTS = ["", "A house.", "  two\n\nlines ", "1234567", "Ünïcödé 東京 \U0001f600", "\0nul \ud800 half", "x" * 37]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_cover_the_text(text: str) -> None:
    tokenizer = RoughTokenizer()
    ids = tokenizer.encode(text)
    spans = token_offsets(tokenizer, text)
    assert len(spans) == len(ids)
    assert "".join(text[start:end] for start, end in spans) == text
    with pytest.raises(ConfigError, match="only counted"):
        tokenizer.decode(ids)


def test_it_counts_about_as_models_do_and_rather_more() -> None:
    words = "The committee acknowledged that international negotiations about temperature had failed in 1987."
    assert 14 <= len(RoughTokenizer().encode(words)) <= 32  # Qwen3's tokenizer counts 17
    assert cut_to_tokens(RoughTokenizer(), "one two three four", 3, "...") == "..."

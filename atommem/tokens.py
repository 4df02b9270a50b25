"""Tokenizers: encoding, cutting text by tokens, and counting without a model's tokenizer."""

import re
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from atommem.errors import ConfigError

_PIECE = re.compile(r"\s?(?:[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9])|\s+")


class Tokenizer(Protocol):
    """The part of a Hugging Face (fast) tokenizer that the core uses."""

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> Any:
        """Encode with the character span of every token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Convert text to token ids."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Convert token ids to text."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any:
        """Render chat messages."""


def token_offsets(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Return the character span ``(start, end)`` of every token of `text`."""
    return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]


def cut_position(offsets: Sequence[tuple[int, int]], count: int) -> int:
    """Return the character position that leaves at most `count` tokens.

    A character that a byte-level tokenizer spreads over several tokens is not cut in two.
    """
    if count >= len(offsets):
        return offsets[-1][1] if offsets else 0
    while count > 0 and offsets[count - 1][1] > offsets[count][0]:
        count -= 1
    return offsets[count][0]


def cut_to_tokens(tokenizer: Tokenizer, text: str, limit: int, marker: str) -> str:
    """Cut `text` to `limit` tokens, `marker` included."""
    # A token covers at least one byte, so a text this short cannot exceed the limit.
    if len(text.encode("utf-8", "surrogatepass")) <= limit:
        return text
    offsets = token_offsets(tokenizer, text)
    if len(offsets) <= limit:
        return text
    room = max(0, limit - len(tokenizer.encode(marker, add_special_tokens=False)))
    return text[: cut_position(offsets, room)].rstrip() + marker


def unknown_share(tokenizer: Tokenizer, text: str) -> float:
    """Return the share of a text's tokens that the tokenizer has no word for."""
    unknown: Any = getattr(tokenizer, "unk_token_id", None)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids.count(unknown) / max(1, len(ids))


class ApproximateTokenizer:
    """Counts tokens where the model's tokenizer is unknown, such as a chat server's.

    A token is up to five Latin letters, three digits, or any other character, with one white space
    before it: rather shorter than those of current models. Its id is its checksum.
    """

    chat_template = None

    def __call__(
        self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool
    ) -> dict[str, Any]:
        spans = [match.span() for match in _PIECE.finditer(text)]
        return {"input_ids": self.encode(text), "offset_mapping": spans}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        pieces = _PIECE.findall(text)
        return [zlib.crc32(piece.encode("utf-8", "surrogatepass")) for piece in pieces]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        raise ConfigError("an approximate tokenizer only counts. Give the tokenizer of the model.")

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """Join the messages, for people: the server applies its own template."""
        return "\n\n".join(message["content"] for message in conversation)

"""Counting tokens where the model's tokenizer is not known: a chat server's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(r"\s?(?:[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9])|\s+")


class RoughTokenizer:
    """Cuts text into pieces about as long as the tokens of current models, rather shorter: a `Tokenizer`.

    A piece is up to five Latin letters, three digits, or any other character, with one white space before it. An id is
    the piece itself, its bytes read as a number: nothing is kept, and `decode` gives back what was encoded.
    """

    chat_template = None

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> dict[str, Any]:
        """Ids and the character span of every piece."""
        spans = [match.span() for match in _TOKEN.finditer(text)]
        return {"input_ids": [_id(text[start:end]) for start, end in spans], "offset_mapping": spans}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Text to ids."""
        return [_id(piece) for piece in _TOKEN.findall(text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids to text; there are no special tokens."""
        return "".join(_piece(token_id) for token_id in token_ids)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """The messages' contents, for people: the server applies its own template."""
        return "\n\n".join(message["content"] for message in conversation)


def _id(piece: str) -> int:
    return int.from_bytes(b"\1" + piece.encode("utf-8", "surrogatepass"))  # so that no leading zero is lost


def _piece(token_id: int) -> str:
    return token_id.to_bytes((token_id.bit_length() + 7) // 8)[1:].decode("utf-8", "surrogatepass")

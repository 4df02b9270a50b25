"""Counting tokens where the model's tokenizer is not known: a chat server's."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from atommem.errors import ConfigError

_TOKEN = re.compile(r"\s?(?:[A-Za-z]{1,5}|[0-9]{1,3}|[^\sA-Za-z0-9])|\s+")


class RoughTokenizer:
    """Cuts text into pieces about as long as the tokens of current models, rather shorter: a `Tokenizer` that counts.

    A piece is up to five Latin letters, three digits, or any other character, with one white space before it. Its id is
    its checksum: nothing is kept, and nothing can be decoded.
    """

    chat_template = None

    def __call__(
        self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool
    ) -> dict[str, Any]:
        """Ids and the character span of every piece."""
        spans = [match.span() for match in _TOKEN.finditer(text)]
        return {
            "input_ids": [_id(text[start:end]) for start, end in spans],
            "offset_mapping": spans,
        }

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Text to ids."""
        return [_id(piece) for piece in _TOKEN.findall(text)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Not to be had.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("tokens are only counted here: give the tokenizer of the model.")

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """The messages' contents, for people: the server applies its own template."""
        return "\n\n".join(message["content"] for message in conversation)


def _id(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "surrogatepass"))

"""Characters that are a control token by themselves: they cannot be broken, so they are written out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from atommem.tokens import Tokenizer

_CODE = "u[0-9a-f]{4}|U[0-9a-f]{8}"


class WriteOut:
    """Writes the number of a character in its place (``\\u2603``) where its tokens hold a control token.

    Such are the tokens of one character, and in some byte-level vocabularies the rarest of Unicode: they lack a byte,
    and have another special token in its place (SmolLM2 has no planes beyond the third).

    A run of k escape characters before the character grows to 2k + 1, and before what looks written out already
    (k > 0) to 2k. Odd runs are ours, so the rewrite is injective.

    Args:
        tokenizer: Whose characters.
        watched: Its control tokens.
        tokens: Their texts.
        escape: The escape character.

    Attributes:
        needed: Whether there may be any such character.
    """

    def __init__(
        self, tokenizer: Tokenizer, watched: Collection[int], tokens: Collection[str], escape: str
    ) -> None:
        self._tokenizer = tokenizer
        self._watched = frozenset(watched)
        self._escape = escape
        self._known: set[str] = set()
        self._unwritable: set[str] = set()
        if self._watched:
            self._learn(
                {
                    *map(chr, range(33, 127)),
                    *_every_byte(),
                    *(token for token in tokens if len(token) == 1),
                }
            )
        self.needed = bool(self._unwritable)
        lowest = min(self._unwritable, default="")
        self._ascii_stays = not lowest.isascii()
        self._only_rare = lowest >= "\U00010000"

    def __call__(self, text: str) -> str:
        """The rewritten text; `text` itself where nothing in it is written out, or looks so."""
        escape = re.escape(self._escape)
        found: set[str] = set()
        stays = (self._ascii_stays and text.isascii()) or (
            self._only_rare and 2 * len(text) == _size(text)
        )
        if not stays:
            characters = set(text)
            self._learn(characters - self._known)
            found = characters & self._unwritable
        if found:
            single = f"[{re.escape(''.join(sorted(found)))}]"
            return re.sub(
                f"(?<!{escape})({escape}*+)(?:({_CODE})|({single}))", self._rewritten, text
            )
        if self._escape in text:
            return re.sub(f"(?<!{escape})({escape}++)({_CODE})()", self._rewritten, text)
        return text

    def _rewritten(self, match: re.Match[str]) -> str:
        before, code, single = match.groups()
        if not single:
            return f"{before}{before}{code}"
        number = ord(single)
        return f"{before}{before}{self._escape}" + (
            f"u{number:04x}" if number < 0x10000 else f"U{number:08x}"
        )

    def _learn(self, characters: Collection[str]) -> None:
        for character in characters:
            token_ids = self._tokenizer.encode(character, add_special_tokens=False)
            if not self._watched.isdisjoint(token_ids):
                self._unwritable.add(character)
            self._known.add(character)  # last: threads share this


def _size(text: str) -> int:
    """Bytes in UTF-16: two for each of the first 65,536 characters. Far quicker than looking at each."""
    return len(text.encode("utf-16-le"))


def _every_byte() -> Iterator[str]:
    """Characters in which every byte of UTF-8 beyond ASCII occurs."""
    yield from map(
        chr,
        (*range(0xC0, 0x100), *range(0xA1, 0x800, 0x40), 0x821, *range(0x1021, 0x10000, 0x1000)),
    )
    yield from map(chr, (0x10400, 0x40000, 0x80000, 0xC0000, 0x100000))

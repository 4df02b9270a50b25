"""Characters that no request can carry, and those that no terminal should get."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate and NUL; all else stays as it is, so cleaning twice is cleaning once.

    UTF-8 has no form for a surrogate, and JSON only one that servers refuse (two halves that belong together become
    their character); a NUL ends the text in programs written in C. Everything else is carried by both, control
    characters included.
    """
    try:
        text.encode()  # an order of magnitude faster than looking for surrogates
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def printable(text: str) -> str:
    """`text` with U+FFFD for every character that a terminal would obey and not print; of the same length."""
    return _UNPRINTABLE.sub(REPLACEMENT, text)

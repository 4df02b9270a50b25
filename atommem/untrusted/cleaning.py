"""Characters that no request can carry."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_UNCARRIABLE = re.compile("[\ud800-\udfff\0]")


def clean(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate and NUL; all else stays as it is, so cleaning twice is cleaning once.

    UTF-8 has no form for a surrogate, and JSON only one that servers refuse; a NUL ends the text in programs written
    in C. Everything else, control characters included, is carried by both.
    """
    try:
        text.encode()  # an order of magnitude faster than looking for surrogates
    except UnicodeEncodeError:
        return _UNCARRIABLE.sub(REPLACEMENT, text)
    return text.replace("\0", REPLACEMENT) if "\0" in text else text

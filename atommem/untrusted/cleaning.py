"""Characters that no request can carry, and those that no terminal should get."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

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


def read_json(text: str, deepest: int) -> Any:
    """What JSON says, as every reader and database of it takes it: no NaN, no infinity, and texts that are `clean`ed.

    They are cleaned once more after `text` was: an escape (``\\ud800``) spells what that took out.

    Raises:
        ValueError: It is no JSON, or nested more deeply than `deepest`.
        RecursionError: It is nested very deeply.
    """
    return _carried(json.loads(text, parse_constant=_refuse, parse_float=_finite), deepest)


def _carried(value: Any, deepest: int) -> Any:
    if deepest < 0:
        raise ValueError("nested too deeply")  # for whoever copies or writes it
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_carried(item, deepest - 1) for item in value]
    if isinstance(value, dict):
        return {clean(name): _carried(item, deepest - 1) for name, item in value.items()}
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    return number if isfinite(number) else _refuse(literal)


def printable(text: str) -> str:
    """`text` with U+FFFD for every character that a terminal would obey and not print; of the same length."""
    return _UNPRINTABLE.sub(REPLACEMENT, text)

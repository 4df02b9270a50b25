"""The control tokens of a tokenizer: which they are, and where text would become one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from atommem.untrusted.escaping import Finder, Fold, Normalizer, Origins

# Scripts and characters that hardly any vocabulary has, and no two have in common.
_UNKNOWN = ("\U00012345", "\ua66e", "\U0001fbf9\u0378")
_CODE = "u[0-9a-f]{4}|U[0-9a-f]{8}"


def normalizer_of(tokenizer: Any) -> Normalizer | None:
    """The normaliser of a fast tokenizer as a function; None where it has none."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "normalizer", None)
    return None if normalizer is None else normalizer.normalize_str


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """The special and added tokens of a tokenizer by id, without those that are ordinary text.

    Ordinary text are added tokens of nothing but white space (Phi and GPT-NeoX have runs of blanks), and words
    that were added to a vocabulary: letters and digits only, and not marked as special.
    """
    found: dict[int, str] = {}
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        text = str(token)
        word = not getattr(token, "special", True) and all(part.isalnum() for part in text.split())
        if not word and text.replace("▁", " ").strip():
            found[int(token_id)] = text
    # A vocabulary may hold special tokens that were never added.
    texts, ids = getattr(tokenizer, "all_special_tokens", ()), getattr(tokenizer, "all_special_ids", ())
    found.update((int(token_id), str(text)) for text, token_id in zip(texts, ids, strict=False) if str(text).strip())
    return found


def watched_ids(tokenizer: Any, tokens: Iterable[int]) -> frozenset[int]:
    """The ids that must not come out of data: all but what the tokenizer writes for words that it does not know."""
    unknown: set[int] = set()
    if getattr(tokenizer, "unk_token_id", None) is not None:
        for text in _UNKNOWN:
            unknown.update(tokenizer.encode(text, add_special_tokens=False))
    return frozenset(token for token in tokens if token not in unknown or token != tokenizer.unk_token_id)


def find_tokens(tokens: Collection[str], fold: Fold) -> list[Finder]:
    """Finds where to break `tokens` in a text: behind the first character of every occurrence, overlapping ones too."""
    folded = {fold(token)[0] for token in tokens}
    words = sorted(word for word in folded if len(word) > 1)
    return [find_behind_first(re.compile(_any_of(words)))] if words else []


def find_behind_first(pattern: re.Pattern[str]) -> Finder:
    """Gaps behind the first character of every match of `pattern`, which should consume no more than that one."""

    def find(base: str, origins: Origins) -> Iterator[int]:
        return (origins[match.start()] + 1 for match in pattern.finditer(base))

    return find


def single_characters(tokens: Collection[str], fold: Fold, escape: str) -> Callable[[str], str] | None:
    """What writes out the characters that are tokens by themselves (``\\u00a7``), or None without such tokens.

    They cannot be broken. A run of k escape characters before one grows to 2k + 1, and before something that looks
    written out already to 2k: odd runs are ours, so this too is injective.
    """
    singles = {word for word in (fold(token)[0] for token in tokens) if len(word) == 1}
    if not singles:
        return None
    run = re.escape(escape)

    def rewritten(match: re.Match[str]) -> str:
        before, code, single = match.groups()
        if single is None:
            return f"{before}{before}{code}"
        number = ord(single)
        return f"{before}{before}{escape}" + (f"u{number:04x}" if number < 0x10000 else f"U{number:08x}")

    def write_out(text: str) -> str:
        found = "".join(re.escape(part) for part in set(text) if not singles.isdisjoint(fold(part)[0]))
        single = f"[{found}]" if found else "(?!)"
        return re.sub(f"(?<!{run})({run}*+)(?:({_CODE})|({single}))", rewritten, text)

    return write_out


def _any_of(words: list[str]) -> str:
    """A pattern for the first character of any of `words` (sorted, two characters or more) where it goes on as they do.

    Words are grouped by shared beginnings: as a plain alternation, thousands would be tried one after the other.
    """
    firsts: dict[str, list[str]] = {}
    for word in words:
        firsts.setdefault(word[0], []).append(word[1:])
    return "|".join(f"{re.escape(first)}(?={_tree(rests)})" for first, rests in firsts.items())


def _tree(words: list[str]) -> str:
    """A pattern that matches where any of `words` (sorted) begins."""
    if "" in words:
        return ""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[0], []).append(word[1:])
    parts = [(r"\s" if first == " " else re.escape(first)) + _tree(rests) for first, rests in groups.items()]
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(parts) + ")"

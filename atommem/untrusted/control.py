"""The control tokens of a tokenizer: which they are, and where text would become one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from atommem.untrusted.escaping import Finder, Fold, Origins


def fold_of(tokenizer: Any) -> Fold:
    """The fold of a fast tokenizer's normaliser."""
    normalizer: Any = getattr(
        getattr(tokenizer, "backend_tokenizer", tokenizer), "normalizer", None
    )
    if normalizer is None or str(normalizer) == "Sequence(normalizers=[])":
        return Fold()
    canonical = partial(unicodedata.is_normalized, "NFC") if str(normalizer) == "NFC()" else None
    return Fold(normalizer.normalize_str, canonical)


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
    texts, ids = (
        getattr(tokenizer, "all_special_tokens", ()),
        getattr(tokenizer, "all_special_ids", ()),
    )
    found.update(
        (int(token_id), str(text))
        for text, token_id in zip(texts, ids, strict=False)
        if str(text).strip()
    )
    return found


def watched_ids(tokenizer: Any, tokens: Mapping[int, str]) -> frozenset[int]:
    """The ids that must not come out of data: all but that of the words that the tokenizer does not know.

    A token that has another office is watched though its tokenizer writes it for bytes that it does not know, as
    SmolLM2's does with ``<|endoftext|>``.
    """
    unknown = getattr(tokenizer, "unk_token_id", None)
    words = unknown is not None and unknown in tokenizer.encode(
        "qzxj vwkq", add_special_tokens=False
    )
    return frozenset(
        token
        for token, text in tokens.items()
        if token != unknown or not (words or "unk" in text.lower())
    )


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
    parts = [
        (r"\s" if first == " " else re.escape(first)) + _tree(rests)
        for first, rests in groups.items()
    ]
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(parts) + ")"

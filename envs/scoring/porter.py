"""The Porter stemmer ("An algorithm for suffix stripping", 1980) with the extensions of NLTK's default mode.

LoCoMo's F1 compares stems that NLTK makes; a stemmer of another variant would give other scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

_IRREGULAR = {
    "skies": "sky",
    "sky": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "news": "news",
    "innings": "inning",
    "inning": "inning",
    "outings": "outing",
    "outing": "outing",
    "cannings": "canning",
    "canning": "canning",
    "howe": "howe",
    "proceed": "proceed",
    "exceed": "exceed",
    "succeed": "succeed",
}
# Suffix and replacement; of each step's list only the first suffix that the word has is looked at.
_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_STEP_4 = tuple(
    (suffix, "")
    for suffix in (
        *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment"),
        *("ent", "ion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"),
    )
)


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The stem of a word, in lower case."""
    word = word.lower()
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and len(word) > 2 and _consonant(word, len(word) - 2):
        word = word[:-1] + "i"
    word = _step_2(word)
    word = _replaced(word, _STEP_3, lambda rest: _measure(rest) > 0)
    word = _replaced(
        word,
        _STEP_4,
        lambda rest: _measure(rest) > 1 and (not word.endswith("ion") or rest[-1] in "st"),
    )
    return _final(word)


def _consonant(word: str, index: int) -> bool:
    """Whether a letter is a consonant; y is one at the beginning and after a vowel."""
    if word[index] == "y":
        return index == 0 or not _consonant(word, index - 1)
    return word[index] not in "aeiou"


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant (Porter's m)."""
    kinds = [_consonant(word, index) for index in range(len(word))]
    return sum(not before and after for before, after in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return not all(_consonant(word, index) for index in range(len(word)))


def _closed(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last one not w, x or y; or is vowel, consonant."""
    kinds = [_consonant(word, index) for index in range(len(word))]
    return (kinds[-3:] == [True, False, True] and word[-1] not in "wxy") or kinds == [False, True]


def _replaced(word: str, rules: Sequence[tuple[str, str]], condition: Callable[[str], bool]) -> str:
    for suffix, replacement in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + replacement if condition(rest) else word
    return word


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = next(
        (end for end in ("ed", "ing") if word.endswith(end) and _has_vowel(word[: -len(end)])), None
    )
    if suffix is None:
        return word
    rest = word[: -len(suffix)]
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if len(rest) > 1 and rest[-1] == rest[-2] and _consonant(rest, len(rest) - 1):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _closed(rest) else rest


def _step_2(word: str) -> str:
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi") and not word.endswith(tuple(suffix for suffix, _ in _STEP_2)):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, lambda rest: _measure(rest) > 0)


def _final(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _closed(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word

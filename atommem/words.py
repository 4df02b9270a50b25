"""Words of a text in any language; English text has the words of ``\\w+``."""

import re
from unicodedata import category, decimal, normalize

_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u109f\u1780-\u17d3"
    f"\u3006\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f\u31f0-\u31ff{_HAN}"
)
"""Scripts without spaces, for a character class: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
HANGUL = "\u1100-\u11ff\uac00-\ud7a3"
# A vowel sign or an accent belongs to the word before it, though `\w` leaves it out.
_MARKS = "".join(
    mark
    for mark in map(chr, (*range(0x300, 0x2000), *range(0xA800, 0xAC00)))
    if category(mark) in ("Mn", "Mc") and not re.match(f"[{UNSPACED}]", mark)
)
TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}](?:[^\W{UNSPACED}]|[{_MARKS}])*")
"""A word, or a character of a script without spaces."""
_RUN = re.compile(
    rf"(?P<joined>[{UNSPACED}{HANGUL}]+)"
    rf"|[^\W{UNSPACED}{HANGUL}](?:[^\W{UNSPACED}{HANGUL}]|[{_MARKS}])*"
)
_CHARACTER = re.compile(f"[{UNSPACED}]")
_WIDTHS = re.compile("[\uff01-\uffee]+")
# Stress (on letters with which NFC does not compose it), Arabic and Hebrew vowel points, tatweel,
# soft hyphens, joiners, signs of direction, selectors.
_OPTIONAL = re.compile(
    "[\u00ad\u0300\u0301\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u061c\u0640"
    "\u064b-\u065f\u0670\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)
_DIGIT = re.compile(r"[^\D0-9]")


def unify(text: str) -> str:
    """Return a text with one spelling of each character.

    Letters are composed (NFC), full-width forms and decimal digits are those of ASCII, and marks
    that a spelling may leave out are gone. ASCII text stays as it is.
    """
    if text.isascii():
        return text
    text = _WIDTHS.sub(lambda found: normalize("NFKC", found[0]), normalize("NFC", text))
    return _DIGIT.sub(lambda found: str(decimal(found[0])), _OPTIONAL.sub("", text))


def fold_case(text: str) -> str:
    """Return a text with one form of its characters and of their case."""
    return unify(text).casefold().replace("i\u0307", "i")  # the Turkish capital I with a dot


def words(text: str, *, characters: bool = False) -> list[str]:
    """Return the words of a text, case-folded, in order.

    In scripts without spaces, and in Korean, whose words carry particles, these are all pairs of
    neighbouring characters. With `characters`, which a query of one Chinese character needs in a
    text that is searched, also each of these.
    """
    if text.isascii():  # the same, faster
        return re.findall(r"\w+", text.casefold())
    found: list[str] = []
    for match in _RUN.finditer(fold_case(text)):
        run = match["joined"]
        found += [match[0]] if run is None else pairs(run, characters)
    return found


def pairs(run: str, characters: bool = False) -> list[str]:
    """Return all pairs of neighbouring characters, or the only one; and Chinese `characters`."""
    found = [run[at : at + 2] for at in range(max(1, len(run) - 1))]
    return found + re.findall(f"[{_HAN}]", run) if characters and len(run) > 1 else found


def character_pairs(text: str, characters: bool = False) -> list[str]:
    runs = (match["joined"] for match in _RUN.finditer(unify(text)))
    return [pair for run in runs if run for pair in pairs(run, characters)]


def spaced(text: str) -> str:
    """Return a text with spaces around each character of a script without spaces."""
    return _CHARACTER.sub(r" \g<0> ", text)


def is_unspaced(text: str) -> bool:
    return _CHARACTER.search(text) is not None

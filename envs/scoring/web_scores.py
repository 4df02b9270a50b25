"""Scores of the web's benchmarks: exact match and F1 of answers in any script, and GAIA's own rule.

WebWalkerQA is half Chinese, which SQuAD's normalisation sees as one long word. Here texts are brought to one form of
their characters (NFKC: full width becomes half), lose the punctuation of every script, and each character of a script
without spaces is a word, as in the evaluation of CMRC 2018. English comes out as by SQuAD's rule, but for dashes and
quotes beyond ASCII, which go as well.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

from atommem.envs.scoring.metrics import exact_match, f1, sub_exact_match

WEB_SOURCES = ("gaia", "webwalkerqa", "asearcher", "webdancer", "browsecomp_plus")
"""Sources whose answers may be in any script."""
GAIA_SOURCE = WEB_SOURCES[0]
_CHARACTER = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def spaced(text: str) -> str:
    """`text` in one form of its characters, without punctuation, with a space around each character that is a word."""
    same = unicodedata.normalize("NFKC", text)
    kept = "".join(
        character for character in same if not unicodedata.category(character).startswith("P")
    )
    # A text of nothing but punctuation stays: SQuAD's rule compares it as it is.
    return _CHARACTER.sub(r" \1 ", kept).strip() or same


def web_scores(answer: str | None, golds: Sequence[str]) -> dict[str, float]:
    """``em``, ``f1`` and ``sub_em`` of an answer in any script."""
    said, right = None if answer is None else spaced(answer), [spaced(gold) for gold in golds]
    return {
        "em": exact_match(said, right),
        "f1": f1(said, right, "musique"),
        "sub_em": sub_exact_match(said, right),
    }


def gaia_score(answer: str | None, golds: Sequence[str]) -> float:
    """1.0 if `answer` is right by GAIA's rule for one of `golds`, else 0.0; no answer earns nothing.

    The rule is that of its leaderboard's ``scorer.py``. Where the gold answer is a number, the numbers must be equal,
    ``$``, ``%`` and ``,`` left out. Where it has a comma or semicolon, both are lists of as many parts, held against
    each other in order, numbers as numbers and others as text with its punctuation. Else texts are compared without
    white space, punctuation and case.
    """
    if answer is None or not answer.strip():  # the original holds nothing equal to punctuation
        return 0.0
    return float(any(_gaia_equal(answer, gold) for gold in golds))


def _gaia_equal(answer: str, gold: str) -> bool:
    if _is_number(gold):
        return _number(answer) == float(gold)
    if re.search("[,;]", gold):
        said, right = re.split("[,;]", answer), re.split("[,;]", gold)
        return len(said) == len(right) and all(map(_gaia_equal_part, said, right))
    return _squeezed(answer).translate(_NO_PUNCTUATION) == _squeezed(gold).translate(
        _NO_PUNCTUATION
    )


def _gaia_equal_part(answer: str, gold: str) -> bool:
    return (
        _number(answer) == float(gold) if _is_number(gold) else _squeezed(answer) == _squeezed(gold)
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """The number that an answer gives; infinity where it is none, as in the original."""
    for sign in "$%,":
        text = text.replace(sign, "")
    return float(text) if _is_number(text) else float("inf")


def _squeezed(text: str) -> str:
    return re.sub(r"\s", "", text).lower()

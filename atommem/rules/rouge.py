"""ROUGE-L of two lists of words."""

from __future__ import annotations

from collections.abc import Sequence


def rouge_l(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """F of the longest common subsequence (Lin 2004), 0 where one is empty.

    The subsequence's length by bits (Hyyro 2004): a bit of `rows` is unset for each of its words.
    """
    if not candidate or not reference:
        return 0.0
    places: dict[str, int] = {}
    for i, word in enumerate(candidate):
        places[word] = places.get(word, 0) | 1 << i
    rows = full = (1 << len(candidate)) - 1
    for word in reference:
        matches = rows & places.get(word, 0)
        rows = ((rows + matches) | (rows - matches)) & full
    return 2 * (len(candidate) - rows.bit_count()) / (len(candidate) + len(reference))

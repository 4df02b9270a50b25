"""What tools over pages share: words, folded titles, snippets, the titles that a text names."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

_WORD = re.compile(r"\w+")
_SNIPPET_WORDS = 40
CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of scripts that put no space between words (Han, Hiragana, Katakana), for a regular expression's class."""
_NAMED = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
_LONGEST_TITLE = 10


def words(text: str) -> list[str]:
    """The words of a text, their case folded."""
    return _WORD.findall(text.casefold())


def folded(title: str) -> str:
    """A title without what two mentions of it may differ in: case and white space."""
    return " ".join(title.split()).casefold()


def core(title: str) -> str:
    """A title as a text may name it: folded, from its first word to the end of its last one."""
    found = list(_NAMED.finditer(title))
    return folded(title[found[0].start() : found[-1].end()]) if found else folded(title)


def snippet(text: str, query: str) -> str:
    """The forty words of `text` that say the most of `query`; a character of a script without spaces is a word."""
    wanted = {word.casefold() for word in _NAMED.findall(query)}
    said = list(_NAMED.finditer(text))
    hits = [at for at, word in enumerate(said) if word[0].casefold() in wanted]
    best = max(
        hits,
        key=lambda at: bisect_left(hits, at + _SNIPPET_WORDS * 3 // 4) - bisect_left(hits, at),
        default=0,
    )
    shown = said[max(0, best - _SNIPPET_WORDS // 4) :][:_SNIPPET_WORDS]
    return " ".join(text[shown[0].start() : shown[-1].end()].split()) if shown else ""


def named(text: str, known: Callable[[Iterable[str]], set[str]]) -> list[str]:
    """The titles that `text` names, as their `core`, in the order of their first mention; the longest counts.

    Args:
        text: Of a page.
        known: Which of some strings are the core of a title.
    """
    found = list(_NAMED.finditer(text))
    # A name does not begin in the middle of a sentence in small letters: four in five places need no look.
    starts = [at for at, word in enumerate(found) if not word[0][0].islower()]
    spans: dict[int, Sequence[tuple[int, str]]] = {
        at: [
            (end, folded(text[found[at].start() : found[end].end()]))
            for end in range(min(at + _LONGEST_TITLE, len(found)) - 1, at - 1, -1)
        ]
        for at in starts
    }
    titles = known({span for ends in spans.values() for _, span in ends})
    linked, after = dict[str, None](), 0
    for at, ends in spans.items():
        longest = (
            next(((end, span) for end, span in ends if span in titles), None)
            if at >= after
            else None
        )
        if longest is not None:
            after, title = longest[0] + 1, longest[1]
            linked[title] = None
    return list(linked)

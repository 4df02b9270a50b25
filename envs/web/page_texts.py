"""Text functions of the tools that show pages: snippets, titles that a text names."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

from atommem.words import TOKEN, fold_case

_SNIPPET_WORDS = 40
_MAX_TITLE_WORDS = 10


def fold(title: str) -> str:
    """Return a title with normalized case and white space."""
    return " ".join(fold_case(title).split())


def core(title: str) -> str:
    """Return a folded title from its first word to its last, without punctuation around them."""
    found = list(TOKEN.finditer(title))
    return fold(title[found[0].start() : found[-1].end()]) if found else fold(title)


def snippet(text: str, query: str) -> str:
    """Return the forty words of `text` with the most words of `query`."""
    wanted = {fold_case(word) for word in TOKEN.findall(query)}
    found = list(TOKEN.finditer(text))
    hits = [at for at, word in enumerate(found) if fold_case(word[0]) in wanted]

    def hits_after(at: int) -> int:
        return bisect_left(hits, at + _SNIPPET_WORDS * 3 // 4) - bisect_left(hits, at)

    best = max(hits, key=hits_after, default=0)
    part = found[max(0, best - _SNIPPET_WORDS // 4) :][:_SNIPPET_WORDS]
    return " ".join(text[part[0].start() : part[-1].end()].split()) if part else ""


def named_titles(text: str, find_titles: Callable[[Iterable[str]], Mapping[str, str]]) -> list[str]:
    """Return the titles that `text` names, in the order of their mention.

    The longest title at a place counts. Names do not start with a small letter. `find_titles` maps
    those of some strings that are the `core` of a title to the title.
    """
    found = list(TOKEN.finditer(text))
    spans: dict[int, dict[str, int]] = {}
    for at, word in enumerate(found):
        if not word[0][0].islower():
            ends = range(min(at + _MAX_TITLE_WORDS, len(found)) - 1, at - 1, -1)
            spans[at] = {fold(text[word.start() : found[end].end()]): end for end in ends}
    titles = find_titles({span for candidates in spans.values() for span in candidates})
    named: dict[str, None] = {}
    after = 0
    for at, candidates in spans.items():
        title = next((span for span in candidates if span in titles), None) if at >= after else None
        if title is not None:
            after = candidates[title] + 1
            named[titles[title]] = None
    return list(named)

"""How data is rewritten: a run of escape characters grows by one wherever it would be read as more than data.

Call the text without its escape characters its base. Which places between two characters of the base are *gaps* is
decided by the base alone, and the rewrite makes the run of escape characters at each gap (of no length, as a rule) one
longer. So a rewritten text has the base of the original and therefore its gaps, and who takes one escape character away
at each has the original again. The rewrite is injective, and no gap of its result is without an escape character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence

Normalizer = Callable[[str], str]
Finder = Callable[[str, "Origins"], Iterable[int]]
Origins = Sequence[int]

_FRAME = "0"  # combines with no mark


class Fold:
    """What a normaliser makes of every character by itself: to see a token or a heading through its disguises.

    White space stays as it is, unless it is taken away. What is no white space and becomes some is folded to a blank.

    Args:
        normalize: A tokenizer's normaliser; None for one that leaves everything as it is.
        unchanged: Whether it would leave a text as it is, where that can be told at once.
    """

    def __init__(
        self, normalize: Normalizer | None = None, unchanged: Callable[[str], bool] | None = None
    ) -> None:
        self._normalize = normalize
        self._unchanged = unchanged or (lambda text: False)
        self._table: dict[int, str] = {}
        self._known: set[str] = set()
        self._odd: set[str] = set()
        self._wide: set[str] = set()
        self._blank = ""
        if normalize is not None:
            self._blank = self._alone(" ")
            self._learn(map(chr, range(128)))
        self._ascii_stays = not self._odd

    def __call__(self, text: str) -> tuple[str, Origins]:
        """The folded text, and for each of its characters the position of the one that it comes from."""
        if (
            self._normalize is None
            or (self._ascii_stays and text.isascii())
            or self._unchanged(text)
        ):
            return text, range(len(text))
        characters = set(text)
        self._learn(characters - self._known)
        if self._odd.isdisjoint(characters):
            return text, range(len(text))
        folded = text.translate(self._table)
        if self._wide.isdisjoint(characters):
            return folded, range(len(text))
        table = self._table
        return folded, [
            at for at, character in enumerate(text) for _ in table.get(ord(character), character)
        ]

    def _learn(self, characters: Iterable[str]) -> None:
        for character in characters:
            folded = self._alone(character)
            if folded and (folded.isspace() or folded == self._blank):
                folded = character if character.isspace() else " "
            if folded != character:
                self._table[ord(character)] = folded
                self._odd.add(character)
                if len(folded) != 1:
                    self._wide.add(character)
            self._known.add(character)  # last: threads share this

    def _alone(self, character: str) -> str:
        """The character normalised between two others: normalisers strip and prepend at the ends."""
        assert self._normalize is not None
        try:
            normal = self._normalize(_FRAME + character + _FRAME)
        except UnicodeEncodeError:  # a surrogate
            return character
        start, end = normal.find(_FRAME) + 1, normal.rfind(_FRAME)
        return normal[start:end] if 0 < start <= end else character


def compatible(character: str) -> str:
    """The plainest form of a character, for a reader whose normaliser is not known: NFKC, without what is not seen."""
    plain = unicodedata.normalize("NFKC", character)
    return "".join(
        part for part in plain if part.isspace() or unicodedata.category(part) not in _UNSEEN
    )


_UNSEEN = ("Cf", "Mn", "Me", "Cc")


class Escaper:
    """Rewrites data as this module's docstring says.

    Args:
        escape: The escape character; the finders must not depend on it.
        fold: Applied to a base before it is searched.
        finders: Each gives the gaps of a folded base, as positions in the base: a gap is before the character there.
    """

    def __init__(self, escape: str, fold: Fold, finders: Sequence[Finder]) -> None:
        self.escape = escape
        self._fold = fold
        self._finders = finders

    def __call__(self, text: str) -> str:
        """The rewritten text: `text` itself where it has no gap."""
        base = text.replace(self.escape, "") if self.escape in text else text
        folded, origins = self._fold(base)
        gaps = {gap for finder in self._finders for gap in finder(folded, origins)}
        return self._grown(text, gaps) if gaps else text

    def _grown(self, text: str, gaps: set[int]) -> str:
        places = [at for at, character in enumerate(text) if character != self.escape]
        places.append(len(text))
        pieces: list[str] = []
        last = 0
        for gap in sorted(gaps):
            pieces += (text[last : places[gap]], self.escape)
            last = places[gap]
        return "".join(pieces) + text[last:]

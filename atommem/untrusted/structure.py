"""What a prompt's templates write, so that no data can be mistaken for it.

A prompt is a sequence of pieces, each a template with data, numbers of ours, or further pieces in its placeholders.
Who reads it from the left knows of every data value where it may end: where a *heading* that may follow stands at the
start of a line (in a prompt of plain words: at the start of a word). A heading is the literal text with which a
template begins, or goes on after a placeholder; numbers in it are any numbers: ``Memory 3:``, ``Your scratchpad:``.
What follows a placeholder on its line (`` at `` in ``{tool} at {url}``) ends its values wherever it stands: a *stop*.

Data holds no heading without an escape character before it, and no stop without one inside of it; no heading is the
beginning of another (`Structure` refuses such templates). So the first bare heading or stop in the rest of a prompt is
the one that ends the value. It tells what follows, hence what separates it from the value, and the value is all that
stands before the separator, to the last blank. A prompt therefore has one reading: its pieces, their numbers and their
data. Data being escaped injectively, different observations and memories have different prompts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import permutations

from atommem.errors import DialectError
from atommem.untrusted.escaping import Finder, Fold, Origins

# Whatever a tokenizer, a chat template or a reader may take for the end of a line.
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")
_NUMBER = "\0"
_LINE_END = "\1"


class Structure:
    """The headings of a set of templates, and where data would hold one.

    Args:
        templates: By the name of the piece, tags filled in.
        join: What stands between pieces: with a line break in it headings begin lines, otherwise words.
        numbers: Placeholders that always stand for a number of ours. All others may hold text.
        inside: For a piece that stands in another's placeholder, the name of that other.
        lists: Placeholders that hold pieces and are not named like one.
        empty: What stands for an empty value.

    Raises:
        DialectError: The templates leave open where a value ends, whatever is done with the data.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        *,
        join: str = "\n\n",
        numbers: Collection[str] = (),
        inside: Mapping[str, str] | None = None,
        lists: Collection[str] = (),
        empty: str = "",
    ) -> None:
        if not any(part.isspace() for part in join):
            raise DialectError(
                f"join is {join!r}: nothing would tell a piece from the text before it; give white space."
            )
        self.lines = "\n" in join
        self.empty = empty
        self._inside = dict(inside or {})
        self._pieces = {*lists, *(name.rpartition(".")[2] for name in templates)}
        self._heads: dict[str, str] = {}
        self._everywhere: set[str] = set()
        self._in_piece: dict[str, set[str]] = {}
        self._stops: dict[tuple[str, str], str] = {}
        for name, template in templates.items():
            marked = _PLACEHOLDER.sub(
                lambda found: _NUMBER if found[1] in numbers else found[0], template
            )
            parts = _PLACEHOLDER.split(marked)
            if template.strip():
                self._read(name, parts[::2], parts[1::2])
        self._check()

    @property
    def literals(self) -> set[str]:
        """All headings and stops."""
        return {*self._everywhere, *self._stops.values()}.union(*self._in_piece.values())

    def finder(self, piece: str, placeholder: str, escape: str, fold: Fold, lines: bool) -> Finder:
        """Finds the gaps of the values of a placeholder; of those of all placeholders where `piece` is not known.

        Args:
            piece, placeholder: Where the data stands.
            escape: The escape character; bases and hence headings are without it.
            fold: Applied to a base before it is searched.
            lines: Whether the reader tells lines apart; otherwise headings are looked for at the start of words.
        """
        around = [piece]
        while around[-1] in self._inside:
            around.append(self._inside[around[-1]])
        known = piece in self._heads
        scopes = around if known else self._in_piece
        headings = self._everywhere.union(*(self._in_piece.get(scope, ()) for scope in scopes))
        stops = {
            stop
            for (owner, where), stop in self._stops.items()
            if not known
            or (
                owner in around
                and (where == placeholder if owner == piece else where in self._pieces)
            )
        }
        return _Finder(headings, stops, self.empty, escape, fold, self.lines and lines)

    def _read(self, name: str, runs: list[str], placeholders: list[str]) -> None:
        """Take the headings and stops of one template: its literal runs, and the placeholders between them."""
        head = self._heading(runs[0], last=not placeholders)
        if not head:
            raise DialectError(
                f"template {name} begins with {{{placeholders[0]}}}: put a word before it, so that it can be told from "
                "the text before it (or, if it always is a number, name it among the numbers)."
            )
        self._heads[name] = head
        self._add(head, self._inside.get(name))
        for at, (placeholder, run) in enumerate(zip(placeholders, runs[1:], strict=True)):
            last = at + 1 == len(placeholders)
            blank = not run.strip()
            if blank and (last or placeholders[at + 1] in self._pieces):
                continue
            before = run[: len(run) - len(run.lstrip())]
            if not blank and ("\n" in before if self.lines else before):
                self._add(self._heading(run, last), name)
            else:
                self._stops[name, placeholder] = self._stop(name, placeholder, run, last)

    def _heading(self, run: str, last: bool) -> str:
        """How a literal run begins, up to the end of the line; a line end is kept as a mark."""
        text = run.lstrip()
        first, newline, _ = text.partition("\n") if self.lines else (text, "", "")
        ended = newline or last or first != first.rstrip()
        return first.rstrip() + (_LINE_END if ended and first.strip() else "")

    def _stop(self, name: str, placeholder: str, run: str, last: bool) -> str:
        first, newline, _ = run.partition("\n") if run.strip() else (run, "", "")
        stop = first.rstrip() + _LINE_END if newline or last else first
        if len(stop) < 2 or stop[0] == _NUMBER:
            raise DialectError(
                f"template {name} has {run!r} between {{{placeholder}}} and what follows: put at least two characters "
                "there that are no number, so that the end of the text can be told."
            )
        return stop

    def _add(self, heading: str, scope: str | None) -> None:
        """Headings without a letter (``1.``) are too common to be escaped where they cannot follow."""
        everywhere = scope is None or any(part.isalpha() for part in heading)
        (self._everywhere if everywhere else self._in_piece.setdefault(str(scope), set())).add(
            heading
        )

    def _check(self) -> None:
        for name, other in permutations(self._heads, 2):
            head, text = self._heads[name], self._heads[other]
            together = any({head, text} <= self._followers(piece) for piece in (name, other))
            if together and re.match(_pattern(head, "", Fold(), self.lines), _shown(text)):
                raise DialectError(
                    f"templates {name} and {other} begin alike ({_shown(head)!r}, {_shown(text)!r}): word one of them "
                    "so that they can be told apart."
                )

    def _followers(self, name: str) -> set[str]:
        """The headings that can stand where that of `name` can."""
        return self._everywhere | self._in_piece.get(self._inside.get(name, ""), set())


class _Finder:
    """Finds headings, stops and the sign for an empty value in a folded base."""

    def __init__(
        self,
        headings: Collection[str],
        stops: Collection[str],
        empty: str,
        escape: str,
        fold: Fold,
        lines: bool,
    ) -> None:
        self._empty = fold(empty.replace(escape, ""))[0].strip()
        any_heading = (
            "|".join(sorted(_pattern(heading, escape, fold, lines) for heading in headings))
            or "(?!)"
        )
        boundary = rf"[{_BREAKS}][^\S{_BREAKS}]*+" if lines else r"\s"
        self._first = re.compile(rf"\s*+(?={any_heading})")
        self._later = re.compile(rf"{boundary}(?={any_heading})")
        # A pattern that begins with a literal is found several times as fast.
        self._after_newline = (
            re.compile(rf"\n[^\S{_BREAKS}]*+(?={any_heading})") if lines else self._later
        )
        self._stop = (
            re.compile("|".join(_stop_pattern(stop, escape, fold) for stop in stops))
            if stops
            else None
        )
        self._edges = {
            canon[:size] for canon in map(_plain, stops) for size in range(1, len(canon))
        }
        self._half = (
            {canon[:size] for canon in map(_plain, headings) for size in range(1, len(canon))}
            if stops
            else ()
        )
        self._longest = 2 * max(map(len, (*stops, *headings)), default=0)

    def __call__(self, base: str, origins: Origins) -> Iterator[int]:
        found = self._first.match(base)
        if found:
            yield origins[found.end()]
        rare = any(part in base for part in _BREAKS[1:])
        for found in (self._later if rare else self._after_newline).finditer(base):
            yield origins[found.end()]
        if self._empty and base.strip() == self._empty:
            yield origins[base.index(self._empty)]
        if self._stop is not None:
            for found in self._stop.finditer(base):
                yield origins[found.start()] + 1
            yield from self._cut_short(base, origins)

    def _cut_short(self, base: str, origins: Origins) -> Iterator[int]:
        """Gaps of headings and stops that begin at the end of a value that more of its line follows."""
        for start in range(max(0, len(base) - self._longest), len(base)):
            rest = _plain(base[start:])
            if rest in self._edges:
                yield origins[start] + 1
            if rest in self._half and not base[start - 1 : start].strip():
                yield origins[start]


def _plain(text: str) -> str:
    """`text` with one blank for white space, and one mark for digits."""
    return re.sub(r"\s+", " ", re.sub(f"[0-9]+|{_NUMBER}", _NUMBER, text.removesuffix(_LINE_END)))


def _pattern(heading: str, escape: str, fold: Fold, lines: bool) -> str:
    """A regular expression for a heading at the current place.

    In a prompt of words, data may end in the middle of a heading and be followed by a word that completes it; so the
    end of the data, too, ends a heading.
    """
    ended = heading.endswith(_LINE_END)
    words = [_literal(word, escape, fold) for word in heading.removesuffix(_LINE_END).split()]
    if not lines:
        pattern = words[-1] + (r"(?!\S)" if ended else "")
        for word in reversed(words[:-1]):
            pattern = rf"{word}(?:\s++{pattern}|\s*+\Z)"
        return pattern
    end = r"(?!\w)" if ended and re.search(rf"[\w{_NUMBER}]{_LINE_END}\Z", heading) else ""
    return r"\s++".join(words) + end


def _stop_pattern(stop: str, escape: str, fold: Fold) -> str:
    """A regular expression for the first character of a stop where the rest of it follows."""
    stop = stop.replace(escape, "")
    text, ended = stop.removesuffix(_LINE_END), stop.endswith(_LINE_END)
    parts = [r"\s" if part.isspace() else _literal(part, "", fold) for part in text]
    end = rf"[^\S{_BREAKS}]*+(?:[{_BREAKS}]|\Z)" if ended else ""
    return f"{parts[0]}(?={''.join(parts[1:])}{end})"


def _literal(word: str, escape: str, fold: Fold) -> str:
    parts = word.replace(escape, "").split(_NUMBER)
    return "[0-9]++".join(re.escape(fold(part)[0]) for part in parts)


def _shown(heading: str) -> str:
    return heading.removesuffix(_LINE_END).replace(_NUMBER, "1")

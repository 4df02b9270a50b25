r"""Completions to actions: `parse` reads the XML elements of a dialect out of whatever a model wrote.

The grammar is deliberately not XML's. It has a defined result for every string:

Tags
    ``<name>`` and ``</name>`` with a name of the dialect, in upper or lower case. Nothing else is a
    tag: not ``< name >``, not ``<name id="3">``, not ``<name/>``, not a name of another dialect.
    Those are plain text, like everything outside of elements.
Thinking
    What stands between ``<think>`` and the next ``</think>`` is not parsed. A ``</think>`` that
    closes nothing makes everything before it thinking, because some chat templates open the block
    in the prompt. After a ``<think>`` that is never closed nothing is parsed (`UNCLOSED_THINKING`).
    Thinking ends an element that it interrupts, as another tag does (below).
Elements
    An element is closed by its own closing tag, if that comes before the same tag is opened again.
    Its body is then opaque: tags of other kinds inside it are text of the body and act on nothing
    (`NESTED`, one problem for each opening tag). So an answer, and any ``\boxed``, inside a
    scratchpad is part of the scratchpad.

    An element without a closing tag of its own is ended by the next tag, whichever it is:
    ``<create>fact one<create>fact two</create>`` or ``<create>fact</update>``, as models do write. A
    create, read or scratchpad with a body counts as if it had been closed there, for all of its
    text has been written. The others do not (`UNCLOSED`): an entry should not be replaced or deleted,
    a tool called or an answer given by accident. An element that the completion's end cuts off is
    `UNCLOSED` whatever its kind, as its text may be half. Closing tags left over are `STRAY_CLOSE`.
Bodies
    They are stripped. An empty one is `EMPTY`, but for the scratchpad, which it clears.
Handles
    Update and delete begin with one: ``Memory 3: text``, ``3: text``, ``3 text``, ``[3] text``,
    ``Memory #3 - text``, ``( 3 ) text``, ``entry 3. text``; at most nine digits, and not the start
    of a longer word or number (``3rd``, ``3.5``). Delete takes nothing more, unless it follows a colon
    (``3: the old text``), so that ``1, 2`` does not pass for 1. Otherwise `MISSING_HANDLE`. An update
    with a handle and no text is `EMPTY`.
Answers
    The content of the last ``\boxed{...}``, stripped: of the boxes whose braces balance, the one
    that opens last. No such box is `NO_BOX`, a box without content `EMPTY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from atommem.actions import Action, ActionKind, Parsed, Problem, ProblemReason

THINK = "think"

_ENDED_BY_ANY_TAG = (ActionKind.CREATE, ActionKind.READ, ActionKind.SCRATCHPAD)

# Possessive quantifiers (x?+, x*+) never give back what they took, so that no input can make the
# match slow; ASCII digits only, and few enough for int().
_HANDLE = re.compile(
    r"""
    [\[(]?+ \s*+ (?:(?:memory|entry)\s*+)?+ [\[(]?+ \s*+ \#?+ \s*+
    (?P<number> [0-9]{1,9}+ ) (?! \w | [.,][0-9] )
    \s*+ [\])]?+ \s*+ (?P<separator> [:.,] | -(?!\S) )?+
    (?P<rest> .*+ )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_THINKING = re.compile(f"<(/?){THINK}>", re.IGNORECASE | re.ASCII)
_BRACE = re.compile(r"\\boxed\s*+\{|[{}]")


class TagSet(Protocol):
    """What the parser needs of a dialect: its tag names. Kinds may be missing."""

    @property
    def tags(self) -> Mapping[ActionKind, str]:
        """The tag name of each action kind, without angle brackets."""
        ...


class _Tag(NamedTuple):
    """A tag outside of thinking. Kind None is a whole block of thinking; `closing`: it is closed."""

    kind: ActionKind | None
    name: str
    closing: bool
    start: int
    end: int


def parse(text: str, dialect: TagSet) -> Parsed:
    """Read the actions of one completion, by the grammar in this module's docstring.

    Pure, total and linear: every string has a result, nothing raises, and the time grows with the
    length of `text`.

    Returns:
        Actions and problems, both in the order in which they stand in `text`, with their spans. A
        problem's span is the whole element, except `NESTED` and `STRAY_CLOSE`: the tag.
    """
    tags = _tags(text, frozenset(dialect.tags.items()))
    closers = _closers(tags)
    actions: list[Action] = []
    problems: list[Problem] = []
    index = 0
    while index < len(tags):
        tag, closer = tags[index], closers[index]
        index += 1
        if tag.kind is None:
            if not tag.closing:
                problems.append(Problem(ProblemReason.UNCLOSED_THINKING, tag.name, tag.start, tag.end))
        elif tag.closing:
            problems.append(Problem(ProblemReason.STRAY_CLOSE, tag.name, tag.start, tag.end))
        elif closer is not None:
            body = text[tag.end : tags[closer].start].strip()
            item = _element(tag.kind, tag.name, body, tag.start, tags[closer].end)
            if isinstance(item, Action):
                actions.append(item)
            else:
                problems.append(item)
            problems.extend(
                Problem(ProblemReason.NESTED, inner.name, inner.start, inner.end)
                for inner in tags[index:closer]
                if not inner.closing
            )
            index = closer + 1
        elif index < len(tags):
            after = tags[index]
            body = text[tag.end : after.start].strip()
            # A wrong closing tag is used up: one mistake, one problem. An opening one begins its own element.
            used_up = after.kind is not None and after.closing
            end = after.end if used_up else after.start
            if tag.kind in _ENDED_BY_ANY_TAG and body:
                actions.append(Action(tag.kind, body, None, tag.start, end))
            else:
                problems.append(Problem(ProblemReason.UNCLOSED, tag.name, tag.start, end))
            index += used_up
        else:
            problems.append(Problem(ProblemReason.UNCLOSED, tag.name, tag.start, len(text)))
    return Parsed(tuple(actions), tuple(problems))


def parse_whole(text: str, kind: ActionKind) -> Parsed:
    """Read a completion as one action of `kind`, its body all that stands outside of thinking.

    The rules for thinking, bodies and answers are those of `parse`, but an empty body is `EMPTY` for every kind: a
    policy that writes nothing has not asked to forget. What thinking that is never closed leaves, if anything,
    counts.
    """
    pieces: list[str] = []
    begin, thinking_from = 0, None
    for match in _THINKING.finditer(text):
        if match[1]:
            if thinking_from is None:
                pieces.clear()
            begin, thinking_from = match.end(), None
        elif thinking_from is None:
            pieces.append(text[begin : match.start()])
            thinking_from = match.start()
    problems = []
    if thinking_from is None:
        pieces.append(text[begin:])
    else:
        problems.append(Problem(ProblemReason.UNCLOSED_THINKING, THINK, thinking_from, len(text)))
    body = "".join(pieces).strip()
    if not body:
        return Parsed((), tuple(problems) or (Problem(ProblemReason.EMPTY, kind, 0, len(text)),))
    item = _element(kind, kind, body, 0, len(text))
    if isinstance(item, Action):
        return Parsed((item,), tuple(problems))
    return Parsed((), (item, *problems))


def _tags(text: str, names: frozenset[tuple[ActionKind, str]]) -> list[_Tag]:
    """The tags outside of thinking, and the blocks of thinking."""
    scanner, known = _scanner(names)
    tags: list[_Tag] = []
    thinking_from: int | None = None
    for match in scanner.finditer(text):
        closing, lowered = match[1] == "/", match[2].lower()
        if lowered != THINK:
            if thinking_from is None:
                tags.append(_Tag(*known[lowered], closing, match.start(), match.end()))
        elif not closing:
            if thinking_from is None:
                thinking_from = match.start()
        elif thinking_from is None:
            tags.clear()
        else:
            tags.append(_Tag(None, THINK, True, thinking_from, match.end()))
            thinking_from = None
    if thinking_from is not None:
        tags.append(_Tag(None, THINK, False, thinking_from, len(text)))
    return tags


@lru_cache(maxsize=64)
def _scanner(
    names: frozenset[tuple[ActionKind, str]],
) -> tuple[re.Pattern[str], dict[str, tuple[ActionKind, str]]]:
    """A pattern that finds every tag, and what its lower-case name stands for."""
    known = {name.lower(): (kind, name) for kind, name in names}
    alternatives = "|".join(re.escape(name) for name in sorted({THINK, *(name for _, name in names)}))
    # ASCII: without it, the Kelvin sign would match as the letter k.
    return re.compile(f"<(/?)({alternatives})>", re.IGNORECASE | re.ASCII), known


def _closers(tags: list[_Tag]) -> list[int | None]:
    """For every opening tag the index of its own closing tag; None when it has none."""
    closers: list[int | None] = [None] * len(tags)
    following: dict[ActionKind, int] = {}
    for index in range(len(tags) - 1, -1, -1):
        kind = tags[index].kind
        if kind is None:
            following.clear()
            continue
        other = following.get(kind)
        if other is not None and tags[other].closing:
            closers[index] = other
        following[kind] = index
    return closers


def _element(kind: ActionKind, name: str, body: str, start: int, end: int) -> Action | Problem:
    """The action of a closed element with the stripped `body`, or why it is none."""
    handle: int | None = None
    if kind is ActionKind.SCRATCHPAD:
        return Action(kind, body, None, start, end)
    if not body:
        return Problem(ProblemReason.EMPTY, name, start, end)
    if kind is ActionKind.ANSWER:
        box = _last_box(body)
        if box is None:
            return Problem(ProblemReason.NO_BOX, name, start, end)
        body = box
    elif kind in (ActionKind.UPDATE, ActionKind.DELETE):
        match = _HANDLE.match(body)
        if match is None:
            return Problem(ProblemReason.MISSING_HANDLE, name, start, end)
        handle, body = int(match["number"]), match["rest"].strip()
        if kind is ActionKind.DELETE:
            if body and match["separator"] != ":":
                return Problem(ProblemReason.MISSING_HANDLE, name, start, end)
            return Action(kind, "", handle, start, end)
    if not body:
        return Problem(ProblemReason.EMPTY, name, start, end)
    return Action(kind, body, handle, start, end)


def _last_box(body: str) -> str | None:
    r"""The content of the last balanced ``\boxed{...}``, stripped, or None.

    One pass with a stack of the braces still open: searching each box for its end would take
    quadratic time on ``\boxed{\boxed{\boxed{``.
    """
    open_boxes: list[int | None] = []  # where a box's content begins; None for any other brace
    last: tuple[int, int] | None = None
    for match in _BRACE.finditer(body):
        if match[0] == "{":
            open_boxes.append(None)
        elif match[0] != "}":
            open_boxes.append(match.end())
        elif open_boxes:
            begin = open_boxes.pop()
            if begin is not None and (last is None or begin > last[0]):
                last = (begin, match.start())
    return None if last is None else body[last[0] : last[1]].strip()

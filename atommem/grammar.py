r"""From completions to actions: `Grammar.parse` reads the elements of a dialect in any text.

The form is deliberately not XML. Every string has a defined result:

Tags
    ``<name>`` and ``</name>`` with a name of the grammar, in upper or lower case. Everything else
    is plain text: ``< name >``, ``<name id="3">``, ``<name/>``, and names of other dialects.
Thinking
    The text between ``<think>`` and the next ``</think>`` is not parsed, and after a ``<think>``
    that is never closed nothing is (`UNCLOSED_THINKING`). A completion may begin inside of it, if
    the prompt has opened it. Inside of an element both are text of its body. `atommem.thinking` has
    the other forms of thoughts (``[THINK]``, gpt-oss's channels), for which the same holds.
Elements
    An element is closed by its own closing tag, if that comes before the same tag is opened again.
    Its body is then opaque: tags of other kinds inside it act on nothing (`NESTED`, one problem for
    each opening tag), and an answer inside a scratchpad is part of the scratchpad.

    An element without its own closing tag is ended by the next tag, whichever it is: ``<create>fact
    one<create>fact two</create>`` or ``<create>fact</update>``, as models do write. One that
    `ends_anywhere` (create, read, scratchpad) and has a body counts as closed there, for its whole
    text is written. The others do not (`UNCLOSED`): no entry is replaced or deleted, no tool called
    and no answer given by accident. An element that the completion's end cuts off is `UNCLOSED`
    whatever its kind. Leftover closing tags are `STRAY_CLOSE`.
Bodies
    They are stripped. An empty one is `EMPTY`, but it clears a note (the scratchpad).
Handles
    Update and delete begin with one: ``Memory 3: text``, ``3: text``, ``[3] text``, ``Memory #3 -
    text``, ``entry 3. text``; not the start of a longer word or number (``3rd``, ``3.5``), nor of a
    list or range (``3-5``, ``1, 2``, ``3 und 5:``). A bare number needs a colon with no digit
    behind it: ``1 January 1990`` and ``12:30`` name no entry. Full-width punctuation and digits of
    any script count as those of ASCII. Delete takes nothing more, unless it follows a colon.
    Otherwise `MISSING_HANDLE`. An update with a handle and no text is `EMPTY`.
Answers
    The text (without LaTeX: `plain_text`) of the last ``\boxed{...}`` whose braces balance.
    Without one: `NO_BOX`; with an empty one: `EMPTY`. Where several questions are asked at once,
    every box that holds no other is an answer, in their order; an empty one holds its place.
Tools
    The body of an action with arguments is a JSON object that fits its schema; a tool is called as
    ``{"name": ..., "arguments": {...}}`` in the dialect's tag for calls. Otherwise `NOT_JSON`,
    `UNKNOWN_TOOL` or `BAD_ARGUMENTS`, whose detail explains what to write instead.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from unicodedata import normalize

from atommem.actions import Action, ActionSpec, Body, Parsed, Problem, ProblemReason
from atommem.latex import plain_text
from atommem.text_safety import clean_json
from atommem.thinking import THINK, end_of_opened, marks

_MAX_DEPTH = 64  # deepest nesting of a call's arguments
_Item = Action | Problem

# Wide and narrow forms, brackets and punctuation of other scripts, as one ASCII character each.
_NARROW = {
    code: narrow
    for code in (*range(0xFE10, 0xFE70), *range(0xFF01, 0xFF65))
    if (narrow := normalize("NFKC", chr(code))).isascii() and len(narrow) == 1
} | str.maketrans(
    "〈〉《》「」『』【】〖〗｢｣\u3014\u3015、､・،؛。｡〜\u2236\u200b\u200e\u200f",
    "[][][][][][][][],,,,;..~:   ",
)
# Possessive quantifiers (x?+, x*+) never give back what they took, so that no input can make the
# match slow; few enough digits for int(). A list is refused wherever it shows by its words or
# signs; by other signs, or one or two short words of any language, only if a colon ends it.
_HANDLE = re.compile(
    r"""
    (?P<open> [\[(] )?+ \s*+ (?P<word> (?:memory|entry)\s*+ )?+ (?P<inner> [\[(] )?+ \s*+ (?P<hash>
    \# )?+ \s*+ (?P<number> \d{1,9}+ ) (?! \w | [.,]\d ) \s*+ (?P<close> [\])] )?+ (?! \s*+
    (?: [-\u2010-\u2015\u2190-\u21ff\u2212~+,;/&|=>\u2026]++ | \.\.++ | (?:[,&(]\s*+)?+
        (?: and | to | or | through | thru | until | plus | into | as\s++well\s++as )\b )
        \s*+ (?:also\s++)?+ (?:(?:memory|entry)\s*+)?+ [\[(]?+ \#?+ \d )
    (?! \s*+ (?: [^\w\s:.()'"$\u20ac\u00a3\#%]{1,3}+
        | (?= \S{0,5} [^\x00-\x7f\u20ac\u00a3] ) [^\d\s:]{1,6}+ )?+
        \s*+ (?:(?:memory|entry)\s*+)?+ \[?+ \#?+ \d{1,9}+ \s*+ \]?+ \s*+ : (?!\d) )
    (?! (?: \s*+ (?-i:[^\W\d_A-Z]{1,8}+) [.]?+ (?=\s) ){1,2}+ \s++ (?:(?:memory|entry)\s*+)?+
        \[?+ \#?+ \d{1,3}+ \]?+ \s*+ : (?!\d) )
    (?! (?<=[\])]) \s*+ [\[(] \#?+ \d{1,3}+ [\])] )
    (?! (?<=\]) (?: \s*+ [^\W\d_]{1,8}+ [.]?+ ){1,2}+ \s*+ \[ \#?+ \d{1,3}+ \] )
    (?! \s*+ : \s*+ \d{1,3}+ \s*+ : (?!\d) )
    \s*+ (?P<separator> [:.,] | [-\u2013\u2014](?!\S) )?+
    (?P<rest> .*+ )
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# What a number with a colon before it is, if not the minutes of a time.
_NO_TIME = re.compile(r"(?:\d|\d{3,9}+|\d\d(?=[年月日号號岁歳個个人名]))[^\x00-\x7f]")
_BRACE = re.compile(r"\\boxed\s*+\{|[{}]")


class _Tag(NamedTuple):
    """A tag of an action, or of thinking (`spec` None)."""

    spec: ActionSpec | None
    name: str
    closing: bool
    start: int
    end: int
    silent: bool = False  # markup of an answer, which closes nothing


@dataclass(frozen=True)
class Grammar:
    """The actions that a completion may hold.

    `tools` are written as calls in `call_tag`. `whole` is, for a dialect without tags, the one
    action that a completion is as a whole, by phase.
    """

    tags: Mapping[str, ActionSpec]
    tools: Mapping[str, ActionSpec] = field(default_factory=dict)
    call_tag: str | None = None
    whole: Mapping[str, ActionSpec] = field(default_factory=dict)

    @cached_property
    def _scanner(self) -> tuple[re.Pattern[str], dict[str, tuple[ActionSpec, str]]]:
        """A pattern that finds every tag, and the action and name of each lower-case name."""
        known = {tag.lower(): (spec, tag) for tag, spec in self.tags.items()}
        if self.call_tag is not None:
            call = ActionSpec(self.call_tag, Body.ARGUMENTS)
            known[self.call_tag.lower()] = (call, self.call_tag)
        alternatives = "|".join(map(re.escape, sorted(known)))
        # ASCII: without it, the Kelvin sign would match as the letter k.
        return re.compile(f"<(/?)({alternatives})>", re.IGNORECASE | re.ASCII), known

    def parse(self, text: str, phase: str = "", thinking: bool = False) -> Parsed:
        """Read the actions of one completion, by the rules in this module's docstring.

        Pure, total and linear: every string has a result, nothing raises, and the time grows with
        the length. Actions and problems have their spans: a problem's is the whole element, but of
        `NESTED` and `STRAY_CLOSE` the tag. With `thinking`, the prompt had opened a thought.
        """
        if self.whole:
            return parse_whole(text, self.whole[phase], thinking)
        tags = self._tags(text, thinking)
        closers = _closers(tags)
        items: list[_Item] = []
        index = 0

        def add_problem(reason: ProblemReason, tag: _Tag, end: int) -> None:
            items.append(Problem(reason, tag.name, tag.start, end))

        if thinking:
            end = end_of_opened(tag for tag in tags if tag.spec is None)
            if end is None:
                return Parsed((), (Problem(ProblemReason.UNCLOSED_THINKING, THINK, 0, len(text)),))
            index = tags.index(end) + 1
        while index < len(tags):
            tag, closer = tags[index], closers[index]
            index += 1
            if tag.closing:
                if not tag.silent:
                    add_problem(ProblemReason.STRAY_CLOSE, tag, tag.end)
            elif tag.spec is None:
                if closer is None:
                    add_problem(ProblemReason.UNCLOSED_THINKING, tag, len(text))
                    break
                index = closer + 1
            elif closer is not None:
                body = text[tag.end : tags[closer].start].strip()
                items += self._element(tag.spec, tag, body, tags[closer].end)
                for inner in tags[index:closer]:
                    if not inner.closing and inner.spec is not None:
                        add_problem(ProblemReason.NESTED, inner, inner.end)
                index = closer + 1
            elif index < len(tags):
                after = tags[index]
                body = text[tag.end : after.start].strip()
                # A wrong closing tag is used up: one mistake, one problem.
                used_up = after.spec is not None and after.closing
                end = after.end if used_up else after.start
                if tag.spec.ends_anywhere and body:
                    items += self._element(tag.spec, tag, body, end)
                else:
                    add_problem(ProblemReason.UNCLOSED, tag, end)
                index += used_up
            else:
                add_problem(ProblemReason.UNCLOSED, tag, len(text))
        return _parsed(items)

    def _tags(self, text: str, thinking: bool) -> list[_Tag]:
        scanner, known = self._scanner
        found = {
            match.start(): _Tag(*known[match[2].lower()], match[1] == "/", *match.span())
            for match in scanner.finditer(text)
        }
        thoughts = {mark.start: _Tag(None, *mark) for mark in marks(text, thinking)}
        return [tag for _, tag in sorted((thoughts | found).items())]

    def _element(self, spec: ActionSpec, tag: _Tag, body: str, end: int) -> list[_Item]:
        tools = self.tools if tag.name == self.call_tag else {}
        if tools or (spec.body is Body.ARGUMENTS and body):
            return [_call(spec, tools, tag.name, body, tag.start, end)]
        return _element(spec, tag.name, body, tag.start, end)


def parse_whole(text: str, spec: ActionSpec, thinking: bool = False) -> Parsed:
    """Read a completion as one action whose body is all text outside of thinking.

    The rules for thinking, bodies and answers are those of `Grammar.parse`, but an empty body is
    `EMPTY` for every action: a policy that writes nothing has not asked to forget. Text before
    thinking that is never closed counts.
    """
    found = [*marks(text, thinking)]
    end = end_of_opened(found) if thinking else None
    parts, at, opened = [], 0, THINK if thinking else ""
    for mark in found:
        if opened and mark.closing and (mark is end if thinking else mark.name == opened):
            at, opened, thinking = mark.end, "", False
        elif not opened and (not mark.closing or mark.silent):
            parts.append(text[at : mark.start])
            at, opened = (mark.end, "") if mark.closing else (mark.start, mark.name)
    body = "".join(parts).strip() if opened else "".join([*parts, text[at:]]).strip()
    unclosed: list[_Item] = []
    if opened:
        unclosed = [Problem(ProblemReason.UNCLOSED_THINKING, opened, at, len(text))]
    if body:
        return _parsed([*_element(spec, spec.name, body, 0, len(text)), *unclosed])
    return _parsed(unclosed or [Problem(ProblemReason.EMPTY, spec.name, 0, len(text))])


def _parsed(items: list[_Item]) -> Parsed:
    return Parsed(
        tuple(item for item in items if isinstance(item, Action)),
        tuple(item for item in items if isinstance(item, Problem)),
    )


def _closers(tags: list[_Tag]) -> list[int | None]:
    """Return the index of every opening tag's closing tag, or None; thinking does not nest."""
    closers: list[int | None] = [None] * len(tags)
    following: dict[str, int] = {}
    for index in range(len(tags) - 1, -1, -1):
        tag = tags[index]
        if not tag.closing:
            other = following.get(tag.name)
            if other is not None and tags[other].closing:
                closers[index] = other
            if tag.spec is None:
                continue
        following[tag.name] = index
    return closers


def _element(spec: ActionSpec, name: str, body: str, start: int, end: int) -> list[_Item]:
    """Return the action of a closed element (or one for each box), or its problem."""

    def problem(reason: ProblemReason) -> list[_Item]:
        return [Problem(reason, name, start, end)]

    if spec.body is Body.NOTE:
        return [Action(spec.name, body, start=start, end=end)]
    if not body:
        return problem(ProblemReason.EMPTY)
    handle: int | None = None
    if spec.body in (Body.BOX, Body.BOXES):
        boxes = boxes_in(body)
        if not boxes:
            return problem(ProblemReason.NO_BOX)
        if spec.body is Body.BOXES:
            return [Action(spec.name, box, start=start, end=end) for box in boxes]
        body = boxes[-1]
    elif spec.body in (Body.HANDLE, Body.HANDLE_TEXT):
        match = _HANDLE.match(body.translate(_NARROW))
        if match is None or not _names_an_entry(match, spec.body is Body.HANDLE):
            return problem(ProblemReason.MISSING_HANDLE)
        handle, body = int(match["number"]), body[match.start("rest") :].strip()
        if spec.body is Body.HANDLE:
            return [Action(spec.name, "", handle, start=start, end=end)]
    if not body:
        return problem(ProblemReason.EMPTY)
    return [Action(spec.name, body, handle, start=start, end=end)]


def _names_an_entry(match: re.Match[str], alone: bool) -> bool:
    """Return whether the number at the start is a handle, and not the beginning of a sentence."""
    rest = match["rest"]
    bracketed = (match["open"] or match["inner"]) and match["close"]
    if not rest.strip() or (not alone and (match["word"] or match["hash"] or bracketed)):
        return True
    if match["separator"] != ":" or (alone and rest.lstrip()[0].isdigit()):
        return False
    return not rest[0].isdigit() or bool(_NO_TIME.match(rest))


def boxes_in(body: str) -> list[str]:
    r"""Return the text of the balanced ``\boxed{...}`` that hold no other, in order.

    One pass with a stack of the braces still open: searching each box for its end would take
    quadratic time on ``\boxed{\boxed{\boxed{``.
    """
    open_boxes: list[int | None] = []  # where a box's content begins; None for any other brace
    spans: list[tuple[int, int]] = []
    for match in _BRACE.finditer(body):
        if match[0] == "{":
            open_boxes.append(None)
        elif match[0] != "}":
            open_boxes.append(match.end())
        elif open_boxes:
            begin = open_boxes.pop()
            if begin is not None and not (spans and begin < spans[-1][0]):
                spans.append((begin, match.start()))
    return [plain_text(body[begin:end].strip()) for begin, end in spans]


def _call(
    spec: ActionSpec, tools: Mapping[str, ActionSpec], tag: str, body: str, start: int, end: int
) -> _Item:
    """Return an action with arguments; with `tools`, of a ``{"name": ..., "arguments": {...}}``."""
    reason, (arguments, error) = ProblemReason.NOT_JSON, _json_object(body)
    if tools and not error:
        reason, name = ProblemReason.UNKNOWN_TOOL, arguments.get("name")
        if not isinstance(name, str) or name not in tools:
            error = f"no tool {name!r}; there are {', '.join(tools)}"
        else:
            spec, (arguments, error) = tools[name], _json_object(arguments.get("arguments", {}))
            reason = ProblemReason.BAD_ARGUMENTS
            error = error and f"{name}: arguments must be a JSON object"
    if not error and spec.schema is not None and (wrong := _schema_error(spec.schema, arguments)):
        reason, error = ProblemReason.BAD_ARGUMENTS, f"{spec.name}: {wrong}"
    if error:
        return Problem(reason, tag, start, end, error)
    return Action(spec.name, body, arguments=arguments, start=start, end=end)


def _schema_error(schema: Mapping[str, Any], arguments: dict[str, Any]) -> str:
    from jsonschema import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        _validator(json.dumps(schema, sort_keys=True)).validate(arguments)
    except ValidationError as error:
        return error.message[:200]
    except (RecursionError, OverflowError, Unresolvable) as error:  # 400 digits overflow a float
        return str(error)
    return ""


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """Return the validator of a schema. It may be a stranger's: its "$ref" is never fetched."""
    from jsonschema.validators import validator_for
    from referencing import Registry

    loaded = json.loads(schema)
    return validator_for(loaded)(loaded, registry=Registry())


def _json_object(value: Any) -> tuple[dict[str, Any], str]:
    """Return a JSON object, or that of a text, as some models write it; and what is wrong."""
    try:
        loaded = clean_json(json.loads(value), _MAX_DEPTH) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        return {}, f"not a JSON object: {str(error)[:100]}"
    return (loaded, "") if isinstance(loaded, dict) else ({}, "not a JSON object")

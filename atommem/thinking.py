"""Thoughts in completions, in the forms in which model families mark them (``thinking.yaml``).

A thought runs from an opening mark to the next closing mark of its form; the prompt may have opened
it. ``gpt-oss`` (harmony), Kimi K3 and Muse write messages: all but the user's are thoughts.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from atommem.files import load_beside

THINK = "think"
_NEVER = r"(?!)"


class Form(NamedTuple):
    """One way to mark a thought: a closing mark as text, and regular expressions."""

    opening: str
    written: str = ""
    answer: str = _NEVER
    closing: str = _NEVER


_FORMS = {name: Form(**texts) for name, texts in load_beside(__file__, "thinking.yaml").items()}
# <think>, <thinking>, <seed:think>, <chain_of_thought>, <ifm|think_fast>, <think:opensource>, ...
_ELEMENT = (
    r"<\|?(?P<slash>/?)\|?(?P<element>(?:(?!begin|start|end_)[a-z]{1,12}[:|_-]){0,2}(?:think(?:ing)?"
    r"|thoughts?|reason(?:ing)?|reflect(?:ion)?|monologue)(?:_(?!begin|start|end)[a-z]{1,12})?"
    r"(?::[a-z0-9]{1,20})?|antthinking|rationale|analysis|cot)(?:\s[\w-]{1,20}=[^<>]{0,80})?\s?\|?>"
)
_MARKS = re.compile(
    rf"(?=[<\[◁]|to=|Here|analysis|assistantfinal)(?:{_ELEMENT}"
    + "".join(
        f"|(?P<open_{name}>{form.opening})|(?P<answer_{name}>{form.answer})"
        f"|(?P<close_{name}>{form.closing})"
        for name, form in _FORMS.items()
    )
    + ")",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)


class Mark(NamedTuple):
    """An opening or closing mark of a thought; `name` is an element's, or that of its form.

    `silent`: without a thought it is markup of an answer, and no mistake.
    """

    name: str
    closing: bool
    start: int
    end: int
    silent: bool = False


def marks(text: str, inside: bool = False) -> Iterator[Mark]:
    """Find the marks of thoughts in `text`; `inside`: the prompt had opened one."""
    opened: set[str] = set(_FORMS) if inside else set()
    for match in _MARKS.finditer(text):
        group = match.lastgroup or ""
        if match["element"] is not None:
            yield Mark(match["element"].lower(), match["slash"] == "/", *match.span())
            continue
        kind, _, name = group.partition("_")
        if kind == "open":
            opened.add(name)
        elif kind == "close" and name not in opened:
            continue
        else:
            opened.discard(name)
        yield Mark(name, kind != "open", *match.span(), True)


def end_of_opened(found: Iterable[Any]) -> Any:
    """Return the mark that closes the thought in which a prompt ends; None if there is none.

    The first one, but not of a thought in another form that begins inside (`<reflection>`).
    """
    opened: set[str] = set()
    first = None
    for mark in found:
        if not mark.closing:
            opened.add(mark.name)
        elif mark.name not in opened:
            return mark
        else:
            first = first or mark
    return first


def closing_thought(prompt: str) -> str:
    """Return the text that closes the thought in which a prompt ends; empty if in none."""
    prompt = prompt.rstrip()
    last = next((mark for mark in marks(prompt) if mark.end == len(prompt)), None)
    if last is None or last.closing:
        return ""
    opening = prompt[last.start :]
    if last.silent:
        ended = re.sub("(?i)begin|start", "end", opening).replace("[", "[/")
        return _FORMS[last.name].written or ended
    return "\n" + re.sub(r"(<\|?)", r"\1/", opening) + "\n\n"


def thoughts_end(text: str) -> int:
    """Return where the text after the last closed thought begins; 0 if none is closed."""
    return max((mark.end for mark in marks(text) if mark.closing), default=0)


def after_thoughts(text: str) -> str:
    """Return the text after the last thought, or else before the first; empty if one is open."""
    found = list(marks(text))
    if not found:
        return text.strip()
    if not found[-1].closing:
        return ""
    before = "" if found[0].closing else text[: found[0].start]
    return text[found[-1].end :].strip() or before.strip()

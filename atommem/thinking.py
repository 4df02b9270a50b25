"""Thoughts in completions: the forms in which model families mark them, in one table.

A thought runs from an opening mark to the next closing mark of its form. The prompt may have opened
it already. ``gpt-oss`` (harmony), Kimi K3 and Muse write messages: all but the one to the user are
thoughts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

THINK = "think"
_NEVER = r"(?!)"


class Form(NamedTuple):
    """One way to mark a thought: a closing mark as text, and regular expressions.

    `answer` also begins the answer where no thought was opened; `closing` only closes one.
    """

    written: str
    opening: str
    answer: str = _NEVER
    closing: str = _NEVER


_TO_USER = r"<\|channel\|>\s*final\b[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"
_THOUGHT, _OF = "(?:think(?:ing)?|thoughts?|reasoning)", "[_▁](?:of[_▁])?"
_FORMS = {
    "harmony": Form(
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        r"<\|channel\|>(?!\s*final\b)[^<]{0,80}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>",
        rf"(?:<\|(?:end|call)\|>)?(?:<\|start\|>assistant)?{_TO_USER}",
        r"<\|(?:end|call)\|>(?:<\|start\|>assistant(?!<\|channel\|>final))?",
    ),
    "muse": Form(
        "<|eom|><|start|>assistant to=user<|message|>",
        r"(?:<\|start\|>assistant )?to=(?!user<)[^\s<]{1,80}<\|message\|>",
        r"(?:<\|eom\|>)?(?:<\|start\|>assistant )?to=user<\|message\|>",
        r"<\|eom\|>(?:<\|start\|>assistant(?! to=user))?",
    ),
    "kimi": Form(
        "<|close|>think<|sep|><|open|>response<|sep|>",
        r"<\|open\|>think<\|sep\|>",
        r"<\|close\|>think<\|sep\|>(?:<\|open\|>response<\|sep\|>)?",
    ),
    "cohere": Form(
        "<|END_THINKING|><|START_RESPONSE|>",
        r"<\|START_THINKING\|>",
        r"<\|END_THINKING\|>(?:<\|START_RESPONSE\|>)?",
    ),
    "piped": Form(
        "",
        rf"<[|\uff5c](?:(?:begin|start){_OF}{_THOUGHT}|{_THOUGHT}_(?:begin|start))[|\uff5c]>",
        rf"<[|\uff5c](?:end{_OF}{_THOUGHT}|{_THOUGHT}_end)[|\uff5c]>",
    ),
    "medgemma": Form("<unused95>", r"<unused94>\s*thought\b", r"<unused95>"),
    "apertus": Form("<|inner_suffix|>", r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    "gemma": Form("<channel|>", r"<\|channel>\s*thought\b", r"<channel\|>"),
    "bracketed": Form("", rf"\[{_THOUGHT}\]", rf"\[/{_THOUGHT}\]"),
    "triangled": Form("◁/think▷", "◁think▷", "◁/think▷"),
    # Harmony without its special tokens, as servers leave it that drop them.
    "stripped": Form("", r"\Aanalysis(?=.*assistantfinal)", r"assistantfinal"),
    # In words, so only at the start, with the answer marked too, or at the end of a prompt.
    "granite": Form(
        "Here is my response:",
        r"\AHere(?:'s| is) my thought process:(?=.*\bmy response:)"
        r"|Here(?:'s| is) my thought process:(?=\s?\Z)",
        closing=r"Here(?:'s| is) my response:",
    ),
    "apriel": Form(
        "[BEGIN FINAL RESPONSE]",
        r"\AHere are my reasoning steps:(?=.*\[BEGIN FINAL)|Here are my reasoning steps:(?=\s?\Z)",
        r"\[BEGIN FINAL RESPONSE\]",
    ),
}
# <think>, <thinking>, <seed:think>, <longcat_think>, <ifm|think_fast>, <think:opensource>, ...
_ELEMENT = (
    r"<\|?(?P<slash>/?)(?P<element>(?:(?!begin|start|end_)[a-z]{1,12}[:|_])?think"
    r"(?:ing|_[a-z]{1,12})?(?::[a-z0-9]{1,20})?|antthinking|thoughts?|reasoning|reflection|rationale"
    r"|analysis)\s?\|?>"
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

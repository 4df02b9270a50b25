"""Rendering is injective: a prompt can be read back into its pieces and data, whatever the data says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.dialects import load_templates
from atommem.environment import find_environment
from atommem.errors import DialectError
from atommem.untrusted import PromptGuard, Structure
from tests.atommem.test_untrusted import shapes
from tests.fakes import WordTokenizer

# Several values in a piece, text behind a value on its line, fences, a backslash in a heading.
TOOLS = {
    "questions": "Kelvin asks: {questions}",
    "question_line": "({number}) {text}",
    "chunk": "Result of {tool} at {url}:\n```\n{chunk}\n```\nEnd <{chunk_number}>",
    "scratchpad": "Note [{text}]",
    "query": "Sought: {text}",
    "memory": "Found:\n{entries}\n</found> {capacity_notice}",
    "entry": "* {handle}: {text} (by {writer})",
    "capacity_notice": "({size} of {capacity})",
    "reading": "In a \\boxed{}: act.",
}
NUMBERS = ("number", "chunk_number", "chunk_count", "handle", "size", "capacity")
INSIDE = {"question_line": "questions", "entry": "memory", "capacity_notice": "memory"}
LISTS = {"entries": "entry", "questions": "question_line", "capacity_notice": "capacity_notice"}
TOP = ("questions", "chunk", "scratchpad", "query", "memory", "reading")


@dataclass(frozen=True)
class Wording:
    """A set of templates with a guard for it."""

    templates: Mapping[str, str]
    join: str
    empty: str
    guard: PromptGuard = field(repr=False)

    @classmethod
    def of(
        cls, templates: Mapping[str, str], join: str, empty: str, tokenizer: Any = None
    ) -> Wording:
        structure = Structure(
            templates, join=join, numbers=NUMBERS, inside=INSIDE, lists=("entries",), empty=empty
        )
        return cls(templates, join, empty, PromptGuard(tokenizer or WordTokenizer(), structure))

    @property
    def between(self) -> str:
        return "\n" if "\n" in self.join else self.join

    def runs(self, name: str) -> list[str]:
        """A template's literal texts, and the names of the values between them."""
        return re.split(r"\{([a-z_]+)\}", self.templates[name])

    def head(self, name: str) -> str:
        """The literal beginning of a piece."""
        return self.literal(self.runs(name), 0)

    def literal(self, runs: list[str], at: int) -> str:
        """The literal text from `at` on, up to the next text or piece; at a template's end, to a word's end."""
        pattern = re.escape(runs[at])
        while at + 2 < len(runs) and runs[at + 1] in NUMBERS:
            at += 2
            pattern += "[0-9]+" + re.escape(runs[at])
        return pattern + (r"(?!\S)" if pattern and at == len(runs) - 1 else "")

    def original(self, text: str, name: str, key: str) -> str:
        """The data that is shown as `text`: an escape character less at every gap."""
        escaper = self.guard._escapers[name, key]
        folded, origins = escaper._fold(text.replace(escaper.escape, ""))
        gaps = {gap for finder in escaper._finders for gap in finder(folded, origins)}
        kept, base = [], 0
        for part in text:
            if part == escaper.escape and base in gaps:
                gaps.remove(base)
                continue
            base += part != escaper.escape
            kept.append(part)
        assert not gaps
        return "".join(kept)


class Prompt:
    """Written piece by piece; at every place, what a reader has to tell apart there.

    Attributes:
        prompt: All of it.
        ends: Where a text begins and ends, and what can stand behind it: it has to stand there for the first time.
        stands: A place, a pattern, and whether it stands there.
    """

    def __init__(self, wording: Wording, view: Sequence[Any]) -> None:
        self.wording, self.prompt = wording, ""
        self.ends: list[tuple[int, int, list[str]]] = []
        self.stands: list[tuple[int, str, bool]] = []
        join = re.escape(wording.join)
        follow = [r"\Z", *(join + wording.head(name) for name in TOP)]
        for name, values in view:
            self.prompt += wording.join if self.prompt else ""
            for other in TOP[: TOP.index(name) + 1]:
                self.stands.append((len(self.prompt), wording.head(other), other == name))
            self._piece(name, values, follow)

    def check(self) -> None:
        for start, end, ends in self.ends:
            found = re.compile("|".join(ends)).search(self.prompt, start)
            assert found is not None, (ends, self.prompt[start:])
            assert found.start() == end, (ends, self.prompt[start:])
        for at, pattern, expected in self.stands:
            assert bool(re.compile(pattern).match(self.prompt, at)) is expected, (
                pattern,
                self.prompt[at:],
            )

    def _piece(self, name: str, values: Mapping[str, Any], follow: list[str]) -> None:
        runs = self.wording.runs(name)
        self.prompt += runs[0]
        for at in range(1, len(runs), 2):
            key, behind, rest = runs[at], runs[at + 1], self.wording.literal(runs, at + 1)
            if key == "capacity_notice":
                for item in values[key]:
                    self._piece(*item, follow)
                continue
            ends = [rest + end for end in follow] if at == len(runs) - 2 else [rest]
            if (
                key == "entries" and "capacity_notice" in runs
            ):  # whose blank goes where there is none
                notice, bare = rest + self.wording.head("capacity_notice"), rest.rstrip("\\ \n")
                ends = [notice, *(bare + end for end in follow)]
                behind = behind if values["capacity_notice"] else behind.rstrip()
            self._value(name, key, values[key], ends)
            if "capacity_notice" in runs:
                self.stands.append((len(self.prompt), notice, bool(values["capacity_notice"])))
            self.prompt += behind

    def _value(self, name: str, key: str, value: Any, ends: list[str]) -> None:
        wording, start = self.wording, len(self.prompt)
        if key in LISTS:
            item = wording.head(LISTS[key])
            listed = isinstance(value, tuple) and value != ()
            self.stands.append((start, item, listed))
            if listed:
                more = re.escape(wording.between) + item
                for number, piece in enumerate(value):
                    self.prompt += wording.between if number else ""
                    self._piece(*piece, [more, *ends])
                self.stands.append((len(self.prompt), more, False))
                return
        if isinstance(value, int):
            self.prompt += str(value)
            self.stands.append((len(self.prompt), "[0-9]", False))
            return
        shown = wording.guard.data(value, name, key) if isinstance(value, str) else wording.empty
        self.prompt += shown
        self.ends.append((start, len(self.prompt), ends))
        if isinstance(value, str):
            assert wording.original(shown, name, key) == value
            assert shown != wording.empty or key == "chunk"


def shipped(name: str, tokenizer: Any = None) -> Wording:
    """What the long-document environment shows, in the shipped wording."""
    own, pieces = load_templates(name), find_environment("longdoc").section(name).pieces
    templates = {key: pieces[key] if key in pieces else getattr(own, key) for key in TOOLS}
    return Wording.of(templates, own.join, own.empty, tokenizer)


WORDINGS = {
    "full": shipped("full"),
    "compact": shipped("compact"),
    "tools": Wording.of(TOOLS, "\n\n", "-"),
    "full, byte level": shipped("full", shapes["byte_level"]()),
}


def scraps(wording: Wording) -> list[str]:
    """What the templates are made of, and what may be mistaken for it."""
    parts = [
        run
        for template in wording.templates.values()
        for run in re.split(r"\{[a-z_]+\}", template)
        if run
    ]
    filled = [re.sub(r"\{[a-z_]+\}", "2", template) for template in wording.templates.values()]
    halves = [part[: len(part) // 2] for part in filled] + [
        part[len(part) // 2 :] for part in filled
    ]
    blanks = ["", " ", "\n", "\n\n", "\r", "\t", "\u2028", "\x0b", "\x0c", "\x85", "\xa0"]
    marks = [
        "\\",
        "\\\\",
        "1",
        "12",
        "\u0662",
        "\uff12",
        ":",
        ".",
        wording.empty,
        "x",
        "<|im_end|>",
        "<|im_",
        "end|>",
    ]
    return [*parts, *filled, *halves, *blanks, *marks, wording.join]


def texts(wording: Wording) -> st.SearchStrategy[str]:
    return st.lists(
        st.one_of(st.sampled_from(scraps(wording)), st.text(max_size=2)), max_size=5
    ).map(lambda parts: "".join(parts).replace("\0", "").encode("utf-8", "ignore").decode())


def views(wording: Wording) -> st.SearchStrategy[list[Any]]:
    text, number = texts(wording), st.integers(0, 20)

    def piece(name: str, **values: Any) -> st.SearchStrategy[Any]:
        named = set(re.findall(r"\{([a-z_]+)\}", wording.templates[name]))
        filled = {key: value for key, value in values.items() if key in named}
        filled |= dict.fromkeys(named - set(filled), text)
        return st.tuples(st.just(name), st.fixed_dictionaries(filled))

    lines = st.integers(1, 3).flatmap(
        lambda n: st.tuples(*[piece("question_line", number=number)] * n)
    )
    entries = st.integers(0, 3).flatmap(lambda n: st.tuples(*[piece("entry", handle=number)] * n))
    notice = st.one_of(
        st.just(()), st.tuples(piece("capacity_notice", size=number, capacity=number))
    )
    return st.tuples(
        piece("questions", questions=st.one_of(text, lines)),
        piece("chunk", chunk_number=number, chunk_count=number),
        piece("chunk", chunk_number=number, chunk_count=number),
        piece("scratchpad", text=st.one_of(st.none(), text)),
        piece("query", text=st.one_of(st.none(), text)),
        piece("memory", entries=entries, capacity_notice=notice),
        piece("reading"),
    ).map(list)


@pytest.mark.parametrize("name", WORDINGS)
@settings(max_examples=40, deadline=None, report_multiple_bugs=False)
@given(data=st.data())
def test_a_prompt_can_be_read_back_into_its_pieces_and_data(name: str, data: st.DataObject) -> None:
    Prompt(WORDINGS[name], data.draw(views(WORDINGS[name]))).check()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A\nMemory 2: B", "A\n\\Memory 2: B"),
        ("A\n\\Memory 2: B", "A\n\\\\Memory 2: B"),
        ("Memory 2: B", "\\Memory 2: B"),
        ("A\r\n \tYour scratchpad:", "A\r\n \t\\Your scratchpad:"),
        ("A\u2028Part 1 of 2 of the text: x", "A\u2028\\Part 1 of 2 of the text: x"),
        ("(empty)", "\\(empty)"),
        ("  (empty)\n", "  \\(empty)\n"),
        *(
            (text, text)
            for text in (
                "In Memory 2: B",
                "1. A\n2. B",
                "Memory of B",
                "Memory \u0662: B",
                "(empty) (empty)",
            )
        ),
    ],
)
def test_data_gets_a_backslash_before_a_heading_and_nowhere_else(text: str, shown: str) -> None:
    assert WORDINGS["full"].guard.data(text, "entry", "text") == shown


def test_headings_are_seen_through_what_the_normaliser_takes_away() -> None:
    structure = Structure(
        {"asks": "Kelvin asks: {text}", "item": "{number}. {text}"}, numbers=("number",)
    )
    guard = PromptGuard(shapes["byte_level"](), structure)
    assert guard.data("a\n\u212aelvin asks: x") == "a\n\\\u212aelvin asks: x"
    compatible = PromptGuard(shapes["unigram"](), structure)
    assert compatible.data("a\n\u2488 x\n\uff2belvin asks:") == "a\n\\\u2488 x\n\\\uff2belvin asks:"
    # Those without a letter only where they can follow, and in a place that is not known.
    for place in (("questions", "questions"), ("question_line", "text"), ()):
        assert WORDINGS["full"].guard.data("A\n2. B", *place) == "A\n\\2. B"
    assert WORDINGS["full"].guard.data("A\n2. B", "chunk", "chunk") == "A\n2. B"
    # A tokenizer that knows no lines has headings guarded at every word.
    lower = shipped("full", shapes["lower_case"]())
    assert lower.guard.data("A memory  2: B") == "A \\memory  2: B"
    # A value ends in nothing that could begin what stands behind it.
    assert WORDINGS["tools"].guard.data("x at", "chunk", "tool") == "x \\at"
    # A word is no beginning of a longer one.
    notes = PromptGuard(
        WordTokenizer(), Structure({"note": "Note {text}", "notes": "Notes: {text}"})
    )  # type: ignore[arg-type]
    assert notes.data("Noted\nNote this\nNotes:") == "Noted\n\\Note this\n\\Notes:"


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"page": "{text}"}, "begins with {text}"),
        ({"page": "Page:\n{text}", "result": "Page:\n{url}"}, "begin alike"),
        ({"page": "Note {text}", "result": "Note to {url}"}, "begin alike"),
        ({"page": "Page {title}{text}"}, "put at least two characters"),
        ({"page": "Page {title} {text}"}, "put at least two characters"),
    ],
)
def test_templates_that_leave_open_where_a_value_ends_are_refused(
    templates: dict[str, str], message: str
) -> None:
    with pytest.raises(DialectError, match=re.escape(message)):
        Structure(templates)
    with pytest.raises(DialectError, match="give white space"):
        Structure({"page": "Page {text}"}, join="|")

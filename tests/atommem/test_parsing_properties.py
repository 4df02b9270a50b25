"""The parser against properties, an independent reference, and garbage."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.atommem.test_parsing import PAPER, SHORT

TAGS = {spec.name: tag for tag, spec in SHORT.tags.items()}
PIECES = st.sampled_from(
    [
        *(f"<{slash}{tag}>" for slash in ("", "/") for tag in ("c", "s", "u", "a", "think", "S")),
        *("\\boxed{", "}", "{", "1: x", "Memory 2", "word", " ", "\n", "<", "</", "c>", "\ud800", "9" * 50),
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text())


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_every_string_has_a_consistent_result(text: str) -> None:
    parsed = SHORT.parse(text)
    end = 0
    for action in parsed.actions:
        assert end <= action.start < action.end <= len(text)
        end = action.end
        tag = f"<{TAGS[action.kind]}>"
        assert text[action.start : action.start + len(tag)].lower() == tag
        assert action.text == action.text.strip()
        assert action.text in text[action.start : action.end]
        assert action.text or action.kind == "scratchpad"
        assert (action.handle is not None) == (action.kind == "update")
    starts = [problem.start for problem in parsed.problems]
    assert starts == sorted(starts)
    assert all(0 <= item.start < item.end <= len(text) for item in parsed.problems)
    # Without thinking, every opening tag is accounted for, once.
    if "think>" not in text.lower():
        opening = sum(text.lower().count(f"<{tag}>") for tag in TAGS.values())
        strays = sum(problem.reason == "stray_close" for problem in parsed.problems)
        assert len(parsed.actions) + len(parsed.problems) - strays == opening


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.text(alphabet="ab<>c/ ", max_size=20))
def test_thinking_in_front_changes_nothing(text: str, thought: str) -> None:
    def shape(prefix: str, thinking: bool = False) -> list[tuple[object, ...]]:
        parsed = SHORT.parse(prefix + text, thinking=thinking)
        shift = len(prefix)
        return [
            *((a.kind, a.text, a.handle, a.start - shift, a.end - shift) for a in parsed.actions),
            *((p.reason, p.tag, p.start - shift, p.end - shift) for p in parsed.problems),
        ]

    assert shape(f"<think>{thought}</think>") == shape("")
    assert shape(f"{thought}</think>", thinking=True) == shape("")


@pytest.mark.parametrize(
    "unit", ["<", "<create_memory>", "</create_memory>", "<think>", "</think>", "\\boxed{", "{", "}", "1", " ", "[ "]
)
@pytest.mark.parametrize("frame", ["{}", "<final_answer>{}x</final_answer>", "<update_memory>[{}x</update_memory>"])
def test_a_hundred_kilobytes_of_garbage_are_quick(unit: str, frame: str) -> None:
    text = frame.replace("{}", unit * (100_000 // len(unit)))
    start = time.process_time()
    PAPER.parse(text)
    # scripts/bench_parser.py holds 50 ms; quadratic time would be tens of seconds.
    assert time.process_time() - start < 1.0

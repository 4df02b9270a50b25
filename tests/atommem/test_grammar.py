"""The parser has a defined result for every string."""

# ruff: noqa: RUF001
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem import actions
from atommem.actions import ANSWER_ACTION, MEMORY_ACTIONS, SCRATCHPAD, ActionSpec, Body
from atommem.dialects import get_dialect
from atommem.files import load_beside
from atommem.grammar import Grammar, parse_whole
from tests.atommem import sessions

TABLES = load_beside(__file__, "grammar.yaml")
QUERY = {"required": ["query"], "properties": {"query": {"type": "string"}}}
SEARCH = ActionSpec("search", Body.ARGUMENTS, schema=QUERY)
PAPER = get_dialect("paper").grammar([ANSWER_ACTION, SEARCH])
RELEASED = get_dialect("released").grammar()
SPECS = {spec.name: spec for spec in (*MEMORY_ACTIONS, ANSWER_ACTION)}
TAGS = {"create": "c", "scratchpad": "s", "update": "u", "answer": "a"}
SHORT = Grammar({tag: SPECS[name] for name, tag in TAGS.items()})


def outline(text: str, dialect: Grammar = SHORT, thinking: bool = False) -> list[str]:
    """Return the parsed items in order: ``create one``, ``update 3 new``, ``!empty c``."""
    parsed = dialect.parse(text, thinking=thinking)
    lines = {item.start: f"!{item.reason} {item.tag}" for item in parsed.problems}
    for action in parsed.actions:
        words = [action.kind, "" if action.handle is None else str(action.handle), action.text]
        lines[action.start] = " ".join(word for word in words if word)
    return [lines[start] for start in sorted(lines)]


def test_parse_tag_means_what_its_dialect_says():
    for dialect, grammar in (("paper", PAPER), ("released", RELEASED)):
        assert outline(TABLES["tags"]["text"], grammar) == TABLES["tags"][dialect]


@pytest.mark.parametrize(("text", "expected"), TABLES["texts"])
def test_parse_text_returns_actions_and_problems(text, expected):
    assert outline(text) == expected


def test_parse_handle_forms_are_read():
    for head in ("Memory 3: ", "3:", "[3] ", "#3 ", "Memory [3]: ", "003: "):
        assert outline(f"<u>{head}new text</u>") == ["update 3 new text"]
        assert outline(f"<delete_memory>{head}</delete_memory>", PAPER) == ["delete 3"]
    assert outline("<u>3: -5 degrees</u><u>Memory 3:</u>") == ["update 3 -5 degrees", "!empty u"]
    # The beginning of a sentence, list, range or time: the handle is ambiguous.
    for body in ("new text", "3.5 million", "Memory 3-5: x", "12:30 the train", "9" * 5000):
        assert outline(f"<u>{body}</u>") == ["!missing_handle u"]
    for several in ("1, 2", "1: 2"):
        ambiguous = f"<delete_memory>{several}</delete_memory>"
        assert outline(ambiguous, PAPER) == ["!missing_handle delete_memory"]


def test_parse_handle_of_any_script_is_one_number():
    for body in TABLES["several"]:
        for head in ("", "Memory "):
            assert outline(f"<u>{head}{body}</u>") == ["!missing_handle u"], body
    for body in TABLES["one"]:
        assert outline(f"<u>{body}</u>") == ["update 3 x"], body
    for head, text in TABLES["numbers"]:
        assert outline(f"<u>{head}{text}</u>") == [f"update 3 {text}"]
    assert outline("<u>12：30发车</u>") == ["!missing_handle u"]


@pytest.mark.parametrize(("latex", "text"), TABLES["latex"].items())
def test_parse_answer_is_the_text_of_its_latex(latex, text):
    assert outline(f"<a>\\boxed{{{latex}}}</a>") == [f"answer {text}"]
    assert outline(f"<a>\\boxed{{{text}}}</a>") == [f"answer {text}"]


def test_parse_tool_call_is_an_action_or_a_problem():
    call = '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}</tool_call>'
    (action,) = PAPER.parse(call).actions
    assert (action.kind, action.arguments) == ("search", {"query": "x"})
    for body, reason in (
        ('{"name": "search", "arguments": {"query": NaN}}', "not_json"),
        ('{"name": "find", "arguments": {}}', "unknown_tool"),
        ('{"name": "search", "arguments": {"query": 3}}', "bad_arguments"),
    ):
        (problem,) = PAPER.parse(f"<tool_call>{body}</tool_call>").problems
        assert problem.reason == reason


def test_parse_hostile_arguments_raise_nothing():
    call = '<tool_call>{"name": "search", "arguments": {"query": %s}}</tool_call>'
    free = replace(PAPER, tools={"search": ActionSpec("search", Body.ARGUMENTS)})
    (action,) = free.parse(call % r'{"\ud800": ["\u0000"]}').actions  # no request can carry it
    assert action.arguments == {"query": {"\ufffd": ["\ufffd"]}}
    schema = {"properties": {"query": {"multipleOf": 0.5}}}
    halves = replace(PAPER, tools={"search": ActionSpec("search", Body.ARGUMENTS, schema=schema)})
    for value in ("1" + "0" * 400, "[" * 800 + "]" * 800):  # nothing raises, here or later
        (problem,) = halves.parse(call % value).problems
        assert problem.reason in ("bad_arguments", "not_json")


WORDS = "\\boxed{|}|{|1: x|Memory 2|word| |\n|<|</|c>|\ud800"
ELEMENTS = [f"<{slash}{tag}>" for slash in ("", "/") for tag in (*TAGS.values(), "think", "S")]
PIECES = st.sampled_from([*ELEMENTS, *WORDS.split("|"), "9" * 50])
TEXTS = st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text())


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_parse_any_string_has_a_consistent_result(text):
    parsed = SHORT.parse(text)
    end = 0
    for action in parsed.actions:
        assert end <= action.start < action.end <= len(text)
        end = action.end
        tag = f"<{TAGS[action.kind]}>"
        assert text[action.start : action.start + len(tag)].lower() == tag
        assert action.text in text[action.start : action.end]
        assert action.text or action.kind == "scratchpad"
        assert (action.handle is not None) == (action.kind == "update")
    assert all(0 <= item.start < item.end <= len(text) for item in parsed.problems)
    # Without thinking, every opening tag is accounted for, once.
    if "think>" not in text.lower():
        opening = sum(text.lower().count(f"<{tag}>") for tag in TAGS.values())
        strays = sum(problem.reason == "stray_close" for problem in parsed.problems)
        assert len(parsed.actions) + len(parsed.problems) - strays == opening


UNITS = r"<|<create_memory>|<think>|\boxed{|{|1| |\text{|\color{|to=a|Here is my thought process: "


@pytest.mark.parametrize("unit", [*UNITS.split("|"), "<|channel|>analysis"])
@pytest.mark.parametrize(
    "frame", ["{}", "<final_answer>{}x</final_answer>", "<final_answer>\\boxed{{}}</final_answer>"]
)
def test_parse_garbage_takes_linear_time(unit, frame):
    text = frame.replace("{}", unit * (100_000 // len(unit)))
    start = time.process_time()
    PAPER.parse(text)
    # Quadratic time would be tens of seconds.
    assert time.process_time() - start < 1.0


# Whole completions ---


async def test_memagent_completion_replaces_memory():
    texts = ("Ann: Rome", "Ann lives in Rome; Bob sings", r"She lives there. \boxed{Rome}")
    memory = {"dialect": "memagent", "templates": "memagent", "capacity": None}
    memory["retention"] = "reject"
    run: Any = sessions.runner(sessions.saying(*texts), memory=memory, max_reads=0)
    episode = await run.run(sessions.TASK)
    assert (episode.reward, episode.answers) == (1.0, ("Rome",))
    assert [step.view.scratchpad for step in episode.steps] == ["", *texts[:2]]
    assert run.agent.embedder.calls == []
    last = run.agent.policy.prompts[-1]
    assert texts[1] in last
    # The old memory is gone, and the text with it.
    assert not any(text in last for text in ("Ann: Rome", "Bob sings."))


def test_parse_thinking_that_the_prompt_opened_is_left_out():
    assert outline("<c>no</c><s>no</think><c>yes</c>", thinking=True) == ["create yes"]
    (action,) = parse_whole("hm</think>the memory\n", SPECS[SCRATCHPAD], thinking=True).actions
    assert (action.kind, action.text) == (SCRATCHPAD, "the memory")
    # Neither an empty memory nor one that never stops thinking replaces the old one.
    for text, reason in ((" ", "empty"), ("<think>hm, so", "unclosed_thinking")):
        parsed = parse_whole(text, SPECS[SCRATCHPAD])
        assert parsed.actions == ()
        assert [problem.reason for problem in parsed.problems] == [reason]


def test_answers_in_returns_last_boxes():
    text = r"\boxed{never} <think>\boxed{no}</think> 1. \boxed{\boxed{a} b} 2. \boxed{} 3. "
    text += r"\boxed{{c} d} \boxed{cut"
    parsed = parse_whole(text, actions.ANSWERS_ACTION)
    assert actions.answers_in(parsed.actions, 3) == ["a", None, "{c} d"]
    assert actions.answers_in(parsed.actions, 5) == ["never", "a", None, "{c} d", None]

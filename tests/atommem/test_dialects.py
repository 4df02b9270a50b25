"""Dialects, their templates, and the dialect of whole completions."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem import dialects
from atommem.actions import (
    ANSWER,
    ANSWER_ACTION,
    ANSWERS_ACTION,
    CALL,
    MEMORY_ACTIONS,
    MEMORY_KINDS,
    Action,
    ActionSpec,
    Body,
    Problem,
    ProblemReason,
    answers_in,
)
from atommem.dialects import fill, get_dialect, load_templates, register_dialect
from atommem.environment import find_environment
from atommem.episode import StopReason
from atommem.errors import ConfigError, DialectError
from atommem.grammar import parse_whole
from atommem.memory.log import MemoryView
from atommem.rollout import EpisodeRunner
from tests.atommem import sessions
from tests.atommem.sessions import TASK, saying
from tests.atommem.test_prompts import READING, builder
from tests.fakes import answering

KINDS = (*MEMORY_KINDS, ANSWER, CALL)
FULL = yaml.safe_load((Path(dialects.__file__).parent / "templates" / "full.yaml").read_text())


def write(folder: Path, written: str | None = None, **changes: object) -> str:
    """A file of templates with these changes (None: without it), or of another text."""
    path = folder / "templates.yaml"
    fields = {name: value for name, value in {**FULL, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(fields) if written is None else written)
    return str(path)


def section(**changes: str | None) -> dict[str, object]:
    pieces = {
        name: text
        for name, text in {**find_environment("longdoc").section("full").pieces, **changes}.items()
        if text is not None
    }
    return {"environments": {"longdoc": {"pieces": pieces}}}


def test_register_dialect_conflicts_are_refused() -> None:
    tags = {kind: f"x_{kind}" for kind in KINDS}
    for _ in range(2):  # the same again is no conflict
        register_dialect("test_third_party", tags)
    assert get_dialect("test_third_party").tags["create"] == "x_create"
    for name, wrong, message in (
        ("test_third_party", {kind: f"y_{kind}" for kind in KINDS}, "other tags"),
        ("test_gap", {kind: kind for kind in KINDS if kind != "delete"}, "no tag for delete"),
        ("test_same", dict.fromkeys(KINDS, "same"), "the tag same for two actions"),
    ):
        with pytest.raises(DialectError, match=message):
            register_dialect(name, wrong)
    with pytest.raises(DialectError, match=r"klingon.*paper"):
        get_dialect("klingon")
    with pytest.raises(DialectError, match="also has acting"):
        get_dialect("memagent", "memagent").grammar([ANSWER_ACTION], ("reading", "acting"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": None}, "missing required field `system`"),
        ({"query": "no place for it"}, r"query lacks \{text\}"),
        ({"colour": "red"}, "unknown field colour"),
        ({"written": "a: [1, 2\n"}, "not a readable YAML file"),
        (section(chunk="no place for it"), r"piece chunk lacks \{chunk\}"),
    ],
)
def test_load_section_broken_file_names_the_field_or_piece(
    tmp_path: Path, changes: Any, message: str
) -> None:
    with pytest.raises(DialectError, match=message):
        find_environment("longdoc").section(write(tmp_path, **changes))
    with pytest.raises(ConfigError, match="no such file"):
        load_templates(str(tmp_path / "none.yaml"))


def test_grammar_two_actions_with_one_tag_are_refused() -> None:
    for clash in (
        ActionSpec("delete_memory", Body.TEXT),
        ActionSpec("x", Body.TEXT, tag="final_answer"),
    ):
        with pytest.raises(DialectError, match="for two actions"):
            get_dialect("paper").grammar([ANSWER_ACTION, clash])


def test_fill_replaces_named_fields_only() -> None:
    filled = fill(r"\boxed{answer} {text} {n:d}", {"text": "{text} {chunk}", "n": 3})
    assert filled == r"\boxed{answer} {text} {chunk} 3"


def runner(*texts: str) -> EpisodeRunner:
    memory = dict.fromkeys(("dialect", "templates"), "memagent")
    memory |= {"capacity": None, "retention": "reject"}
    return sessions.runner(saying(*texts), memory=memory, max_reads=0)


PAD, ANSWER = "scratchpad", "answer"
SPEC = next(spec for spec in MEMORY_ACTIONS if spec.name == PAD)


async def test_memagent_completion_replaces_memory() -> None:
    run = runner("Ann: Rome", "Ann lives in Rome; Bob sings", r"She lives there. \boxed{Rome}")
    episode = await run.run(TASK)
    assert (episode.reward, episode.answers, episode.stop_reason) == (
        1.0,
        ("Rome",),
        StopReason.ANSWERED,
    )
    assert [step.view.scratchpad for step in episode.steps] == [
        "",
        "Ann: Rome",
        "Ann lives in Rome; Bob sings",
    ]
    assert [step.store_size for step in episode.steps] == [0, 0, 0]
    assert [[o.kind for o in step.operations] for step in episode.steps] == [[PAD], [PAD], []]
    assert run.agent.embedder.calls == []  # type: ignore[attr-defined]
    first, second, third = run.agent.policy.prompts  # type: ignore[attr-defined]
    for prompt, texts in (
        (first, ("Ann lives in Rome.", "Your memory so far:\n(nothing yet)")),
        (second, ("Ann: Rome", "Bob sings.")),
        (third, ("Ann lives in Rome; Bob sings",)),
    ):
        assert all(text in prompt for text in texts)
    # The old memory is gone, and the text with it.
    assert not any(text in third for text in ("Ann: Rome", "Bob sings."))


@pytest.mark.parametrize(
    ("text", "bodies", "problem"),
    [
        ("  all of it\n", ["all of it"], None),
        ("hm</think>the memory", ["the memory"], None),
        # What is empty or never stops thinking leaves the memory as it was.
        (" ", [], Problem(ProblemReason.EMPTY, PAD, 0, 1)),
        ("<think>hm, so", [], Problem(ProblemReason.UNCLOSED_THINKING, "think", 0, 13)),
    ],
)
def test_parse_whole_returns_text_outside_thinking(
    text: str, bodies: list[str], problem: Problem | None
) -> None:
    parsed = parse_whole(text, SPEC, text.startswith("hm</think>"))
    assert parsed.actions == tuple(Action(PAD, body, start=0, end=len(text)) for body in bodies)
    assert parsed.problems == (() if problem is None else (problem,))


def test_answers_in_returns_last_boxes() -> None:
    text = r"\boxed{never} <think>\boxed{no}</think> 1. \boxed{\boxed{a} b} 2. \boxed{} 3. "
    text += r"\boxed{{c} d} \boxed{cut"
    parsed = parse_whole(text, ANSWERS_ACTION)
    assert [action.text for action in parsed.actions] == ["never", "a", "", "{c} d"]
    assert answers_in(parsed.actions, 3) == ["a", None, "{c} d"]
    assert answers_in(parsed.actions, 5) == ["never", "a", None, "{c} d", None]
    assert answers_in((), 2) == [None, None]
    assert [p.reason for p in parse_whole("none", ANSWERS_ACTION).problems] == [
        ProblemReason.NO_BOX
    ]
    grammar = get_dialect("paper").grammar((ANSWERS_ACTION,))
    several = grammar.parse(
        r"<final_answer>\boxed{a} \boxed{b}</final_answer><final_answer>\boxed{c}</final_answer>"
    )
    assert answers_in(several.actions, 3) == ["a", "b", "c"]


def test_get_dialect_tags_and_whole_completions_do_not_mix() -> None:
    for dialect, templates, message in (
        ("memagent", "full", "memagent: has no store, and templates=full are for dialects with"),
        ("paper", "memagent", "paper: has a store, and templates=memagent are for dialects with"),
    ):
        with pytest.raises(DialectError, match=message):
            get_dialect(dialect, templates)


def test_prompt_disabled_actions_are_not_mentioned() -> None:
    prompts = builder(disabled_actions=["create", "read", "update", "delete"])
    text = prompts.text(READING, MemoryView("SCRATCH"))
    assert "SCRATCH" in text
    assert "the scratchpad: a short note" in prompts.system
    for word in ("store", "query", "entries", "Memory 2"):
        assert word not in text
    closing = prompts.text(answering("Who?", 2), MemoryView("SCRATCH"))
    assert closing.endswith("Answer the question in the box.\n[assistant]")
    text = builder(disabled_actions=["scratchpad"]).text(READING, MemoryView("", "QUERY"))
    assert "scratchpad" not in text
    assert "QUERY" in text
    assert "the store: a list of entries" in text

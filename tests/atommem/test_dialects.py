"""Dialects, their templates, and the dialect of whole completions."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem import dialects
from atommem.actions import (
    ANSWER,
    ANSWERS_ACTION,
    CALL,
    MEMORY_ACTIONS,
    MEMORY_KINDS,
    SCRATCHPAD,
    answers_in,
)
from atommem.dialects import get_dialect, register_dialect
from atommem.environment import find_environment
from atommem.episode import StopReason
from atommem.errors import DialectError
from atommem.grammar import parse_whole
from tests.atommem import sessions
from tests.atommem.sessions import TASK

KINDS = (*MEMORY_KINDS, ANSWER, CALL)
NOTE = next(spec for spec in MEMORY_ACTIONS if spec.name == SCRATCHPAD)
FULL = yaml.safe_load((Path(dialects.__file__).parent / "templates" / "full.yaml").read_text())


def test_register_dialect_conflicts_are_refused() -> None:
    tags = {kind: f"x_{kind}" for kind in KINDS}
    for _ in range(2):  # the same again is no conflict
        register_dialect("test_third_party", tags)
    assert get_dialect("test_third_party").tags["create"] == "x_create"
    with pytest.raises(DialectError, match="other tags"):
        register_dialect("test_third_party", {**tags, "create": "y"})
    with pytest.raises(DialectError, match="no tag for delete"):
        register_dialect("test_gap", {kind: kind for kind in KINDS if kind != "delete"})
    with pytest.raises(DialectError, match=r"klingon.*paper"):
        get_dialect("klingon")
    with pytest.raises(DialectError, match="templates=full are for dialects with"):
        get_dialect("memagent", "full")


def test_load_section_broken_file_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "templates.yaml"
    for name, message in (("query", r"query lacks \{text\}"), ("colour", "unknown field colour")):
        path.write_text(yaml.safe_dump({**FULL, name: "no place for it"}))
        with pytest.raises(DialectError, match=message):
            find_environment("longdoc").section(str(path))


# Whole completions ---


async def test_memagent_completion_replaces_memory() -> None:
    texts = ("Ann: Rome", "Ann lives in Rome; Bob sings", r"She lives there. \boxed{Rome}")
    memory = {"dialect": "memagent", "templates": "memagent", "capacity": None}
    memory["retention"] = "reject"
    run: Any = sessions.runner(sessions.saying(*texts), memory=memory, max_reads=0)
    episode = await run.run(TASK)
    assert (episode.reward, episode.answers) == (1.0, ("Rome",))
    assert episode.stop_reason is StopReason.ANSWERED
    assert [step.view.scratchpad for step in episode.steps] == ["", *texts[:2]]
    assert run.agent.embedder.calls == []
    first, second, third = run.agent.policy.prompts
    assert "Your memory so far:\n(nothing yet)" in first
    assert "Ann: Rome" in second
    # The old memory is gone, and the text with it.
    assert texts[1] in third
    assert not any(text in third for text in ("Ann: Rome", "Bob sings."))


def test_parse_whole_returns_text_outside_thinking() -> None:
    (action,) = parse_whole("hm</think>the memory\n", NOTE, thinking=True).actions
    assert (action.kind, action.text) == (SCRATCHPAD, "the memory")
    # Neither an empty memory nor one that never stops thinking replaces the old one.
    for text, reason in ((" ", "empty"), ("<think>hm, so", "unclosed_thinking")):
        parsed = parse_whole(text, NOTE)
        assert parsed.actions == ()
        assert [problem.reason for problem in parsed.problems] == [reason]


def test_answers_in_returns_last_boxes() -> None:
    text = r"\boxed{never} <think>\boxed{no}</think> 1. \boxed{\boxed{a} b} 2. \boxed{} 3. "
    text += r"\boxed{{c} d} \boxed{cut"
    parsed = parse_whole(text, ANSWERS_ACTION)
    assert answers_in(parsed.actions, 3) == ["a", None, "{c} d"]
    assert answers_in(parsed.actions, 5) == ["never", "a", None, "{c} d", None]

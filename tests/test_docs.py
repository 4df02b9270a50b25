"""What pages outside of the tutorials show runs, and does what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem import dialects
from atommem.actions import MEMORY_ACTIONS
from atommem.config import MemoryConfig
from atommem.memory.operations import Operation, Outcome
from atommem.memory.working import WorkingMemory
from atommem.parsing import Grammar
from tests.fakes import WordEmbedder, WordTokenizer, load_script
from tests.pages import ROOT, Reader, blocks


async def test_the_rules_that_are_shown_rule(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        ((kind, block),) = blocks("docs/tutorials/own_rule.md", "python")
        reader.do(kind, block, {}, "own_rule.md")
        operations = await ruled()
    told = [(operation.kind, operation.outcome, operation.reason) for operation in operations]
    assert told == [
        ("create", Outcome.REJECTED, "admission:my_rules:NoDoubles: entry 1 says so"),
        ("delete", Outcome.APPLIED, "shown 0 times"),
        ("create", Outcome.APPLIED, ""),
    ]


async def ruled() -> list[Operation]:
    settings = MemoryConfig(capacity=2, retention="my_rules:LeastShown", admission="my_rules:NoDoubles")
    memory = WorkingMemory(WordEmbedder(), WordTokenizer(), settings)
    grammar = Grammar({spec.name: spec for spec in MEMORY_ACTIONS})
    await memory.apply(grammar.parse("<create>red</create><create>blue</create>").actions, 0)
    return await memory.apply(grammar.parse("<create>red</create><create>green</create>").actions, 1)


def defined_by(page: str) -> dict[str, Any]:
    """What the blocks of a page define, as a module."""
    defined: dict[str, Any] = {}
    for _, block in blocks(page, "python"):
        exec(compile(block, page, "exec"), defined)
    return defined


def test_the_dialect_and_the_bank_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_REGISTERED", dict(dialects._REGISTERED))
    defined_by("docs/extending.md")
    assert dialects.get_dialect("mine").tags["create"] == "remember"
    assert defined_by("docs/retention.md")["kept"] == ["cut the egg", "cut the plum"]


def test_the_step_in_the_design_page_is_what_the_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    design_step = load_script("design_step")
    made, shown = design_step.blocks(), design_step.on_page()
    assert list(shown) == list(made)
    for name, text in made.items():
        assert shown[name] == text, f"{name}: run python scripts/design_step.py --write"

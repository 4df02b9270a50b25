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
from tests.fakes import WordEmbedder, WordTokenizer
from tests.pages import Reader, blocks


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks of the page define, as a module."""
    monkeypatch.setattr(dialects, "_REGISTERED", dict(dialects._REGISTERED))
    defined: dict[str, Any] = {}
    for _, block in blocks("docs/extending.md", "python"):
        exec(compile(block, "docs/extending.md", "exec"), defined)
    return defined


def test_the_dialect_that_is_shown_is_registered(shown: dict[str, Any]) -> None:
    assert dialects.get_dialect("mine").tags["create"] == "remember"


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


def test_the_bank_of_the_page_on_retention_keeps_what_it_says() -> None:
    ((_, block),) = blocks("docs/retention.md", "python")
    shown: dict[str, Any] = {}
    exec(compile(block, "docs/retention.md", "exec"), shown)
    assert shown["kept"] == ["cut the egg", "cut the plum"]

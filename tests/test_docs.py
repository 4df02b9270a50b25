"""docs/extending.md: what it quotes stands in the files, what it shows runs, and its commands do what they say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atommem import cli, dialects
from atommem.actions import MEMORY_ACTIONS
from atommem.config import MemoryConfig
from atommem.memory.operations import Outcome
from atommem.memory.working import WorkingMemory
from atommem.parsing import Grammar
from tests.fakes import WordEmbedder, WordTokenizer

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
QUOTED = [block for _, block in BLOCKS if block.startswith("# tests/external/")]
SHOWN = [block for kind, block in BLOCKS if kind == "python" and block not in QUOTED]
COMMANDS = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]


@pytest.mark.parametrize("block", QUOTED)
def test_what_is_quoted_stands_in_the_file(block: str) -> None:
    name, _, quoted = block.partition("\n")
    text = (ROOT / name.removeprefix("# ")).read_text(encoding="utf-8")
    for part in quoted.split("...\n"):
        assert part in text


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the blocks that are no quotations define, as a module."""
    monkeypatch.setattr(dialects, "_REGISTERED", dict(dialects._REGISTERED))
    module = ModuleType("shown_in_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in SHOWN:
        exec(compile(block, "docs/extending.md", "exec"), vars(module))
    return vars(module)


def test_the_dialect_that_is_shown_is_registered(shown: dict[str, Any]) -> None:
    assert dialects.get_dialect("mine").tags["create"] == "remember"


async def test_the_rules_that_are_shown_rule(shown: dict[str, Any]) -> None:
    settings = MemoryConfig(capacity=2, retention="shown_in_docs:LeastShown", admission="shown_in_docs:NoDoubles")
    memory = WorkingMemory(WordEmbedder(), WordTokenizer(), settings)
    grammar = Grammar({spec.name: spec for spec in MEMORY_ACTIONS})
    await memory.apply(grammar.parse("<create>red</create><create>blue</create>").actions, 0)
    operations = await memory.apply(grammar.parse("<create>red</create><create>green</create>").actions, 1)
    told = [(operation.kind, operation.outcome, operation.reason) for operation in operations]
    assert told == [
        ("create", Outcome.REJECTED, "admission:shown_in_docs:NoDoubles: entry 1 says so"),
        ("delete", Outcome.APPLIED, "shown 0 times"),
        ("create", Outcome.APPLIED, ""),
    ]


def test_the_bank_of_the_page_on_retention_keeps_what_it_says() -> None:
    text = (ROOT / "docs" / "retention.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown: dict[str, Any] = {}
    exec(compile(block, "docs/retention.md", "exec"), shown)
    assert shown["kept"] == ["cut the egg", "cut the plum"]


def test_its_commands_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package as its entry point would be found if it were installed."""
    info = tmp_path / "atommem_atlas-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: atommem-atlas\nVersion: 0.1.0\n")
    entry = re.search(r"\[project\.entry-points\.(.*)\]\n(.*)", (ROOT / "tests/external/pyproject.toml").read_text())
    assert entry is not None
    (info / "entry_points.txt").write_text(f"[{entry[1].strip(chr(34))}]\n{entry[2].replace(chr(34), '')}\n")
    for folder in (tmp_path, ROOT / "tests" / "external"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[0] == "pip install ./tests/external"
    for command in COMMANDS[1:]:
        program, *arguments = shlex.split(command)
        assert program == "atommem"
        assert cli.main(arguments) == 0, command
    printed = capsys.readouterr().out
    assert "question 1: from" in printed
    assert "17 pass, 0 warn, 0 fail" in printed

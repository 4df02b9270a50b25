"""README's ten lines, as they stand there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from atommem import Memory
from atommem.config import save_config
from atommem.demo.recipe import FULL, quick
from atommem.demo.settings import load_settings
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.envs.synthetic.world import generate
from atommem.train.resume.checkpoint import GenerationSettings
from tests.pages import blocks

WORLD = quick(FULL).world


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the demo leaves it, its weights untrained."""
    folder = tmp_path_factory.mktemp("grpo")
    settings = load_settings(folder, 0, None)
    tokenizer = make_tokenizer(WORLD, settings.memory)
    tokenizer.save_pretrained(folder)
    make_model(quick(FULL).size, tokenizer).save_pretrained(folder)
    save_config(folder, settings.memory, settings.embedder, settings.environment, GenerationSettings(16))
    return folder


def snippet() -> str:
    (found,) = (block for _, block in blocks("README.md", "python") if block.startswith("from atommem import Memory"))
    return found


def test_the_ten_lines_of_the_readme_run(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in snippet().splitlines() if line.strip()]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    shutil.copytree(policy, "runs/demo/grpo")
    task = next(generate(WORLD, 1, 5))
    Path("book.txt").write_text("\n\n".join(document.text for document in task.documents))
    names: dict[str, Any] = {}
    exec(compile(snippet(), "README.md", "exec"), names)
    memory, again = names["memory"], names["again"]
    assert isinstance(memory, Memory)
    assert memory.readings[0].chunks == len(task.documents)
    assert memory.settings["templates"] == "compact"  # what it was trained with
    assert again.history() == memory.history()
    assert again.entries() == memory.entries()
    assert capsys.readouterr().out

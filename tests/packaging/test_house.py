"""What `lint-imports` is asked to hold is held: each rule, broken on purpose in a copy, is reported.

That the tree as it is breaks none, scripts/test says.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("envs", "train", "eval", "serve", "demo")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as a checkout has it: rooms at top level, links to them inside of the package."""
    copy = tmp_path_factory.mktemp("house")
    for name in ("atommem", *ROOMS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports`, with a new cache each time: two edits within a second would look the same to it."""
    command = "import sys; from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=60
    )


WRONG = (
    ("atommem/errors.py", "import atommem.envs.task", "atommem.errors is not allowed to import atommem.envs"),
    ("atommem/errors.py", "from atommem.train import train_config", "not allowed to import atommem.train"),
    ("envs/task.py", "from atommem.eval import runner", "atommem.envs is not allowed to import atommem.eval"),
    ("train/train_config.py", "import atommem.eval.runner", "atommem.train is not allowed to import atommem.eval"),
    ("eval/runner.py", "def f():\n    import atommem.train.train_cli", "atommem.eval is not allowed to import"),
    ("atommem/actions.py", "import atommem.episode_runner", "atommem.actions is not allowed to import"),
    ("atommem/memory/store.py", "import torch", "atommem.memory.store -> torch"),
    ("envs/task.py", "def f():\n    import transformers", "atommem.envs.task -> transformers"),
    ("envs/task.py", "import atommem.envs.task_files", "No cycles are allowed in atommem.envs"),
)


@pytest.mark.slow
def test_an_arrow_that_points_up_and_a_circle(copy: Path, tmp_path: Path) -> None:
    """All of them in one run, which takes a second."""
    wrong = shutil.copytree(copy, tmp_path / "wrong", symlinks=True)
    for module, line, _ in WRONG:
        with (wrong / module).open("a") as file:
            file.write(f"\n{line}\n")
    result = lint_imports(wrong)
    assert result.returncode == 1, result.stdout
    said = " ".join(result.stdout.split())
    assert [reported for _, _, reported in WRONG if reported not in said] == []


@pytest.mark.slow
def test_a_module_without_a_floor(copy: Path, tmp_path: Path) -> None:
    wrong = shutil.copytree(copy, tmp_path / "wrong", symlinks=True)
    (wrong / "atommem" / "loft.py").write_text("import atommem.errors\n")
    result = lint_imports(wrong)
    assert result.returncode == 1, result.stdout
    assert "atommem.loft" in " ".join(result.stdout.split())

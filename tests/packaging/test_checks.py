"""scripts/test as it is, with stand-ins for the checks before the tests and for the tests: what makes it fail."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
    tests = "".join(f"exec(compile(open('{room}/module.py').read(), '{room}/module.py', 'exec'))\n" for room in ROOMS)
    (tmp_path / "tests.py").write_text(tests + "print('10 passed in 1s')\n")
    stand_ins = dict.fromkeys(("scripts/setup", ".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports"), "true")
    stand_ins[".venv/bin/python"] = f"{sys.executable} -m coverage run tests.py"
    stand_ins[".venv/bin/coverage"] = f'{sys.executable} -m coverage "$@"'
    for name, command in stand_ins.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    return tmp_path


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / "scripts/test", *options], capture_output=True, text=True, timeout=60)


def test_the_gate_knows_every_room() -> None:
    """A room is a folder of Python that the package links to; one that is added has to be named in all of these."""
    links = [path for path in (ROOT / "atommem").iterdir() if path.is_symlink()]
    rooms = ["atommem", *(link.name for link in links if any((ROOT / link.name).rglob("*.py")))]
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["source"]
    gate = re.search("for room in (.*); do", (ROOT / "scripts" / "test").read_text())
    assert gate is not None
    assert sorted(rooms) == sorted(ROOMS) == sorted(source) == sorted(gate[1].split())


@pytest.mark.slow
def test_every_room_s_coverage_is_printed_after_the_tests(checkout: Path) -> None:
    result = run(checkout)
    assert result.returncode == 0, result.stderr
    # All but the benches, then these.
    assert result.stdout.splitlines() == ["10 passed in 1s"] * 2 + [f"coverage of {room}: 100.0%" for room in ROOMS]


@pytest.mark.slow
def test_one_room_below_the_bar_fails_though_the_total_is_above(checkout: Path) -> None:
    room = "train"
    (checkout / room / "module.py").write_text("value = 1\n" * 8 + "if value > 1:\n    value = 3\n")  # 90% is enough
    assert run(checkout).returncode == 0
    (checkout / room / "module.py").write_text("value = 1\n" * 7 + "if value > 1:\n    value = 2\n    value = 3\n")
    result = run(checkout)
    assert result.returncode == 1
    assert f"coverage of {room}:\n" in result.stdout
    assert f"{room}/module.py 10 2 80.0% 9-10" in " ".join(result.stdout.split()), "what is missing is listed"
    assert "at least 90%" in result.stderr
    assert run(checkout, "-k", "some").returncode == 0

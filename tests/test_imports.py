"""The rooms import one way only, and the core is light."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "atommem": {"atommem"},
    "envs": {"atommem", "envs"},
    "train": {"atommem", "envs", "train"},
    "eval": {"atommem", "envs", "eval"},
    "demo": {"atommem", "envs", "train", "eval", "demo"},
}
HEAVY = ["torch", "transformers", "trl", "vllm", "sentence_transformers", "datasets", "peft"]


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            rooms.add(node.module.split(".")[0])
    return rooms & set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_no_module_imports_upwards(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    wrong = {str(path.relative_to(ROOT)): imported_rooms(path) - ALLOWED[room] for path in files}
    assert {path: rooms for path, rooms in wrong.items() if rooms} == {}


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(result.stdout))


def test_importing_the_whole_core_loads_no_heavy_library() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "atommem").rglob("*.py"))
        if path.name != "__init__.py"
    ]
    loaded = loaded_by("\n".join(f"import {name}" for name in modules))
    assert "atommem.episode_runner" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_import_atommem_is_small() -> None:
    # The half second of the bar is measured by scripts/bench_import.py; what costs it is guarded here.
    assert not {"numpy", "faiss", "yaml", "rich", "httpx"} & loaded_by("import atommem")

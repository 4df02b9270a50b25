"""The core is light: what is imported, and not only what may be (`lint-imports` holds that)."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "trl", "vllm", "datasets", "peft", "accelerate"}
ROOMS = {"envs", "train", "eval", "serve", "demo"}


def test_import_atommem_loads_no_heavy_package() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "atommem").rglob("*.py"))]
    core = [
        ".".join(path.with_suffix("").parts)
        for path in paths
        if path.parts[1] not in ROOMS and path.stem != "__init__"
    ]
    lines = [
        "import atommem",
        "from atommem import AsyncMemory, Memory; atommem.__version__",
        f"import {','.join(core)}",
    ]
    report = "print(json.dumps([*sys.modules]))"
    script = "\n".join(["import json, sys", *(f"{line}\n{report}" for line in lines)])
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    alone, memory, whole = (set(json.loads(line)) for line in result.stdout.splitlines())
    assert not {"numpy", "faiss", "yaml", "rich", "httpx"} & alone
    assert not HEAVY & memory
    assert {"atommem.rollout", "atommem.policy.local"} <= whole
    assert not whole & (HEAVY | {f"atommem.{room}" for room in ROOMS})

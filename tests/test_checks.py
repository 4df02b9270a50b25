"""The documentation's site, benches in their smallest form, gpu_check."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import load_script

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert {page.stem for page in (ROOT / "docs").rglob("*.md")} | {"index"} <= set(pages)
    for text in ('id="atommem.api.Memory.read"', "ids of those entries whose text a limit cut"):
        assert text in pages["api"]
    remote = r"<(?:script|img|iframe|link)[^>]+?(?:src|href)=[\"'](https?://[^\"']*)"
    loaded = {name: re.findall(remote, page) for name, page in pages.items()}
    assert {name: found for name, found in loaded.items() if found} == {}


@pytest.mark.slow
def test_container_s_steps_run(tmp_path):
    """Without a container engine, as a script; packages that are installed here are not again."""
    lines = [line.split(maxsplit=1) for line in (ROOT / "Dockerfile").read_text().splitlines()]
    command = json.loads(next(words[1] for words in lines if words[:1] == ["CMD"]))
    options: Any = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 600}
    engine = shutil.which("docker") or shutil.which("podman")
    if engine and subprocess.run([engine, "info"], **options).returncode == 0:
        build = subprocess.run([engine, "build", "-q", ROOT], **options)
        assert build.returncode == 0, build.stderr
        command = [engine, "run", "--rm", build.stdout.strip(), *command]
    else:
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
        for name in files.stdout.splitlines():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name, follow_symlinks=False)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"])
        (packages,) = (tmp_path / ".venv" / "lib").glob("python*/site-packages")
        (packages / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for words in lines:
            if words[:1] == ["RUN"]:
                done = subprocess.run(["bash", "-euc", words[1]], **options)
                assert done.returncode == 0, done.stderr
        command[0] = str(tmp_path / ".venv" / "bin" / command[0])
    assert "usage: atommem COMMAND" in subprocess.run(command, **options).stdout


KILLS = ROOT / "scripts" / "bench_kills.py"  # a test of its own: tests/serve/test_durability.py
BENCHES = sorted({*(ROOT / "scripts").glob("bench_*.py")} - {KILLS})
NEEDS = dict.fromkeys(("bench_lora_sync", "bench_rollout", "bench_step"), "vllm")
NEEDS |= {"bench_stores": "mem0", "bench_tinker": "skyrl"}


@pytest.mark.slow
@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_bench_in_its_smallest_form_holds(bench, tmp_path):
    engine = NEEDS.get(bench.stem, "")
    installed = (ROOT / f".venv-{engine}" / ".installed").exists()
    if engine and not installed and f"{engine.upper()}_PYTHON" not in os.environ:
        pytest.skip(f"needs {engine}: set {engine.upper()}_PYTHON, or see scripts/*_python")
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "offline"}
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, bench, "--quick"], subprocess.PIPE
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is True


def test_every_recipe_and_launcher_has_its_pair():
    pairs = load_script("bench_shipped").pairs()
    recipes = {path.stem for path in (ROOT / "configs" / "train").glob("*.yaml")}
    assert {pair.recipe for pair in pairs} == recipes - {"sft_smollm2"}  # of scripts/smollm2
    launchers = {path.stem for path in (ROOT / "configs" / "accelerate").glob("*.yaml")}
    assert {pair.launcher for pair in pairs} == launchers | {"none"}


@pytest.mark.slow
def test_gpu_check_on_a_cpu_runs_its_parts(tmp_path):
    environment: dict[str, Any] = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / "scripts" / "gpu_check"), "--tiny", "--output_dir", str(tmp_path)]
    command += ["--only", "mask", "attention", "lora", "colocate", "colocate_lora"]
    subprocess.run(command, env=environment, capture_output=True, timeout=560, check=False)
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    log = (tmp_path / "gpu_check.log").read_text()
    parts = found["parts"].values()
    assert [part["status"] for part in parts] == ["ended"] * 5, log[-5000:]
    rows = [row for part in parts for row in part["rows"]]
    assert [row["what"] for row in rows if row["ok"] is False] == []
    assert any("error of the trie" in row["what"] for row in rows)
    moved = [row["figures"]["weights_moved"] for row in rows if row["what"].startswith("greedy")]
    assert [value > 0 for value in moved] == [False, True] * 2, log[-5000:]

"""The commands of `scripts/bench_shipped.py` are those of the headers; one pair is run whole."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes import load_script

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("bench_shipped")


def test_every_recipe_and_launcher_has_its_pair(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    pairs = bench.pairs()
    recipes = {path.stem for path in (ROOT / "configs" / "train").glob("*.yaml")}
    by_scripts = {"sft_smollm2", "smollm2_real"}  # scripts/real_train gives their flags
    assert {pair.recipe for pair in pairs} == recipes - by_scripts
    launchers = {path.stem for path in (ROOT / "configs" / "accelerate").glob("*.yaml")}
    assert {pair.launcher for pair in pairs} == launchers | {"none"}
    left_out = {pair.name for pair in pairs if bench.why_not(pair)} - {"deepspeed_zero3 qwen3_8b_hotpotqa"}
    assert left_out == {"ddp async_qwen3_8b_lora", "none smollm2_cpu"}
    monkeypatch.setenv("VLLM_PYTHON", "python")
    assert not any(bench.why_not(pair) for pair in pairs if pair.stage == "async")


def test_nothing_of_a_header_is_left_out(bench: ModuleType) -> None:
    pair = next(pair for pair in bench.pairs() if pair.name == "fsdp2 no_update")
    (command,) = bench.commands(pair, 2, "out", resume=False)
    text = " ".join(command)
    assert f"--config_file {ROOT}/configs/accelerate/fsdp2.yaml" in text
    assert "-m atommem.cli train grpo --config no_update" in text
    first, second = bench.commands(next(p for p in bench.pairs() if p.launcher == "multi_node"), 2, "out", resume=True)
    assert "--machine_rank 0 --main_process_ip 127.0.0.1" in " ".join(first)
    assert "--machine_rank 1 --main_process_ip 127.0.0.1" in " ".join(second)


def test_a_server_is_started_as_the_header_says(bench: ModuleType) -> None:
    pair = next(pair for pair in bench.pairs() if pair.stage == "async")
    flags = ["--enable-lora", "--max-lora-rank", "32", "--max-loras", "4"]
    assert bench.server_settings(pair) == ({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}, flags)
    (command,) = bench.commands(pair, 1, "out", resume=False, url="http://localhost:1")
    assert command[command.index("--vllm_server_base_url") + 1] == "http://localhost:1"


@pytest.mark.slow
def test_a_recipe_on_two_processes_is_the_recipe_on_one(bench: ModuleType) -> None:
    assert bench.main(["--quick"]) == 0

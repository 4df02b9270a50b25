"""`--dry_run` from the command line: what it reads, refuses and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from trl import ModelConfig

from atommem.config import save_config
from atommem.errors import AtomMemError, ConfigError
from atommem.train.dry_run.shapes import (
    GRADIENTS,
    WEIGHTS,
    Launch,
    measure,
    parameters_of,
    read_launch,
)
from atommem.train.train_cli import main
from tests.train.harness import SETTINGS, make_element_tokenizer
from tests.train.toys import make_model

MINIMUM = ["--model_name_or_path", "Qwen/Qwen3-8B", "--data", "nowhere.parquet"]


def dry(tmp_path: Path, *flags: str, stage: str = "grpo") -> dict[str, Any]:
    out = tmp_path / "plan.json"
    assert main([stage, "--dry_run", "--dry_run_json", str(out), *flags]) == 0
    plan: dict[str, Any] = json.loads(out.read_text())
    return plan


@pytest.mark.slow
def test_dry_run_needs_no_weights_data_or_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--dry_run_processes", "8", "--per_device_train_batch_size", "32"]
    plan = dry(tmp_path, *MINIMUM, *sizes)
    assert plan["run"]["model"]["parameters"] == 8_190_735_360
    assert plan["memory"]["parts"]["embedder"] == 2 * 595_776_512
    assert not plan["memory"]["fits"]
    warnings = " ".join(plan["warnings"])
    assert "exceeds the 80 GB of h100" in warnings
    assert "nowhere.parquet does not exist yet" in warnings
    text = capsys.readouterr().out
    for part in ("unique tokens", "activations", "sampling", "Qwen/Qwen3-8B (flag)"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80  # in a pipe or a log


@pytest.mark.slow
def test_dry_run_names_the_source_of_every_setting(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tokenizer = make_element_tokenizer()
    make_model(vocabulary=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_config(folder, *SETTINGS)
    file = tmp_path / "run.yaml"
    given = {"model_name_or_path": str(folder), "data": "d", "chunk_tokens": 77, "beta": 0.5}
    file.write_text(yaml.safe_dump(given))
    flags = ["--beta", "0.25", "--num_generations=4", "--hub_token", "secret"]
    plan = dry(tmp_path, "--config", str(file), *flags)
    found = {name: (item["value"], item["source"]) for name, item in plan["settings"].items()}
    expected = {
        "beta": (0.25, "flag"),
        "hub_token": ("(hidden)", "flag"),
        "chunk_tokens": (77, "file"),
        "templates": ("compact", "model folder"),
        "learning_rate": (1e-6, "default"),
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model_name_or_path", "nobody/nothing"], "its architecture is not on this machine"),
        (["--dry_run_tasks", "2"], "2 tasks are fewer than the 4 groups"),
        (["--use_peft", "--lora_target_modules", "nothing"], "the adapter does not fit"),
    ],
)
def test_dry_run_of_an_invalid_run_is_refused(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(AtomMemError, match=message):
        dry(tmp_path, *MINIMUM, *flags)


@pytest.mark.slow
def test_dry_run_warns_of_16_bit_weights_and_knows_each_backend(tmp_path: Path) -> None:
    half = [*MINIMUM, "--dtype", "bfloat16"]
    plan, lora = dry(tmp_path, *half), dry(tmp_path, *half, "--use_peft")
    assert any("rounding" in warning for warning in plan["warnings"])
    assert not any("rounding" in warning for warning in lora["warnings"])
    vllm = [*MINIMUM, "--use_vllm", "--vllm_gpu_memory_utilization", "0.3", "--vllm_mode"]
    colocate, server = dry(tmp_path, *vllm, "colocate"), dry(tmp_path, *vllm, "server")
    assert colocate["memory"]["parts"]["rollout"] == pytest.approx(0.3 * 80e9)
    assert "rollout" not in server["memory"]["parts"]
    assert dry(tmp_path, *MINIMUM, stage="async")["memory"]["parts"]["sampling model"] > 1e10


def test_measure_counts_parameters_of_models_and_adapters() -> None:
    assert parameters_of("Qwen/Qwen3-Embedding-0.6B") == 595_776_512
    shape = measure(ModelConfig("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert (shape.parameters, shape.trainable) == (134_515_008, 134_515_008)
    assert 30 * shape.layer + shape.embedding + 576 == shape.parameters
    targets = ["q_proj", "v_proj"]
    config = ModelConfig("Qwen/Qwen3-0.6B", use_peft=True, lora_r=4, lora_target_modules=targets)
    # A is (4, 1024), B is (2048, 4) and (1024, 4), in each of 28 layers.
    assert measure(config).trainable == 28 * 4 * (1024 + 2048 + 1024 + 1024)


def launch_of(folder: Path, processes: int | None = None, **fields: object) -> Launch:
    path = folder / "launcher.yaml"
    common = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1}
    path.write_text(yaml.safe_dump({**common, **fields}))
    return read_launch(str(path), processes)


def test_read_launch_of_accelerate_configs_has_their_shards(tmp_path: Path) -> None:
    assert read_launch(None, None) == Launch("single", 1)
    assert read_launch(None, 3).name == "ddp"
    several: dict[str, Any] = {"distributed_type": "MULTI_GPU", "num_processes": 4}
    assert launch_of(tmp_path, 1, **several).name == "single"
    zero = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}
    launch = launch_of(tmp_path, **several | zero)
    assert (launch.name, launch.share(WEIGHTS), launch.share(GRADIENTS)) == ("zero2", 1.0, 0.25)
    hybrid = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2}
    fsdp: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
    fsdp["parallelism_config"] = hybrid
    assert launch_of(tmp_path, **several | fsdp).shards == 2


def test_read_launch_of_an_unsupported_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="XLA is not supported"):
        launch_of(tmp_path, distributed_type="XLA", num_processes=3)
    fsdp1: dict[str, Any] = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}}
    with pytest.raises(ConfigError, match="with fsdp_version: 2"):
        launch_of(tmp_path, num_processes=2, **fsdp1)

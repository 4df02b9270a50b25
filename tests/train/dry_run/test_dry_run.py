"""`--dry_run` from the command line: what it reads, refuses and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM
from trl import ModelConfig

from atommem.config import save_config
from atommem.errors import AtomMemError, ConfigError
from atommem.train.dry_run.architecture import find_config, measure, parameters_of
from atommem.train.dry_run.launcher import GRADIENTS, WEIGHTS, Launch, read_launch
from atommem.train.train_cli import main
from tests.train.loops.test_end_to_end import SETTINGS, make_element_tokenizer
from tests.train.toys import make_model

MINIMUM = ["--model_name_or_path", "Qwen/Qwen3-8B", "--data", "nowhere.parquet"]


def dry(tmp_path: Path, *flags: str, stage: str = "grpo") -> dict[str, Any]:
    out = tmp_path / "plan.json"
    assert main([stage, "--dry_run", "--dry_run_json", str(out), *flags]) == 0
    plan: dict[str, Any] = json.loads(out.read_text())
    return plan


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan without further flags."""
    return dry(tmp_path_factory.mktemp("base"), *MINIMUM)


def test_everything_without_weights_data_or_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = dry(
        tmp_path, *MINIMUM, "--dry_run_processes", "8", "--per_device_train_batch_size", "32"
    )
    assert plan["run"]["model"]["parameters"] == 8_190_735_360
    assert (plan["run"]["launch"]["name"], plan["run"]["launch"]["processes"]) == ("ddp", 8)
    assert not plan["memory"]["fits"]
    assert any("exceeds the 80 GB of h100" in warning for warning in plan["warnings"])
    assert any("nowhere.parquet is not there yet" in warning for warning in plan["warnings"])
    shown = (
        "8,190,735,360 parameters",
        "unique tokens",
        "activations",
        "micro-batches",
        "while training",
    )
    shown += ("model_name_or_path=Qwen/Qwen3-8B (flag)", "warning")
    text = capsys.readouterr().out
    assert [one for one in shown if one not in text] == []
    assert max(map(len, text.splitlines())) <= 80  # in a pipe or a log


def test_the_source_of_every_setting(tmp_path: Path, base: dict[str, Any]) -> None:
    folder = tmp_path / "model"
    tokenizer = make_element_tokenizer()
    make_model(vocabulary=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_config(folder, *SETTINGS)
    file = tmp_path / "run.yaml"
    file.write_text(
        yaml.safe_dump(
            {"model_name_or_path": str(folder), "data": "d", "chunk_tokens": 77, "beta": 0.5}
        )
    )
    plan = dry(
        tmp_path,
        "--config",
        str(file),
        "--beta",
        "0.25",
        "--num_generations=4",
        "--hub_token",
        "secret",
    )
    found = {name: (item["value"], item["source"]) for name, item in plan["settings"].items()}
    expected = {
        "beta": (0.25, "flag"),
        "num_generations": (4, "flag"),
        "hub_token": ("(hidden)", "flag"),
    }
    expected |= {"chunk_tokens": (77, "file"), "templates": ("compact", "model folder")}
    expected |= {"learning_rate": (1e-6, "default"), "bf16": (True, "default")}
    assert {name: found[name] for name in expected} == expected
    assert base["settings"]["environment"] == {"value": "longdoc", "source": "default"}
    assert plan["run"]["model"]["source"] == "folder"
    assert any("the model folder's tokenizer" in line for line in plan["assumptions"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dry_run_device", "abacus"], "dry_run_device is 'abacus'"),
        (["--dry_run_utilisation", "0"], "dry_run_utilisation is 0"),
        (["--dry_run_processes", "0"], "dry_run_processes is 0"),
        (["--dry_run_questions", "0"], "dry_run_questions is 0"),
        (["--dry_run_launcher", "nowhere.yaml"], "dry_run_launcher is 'nowhere.yaml'"),
        (
            ["--model_name_or_path", "nobody/nothing"],
            "the architecture of 'nobody/nothing' is not on this machine",
        ),
        (["--dialect", "memagent"], "templates 'full' explain tags"),
        (["--loss_type", "bnpo"], "loss_type is 'bnpo'"),
        (["--top_k", "5"], "top_k is 5"),
        (["--dry_run_tasks", "2"], "2 tasks are fewer than the 4 groups"),
        (["--use_peft", "--lora_target_modules", "nothing"], "the adapter does not fit"),
    ],
)
def test_what_a_run_would_stumble_over_is_refused(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(AtomMemError, match=message):
        dry(tmp_path, *MINIMUM, *flags)


def test_weights_that_would_lose_their_updates_are_warned_of(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    half = [*MINIMUM, "--dtype", "bfloat16"]
    plans = (base, dry(tmp_path, *half), dry(tmp_path, *half, "--use_peft"))
    assert [any("rounding" in warning for warning in plan["warnings"]) for plan in plans] == [
        False,
        True,
        False,
    ]


def test_what_samples_and_embeds_is_in_memory_where_it_is(
    tmp_path: Path, base: dict[str, Any]
) -> None:
    vllm, elsewhere = [*MINIMUM, "--use_vllm"], ["--vllm_server_base_url", "http://x"]
    colocate = dry(
        tmp_path, *vllm, "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.3"
    )
    server = dry(tmp_path, *vllm, "--vllm_mode", "server", "--embedder_model", "nobody/nothing")
    sft = dry(tmp_path, *MINIMUM, stage="sft")
    own, apart = (dry(tmp_path, *flags, stage="async") for flags in (MINIMUM, [*vllm, *elsewhere]))
    assert [p["run"]["rollout"] for p in (base, colocate, server, sft)] == [
        "local",
        "colocate",
        "server",
        "none",
    ]
    parts = {
        name: plan["memory"]["parts"]
        for name, plan in (("server", server), ("sft", sft), ("apart", apart))
    }
    assert not {"rollout", "embedder"} & parts["server"].keys()
    assert any(
        "the embedder nobody/nothing is not on this machine" in line
        for line in server["assumptions"]
    )
    assert "embedder" not in parts["sft"]
    assert "embedder" not in dry(tmp_path, *MINIMUM, "--embedder", "hashing")["memory"]["parts"]
    assert base["memory"]["parts"]["embedder"] == 2 * 595_776_512
    assert colocate["memory"]["parts"]["rollout"] == pytest.approx(0.3 * 80e9)
    assert colocate["timelines"][0]["seconds"] < base["timelines"][0]["seconds"]
    assert sft["timelines"] == []
    assert own["memory"]["parts"]["sampling model"] > 1e10
    assert "sampling model" not in parts["apart"]


def test_architectures() -> None:
    assert parameters_of("Qwen/Qwen3-Embedding-0.6B") == 595_776_512
    shape = measure(ModelConfig("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert (shape.parameters, shape.trainable, shape.query_norm) == (
        134_515_008,
        134_515_008,
        False,
    )
    assert 30 * shape.layer + shape.embedding + 576 == shape.parameters
    assert shape.widths == (576, 1536, 9 * 64, 3 * 64)
    lora = measure(
        ModelConfig(
            "Qwen/Qwen3-0.6B", use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"]
        )
    )
    # A is (4, 1024), B is (2048, 4) and (1024, 4), in each of 28 layers.
    assert lora.trainable == 28 * 4 * (1024 + 2048 + 1024 + 1024)
    assert lora.lora
    assert find_config("Qwen/Qwen3-8B")[1] == "shipped architecture"


def test_an_adapter_is_measured_with_its_base(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    make_model().save_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(
        model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    ).save_pretrained(adapter)
    shape = measure(ModelConfig(str(adapter)))
    assert shape.trainable == 2 * 2 * (16 + 16)
    assert shape.lora


def launch_of(folder: Path, processes: int | None = None, **fields: object) -> Launch:
    path = folder / "launcher.yaml"
    path.write_text(
        yaml.safe_dump({"compute_environment": "LOCAL_MACHINE", "num_machines": 1, **fields})
    )
    return read_launch(str(path), processes)


def test_launchers(tmp_path: Path) -> None:
    assert read_launch(None, None) == Launch("single", 1)
    assert read_launch(None, 3).name == "ddp"
    several: dict[str, Any] = {"distributed_type": "MULTI_GPU", "num_processes": 4}
    assert (launch_of(tmp_path, **several).processes, launch_of(tmp_path, 1, **several).name) == (
        4,
        "single",
    )
    launch = launch_of(
        tmp_path,
        **several | {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
    )
    assert (launch.name, launch.share(WEIGHTS), launch.share(GRADIENTS)) == ("zero2", 1.0, 0.25)
    hybrid = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2}
    sharded = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": 2},
        "parallelism_config": hybrid,
    }
    assert launch_of(tmp_path, **several | sharded).shards == 2


FSDP = {"distributed_type": "FSDP", "num_processes": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"distributed_type": "MULTI_GPU"}, "has no num_processes"),
        (
            {"distributed_type": "MULTI_GPU", "num_processes": 3, "num_machines": 2},
            "3 processes cannot be spread",
        ),
        ({"distributed_type": "XLA", "num_processes": 3}, "distributed_type XLA is not supported"),
        (FSDP | {"fsdp_config": {"fsdp_version": 1}}, "fsdp_version is not 2"),
        (
            FSDP | {"fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": True}},
            "set gradient_checkpointing in the recipe",
        ),
        ({"distributed_type": "MULTI_GPU", "num_gpus": 3}, "is no accelerate config"),
    ],
)
def test_launchers_that_are_refused(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        launch_of(tmp_path, **fields)  # type: ignore[arg-type]

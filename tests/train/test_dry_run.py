"""`--dry_run`: what it reads, refuses and reports; memory, workload and timeline by hand."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3MoeConfig
from trl import ModelConfig

from atommem.environment import TaskShape
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError
from atommem.train.devices import DEVICES
from atommem.train.dry_run import costs, shapes
from atommem.train.dry_run.costs import Costs, Precision, Run, Timeline, estimate_memory
from atommem.train.dry_run.plan import diverging
from atommem.train.packing.micro_batch import widths
from atommem.train.settings import parse
from atommem.train.train_cli import main
from tests.pages import ROOT

MINIMUM = "--model_name_or_path Qwen/Qwen3-8B --data nowhere.parquet"


def dry(tmp_path: Path, flags: str) -> dict[str, Any]:
    out = tmp_path / "plan.json"
    assert main(["grpo", "--dry_run", "--dry_run_json", str(out), *flags.split()]) == 0
    return json.loads(out.read_text())


@pytest.mark.slow
def test_dry_run_needs_no_weights_data_or_network(tmp_path, capsys):
    sizes = "--dry_run_processes 8 --per_device_train_batch_size 32"
    plan = dry(tmp_path, f"{MINIMUM} {sizes}")
    assert plan["run"]["model"]["parameters"] == 8_190_735_360
    assert plan["memory"]["parts"]["embedder"] == 2 * 595_776_512
    assert "exceeds the 80 GB of h100" in " ".join(plan["warnings"])
    assert "unique tokens" in capsys.readouterr().out
    (tmp_path / "t.jsonl").write_text('{"id": "a", "context": "b", "questions": [{"text": "c"}]}')
    with pytest.raises(DataError, match="task 'a': no gold answer"):
        dry(tmp_path, f"{MINIMUM} --data {tmp_path}/t.jsonl")
    served = dry(tmp_path, f"{MINIMUM} {sizes} --use_vllm --vllm_mode server --dry_run_device H100")
    assert served["timelines"][0]["name"] == "this run: 1 sample, 8 train, in turn"
    assert "of 256 episodes" in capsys.readouterr().out
    vllm = "--use_vllm --vllm_gpu_memory_utilization 0.3 --vllm_mode colocate"
    colocated = dry(tmp_path, f"{MINIMUM} {vllm}")
    assert colocated["memory"]["parts"]["rollout"] == pytest.approx(24e9)
    # Its weights have 32.8 GB in float32.
    assert any("a vLLM engine needs" in line for line in colocated["warnings"])


@pytest.mark.slow
def test_pages_state_what_the_dry_run_says(tmp_path):
    save_tasks(generate(WorldConfig(), 16, 0), tmp_path / "train.jsonl")
    one_gpu = f"--config qwen3_0.6b_lora_1gpu --data {tmp_path}/train.jsonl"
    for page, flags, text in (
        ("tutorials/one_gpu.md", one_gpu, "{:.1f} of 24 GB and {:.0f} s an update"),
        ("train.md", "--config qwen3_8b_hotpotqa", "it says {:.1f} GB and {:.0f} s an update"),
    ):
        plan = dry(tmp_path, flags)
        peak, seconds = max(plan["memory"]["phases"].values()), plan["timelines"][0]["seconds"]
        assert text.format(peak / 1e9, seconds) in (ROOT / "docs" / page).read_text()


def test_measure_counts_parameters_of_models_and_adapters():
    shape = shapes.measure(ModelConfig("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert (shape.parameters, shape.trainable) == (134_515_008, 134_515_008)
    assert 30 * shape.layer + shape.embedding + 576 == shape.parameters
    targets = ["q_proj", "v_proj"]
    config = ModelConfig("Qwen/Qwen3-0.6B", use_peft=True, lora_r=4, lora_target_modules=targets)
    # A is (4, 1024), B is (2048, 4) and (1024, 4), in each of 28 layers.
    assert shapes.measure(config).trainable == 28 * 4 * (1024 + 2048 + 1024 + 1024)


def test_measure_counts_the_experts_of_a_token(tmp_path):
    experts = Qwen3MoeConfig(
        **{"hidden_size": 8, "intermediate_size": 99, "moe_intermediate_size": 6, "head_dim": 4},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2},
        **{"num_experts": 5, "num_experts_per_tok": 2, "vocab_size": 10},
    )
    experts.save_pretrained(tmp_path)
    shape = shapes.measure(ModelConfig(str(tmp_path)))
    assert shape.layer - shape.active == 3 * 3 * 8 * 6  # of three experts, three matrices
    assert widths(shape.config)[1] == 2 * 6


def test_parallelism_that_splits_rows_or_layers_is_refused(tmp_path, monkeypatch):
    launcher = tmp_path / "tp.yaml"
    launcher.write_text(
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\n"
        "parallelism_config: {parallelism_config_dp_shard_size: 2, parallelism_config_tp_size: 2}\n"
    )
    with pytest.raises(ConfigError, match="parallelism_config_tp_size=2: only 1"):
        shapes.read_launch(str(launcher), None)
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    with pytest.raises(ConfigError, match="parallelism_config_cp_size=2: only 1"):
        parse("grpo", f"{MINIMUM} --use_cpu".split())


def test_settings_that_others_saw_diverge_are_named():
    for beta, scale, warns in ((0.0, "group", True), (0.001, "group", False), (0.0, "none", False)):
        assert bool(diverging(SimpleNamespace(beta=beta, scale_rewards=scale))) == warns


# h 10, i 20, q 8, k 4, V 20, L 5; 100 parameters a layer, 200 in each embedding.
CONFIG = Qwen3Config(
    **{"hidden_size": 10, "intermediate_size": 20, "head_dim": 4, "vocab_size": 20},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 5},
    **{"max_position_embeddings": 100, "tie_word_embeddings": False},
)
MODEL = shapes.ModelShape("m", CONFIG, 1000, 1000, 100, 100, 200, 5, True, None, "x", False)
LORA = replace(MODEL, parameters=1050, trainable=50, lora=True)
ONE = shapes.Launch("single", 1)
FSDP = shapes.Launch("fsdp", 4, shards=4, stage=shapes.WEIGHTS)
FLOAT, HALF = Precision(4, 4, 4), Precision(4, 2, 2)
RUN = Run("grpo", "colocate", MODEL, ONE, DEVICES["cpu"], FLOAT, True, "adamw_torch", 0.0, True)
LOAD = shapes.Workload(1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 3, 1)


def parts(**changes: Any) -> dict[str, float]:
    found = estimate_memory(replace(RUN, **changes), LOAD, embedder=0.0, rollout=0.0)
    return {part.name: part.bytes for part in found}


def test_memory_of_one_process_equals_numbers_by_hand():
    # A layer keeps 784 bytes of a token; its input 40; gradients and the last norm 400.
    activations, head = 3 * (5 * 40 + 784 + 400), 4 * (60 + 60 + 200)
    weights = {"weights": 4000, "optimizer": 8000, "gradients": 4000}
    assert parts() == {**weights, "activations": activations, "LM head": head}
    assert parts(checkpointing=False)["activations"] == 3 * (5 * 784 + 400)
    assert parts(optim="adamw_bnb_8bit")["optimizer"] == 2000
    assert parts(beta=0.1)["reference model"] == 4000
    lora = parts(model=LORA, precision=HALF, beta=0.1)
    sizes = [lora[name] for name in ("weights", "optimizer", "gradients")]
    assert sizes == [50 * 4 + 1000 * 2, 400, 200]
    assert "reference model" not in lora  # the model without the adapter is the reference
    # Frozen norms and bytes of two: 392 of a token, and 156 for LoRA's inputs; 80 to cast one.
    assert lora["activations"] == 3 * (5 * 20 + 392 + 156 + 80 + 240)
    cast = parts(model=LORA, precision=HALF, cast_head=True)
    assert (lora["LM head"], cast["LM head"]) == (3 * (40 + 80), 3 * (80 + 80))
    assert cast["LM head in float32"] == 200 * (4 - 2)


def test_memory_of_shards_is_divided_by_their_number():
    found = parts(launch=FSDP, precision=HALF, beta=0.1)
    names = ("weights", "optimizer", "gradients", "reference model", "gathered layers")
    assert [found[name] for name in names] == [1000, 2000, 1000, 500, (300 + 400) * 2]
    kept = parts(launch=replace(FSDP, stage=shapes.GRADIENTS), precision=HALF)
    assert (kept["weights"], kept["gradients"], "gathered layers" in kept) == (4000, 1000, False)


def test_engine_and_host_memory_equal_numbers_by_hand():
    # Two bytes of a parameter; 2 L k b of a token.
    half = replace(RUN, precision=HALF)
    assert costs.engine_bytes(half, 10) == 2000 + 10 * (2 * 5 * 4 * 2) + costs.ENGINE_BYTES
    ddp = shapes.Launch("ddp", 8, nodes=2)
    assert costs.host_bytes(replace(RUN, launch=ddp)) == 4 * 4000
    sharded = replace(RUN, launch=replace(FSDP, nodes=2), precision=HALF, beta=0.1)
    assert costs.host_bytes(sharded) == 4000 + 2000  # one process of a node has the reference, too
    sleeping = replace(half, model=LORA, launch=ddp)
    assert costs.host_bytes(sleeping) == 4 * (200 + 2000) + 4 * 2 * 1050


DATA = TaskShape("test", 100, 30, 3, 1000, questions=2, question_tokens=10, reads=3)
PROMPT = shapes.PromptShape(100, 80, memory=50, longest_memory=300, is_chunk_first=True)


def workload(prompt: Any = PROMPT, share: bool = True, **changes: Any) -> shapes.Workload:
    settings = {"per_device_train_batch_size": 8, "num_generations": 4, "token_budget": 5000}
    settings |= {"max_steps": -1, "num_train_epochs": 2, "max_completion_length": 200}
    args = SimpleNamespace(**{**settings, **changes})
    return shapes.estimate_workload(args, 2, DATA, prompt, 20, share)


def test_workload_of_groups_equals_numbers_by_hand():
    load = workload()
    # Reading: 100 + 2*10 + 1000 shared, 50 + 20 own. Answering, twice for each question.
    raw = 3 * (1120 + 70) + 4 * (90 + 70)
    unique = 3 * (1120 / 4 + 70) + 4 * (90 / 4 + 70)
    assert (load.episodes, load.group, load.rows, load.steps) == (8, 4, 56, 7)
    assert (load.raw_tokens, load.unique_tokens) == (8 * raw, round(8 * unique))
    assert load.micro_batches == 3  # 11,360 unique tokens
    assert (load.sampled_row, load.longest_row) == (1120 + 50 + 200, 1120 + 300 + 200)
    assert (load.updates, load.epochs) == (2 * (100 // 4), 2)
    assert workload(share=False).micro_batches == -(-load.raw_tokens // 5000)
    assert workload(PROMPT._replace(is_chunk_first=False)).unique_tokens > 2 * load.unique_tokens
    shared = workload(steps_per_generation=3, updates_per_rollout=6)
    assert (shared.sharing, shared.iterations) == (3, 2)
    assert shared.updates == 2 * (100 // 12) * 6


def timeline(samplers: int = 0, staleness: int = 0, parallel: int = 1, **changes: Any) -> Timeline:
    """Four groups of five episodes of 1,000 tokens, on four processes."""
    seconds = Costs(0.0, decode=0.01, sequence=0.001, exchange=0.002, training=5, sync=1, switch=2)
    load = replace(LOAD, **{"episodes": 5, "steps": 10, "completion_tokens": 100, **changes})
    return costs.estimate_timeline(seconds, load, 4, 4, "s", samplers, staleness, parallel)


def test_timeline_equals_numbers_by_hand(monkeypatch):
    waiting = timeline()
    monkeypatch.setattr(costs, "SPREAD", 0.0)
    # 5 episodes on each device: 1,000 tokens of 10 + 5 x 1 ms; training 5, weights 1, waking 2 s.
    line = timeline()
    assert (line.sampling, line.training) == (pytest.approx(15), pytest.approx(8))
    assert waiting.sampling > 15 + 5  # for the longest episode
    # Four updates on a rollout of twice the groups.
    assert timeline(sharing=2, iterations=2).seconds == pytest.approx((20 + 4 * 5 + 1 + 2) / 4)
    # Two samplers with 2 groups each; two trainers: twice 5 s, and the weights.
    assert timeline(samplers=2).seconds == pytest.approx(20 + 11)
    assert timeline(samplers=2, staleness=1).seconds == pytest.approx(20)
    # Both decode together: half of 10 ms for each token, and 2 ms to exchange.
    assert timeline(samplers=2, staleness=1, parallel=2).seconds == pytest.approx(17)

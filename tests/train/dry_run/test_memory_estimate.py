"""Memory by hand, for a model whose numbers can be multiplied in the head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.launcher import Launch
from atommem.train.dry_run.memory_estimate import (
    MemoryEstimate,
    Part,
    Precision,
    Run,
    activation_bytes,
    autocast_bytes,
    estimate_memory,
    gathered_bytes,
    head_bytes,
    key_value_bytes_per_token,
    layer_bytes_per_token,
    local_rollout_bytes,
    optimizer_bytes,
    precision_of,
    reference_bytes,
)
from atommem.train.dry_run.workload import Workload
from tests.train.toys import make_model

MODEL = ModelShape(
    name="m",
    source="test",
    kind="qwen3",
    parameters=1000,
    trainable=1000,
    layer=100,
    embedding=200,
    layers=5,
    hidden=10,
    intermediate=20,
    vocabulary=20,
    query=8,
    key_value=4,
    query_norm=True,
    tied=False,
    context=100,
    dtype="bfloat16",
    lora=False,
)
LORA = replace(MODEL, parameters=1050, trainable=50, lora=True)
ONE = Launch("single", 1)
DDP = Launch("ddp", 4)
FSDP = Launch("fsdp", 4, shards=4, weights=True, gradients=True, optimizer=True)
ZERO3 = Launch("zero3", 4, shards=4, weights=True, gradients=True, optimizer=True)
ZERO2 = Launch("zero2", 4, shards=4, gradients=True, optimizer=True)
FLOAT = Precision(4, 4, 4, 4)
RUN = Run("grpo", "colocate", gradient_checkpointing=True, optim="adamw_torch", beta=0.0, share_prefixes=True)
LOAD = Workload(
    processes=1, updates=1, tasks=1, episodes=1, group=1, steps=1, most_steps=1, prompt_tokens=1, completion_tokens=3,
    sampled_row=1, longest_row=1, rows=1, raw_tokens=1, unique_tokens=1, micro_batch=3, micro_batches=1,
)  # fmt: skip


def part(name: str, model: ModelShape, precision: Precision, launch: Launch, run: Run = RUN) -> float:
    """Bytes of one part."""
    found = estimate_memory(model, precision, launch, LOAD, run, embedder=0.0, rollout=0.0, on_cpu=True)
    return sum(part.bytes for part in found.parts if part.name == name)


@pytest.mark.parametrize(
    ("dtype", "bf16", "launch", "lora", "expected"),
    [
        ("float32", False, ONE, False, Precision(4, 4, 4, 4)),
        ("float32", True, ONE, False, Precision(4, 4, 2, 4)),
        ("bfloat16", True, DDP, False, Precision(2, 2, 2, 2)),
        ("bfloat16", True, DDP, True, Precision(4, 2, 2, 2)),
        ("bfloat16", True, FSDP, False, Precision(4, 2, 2, 2)),
        ("float32", True, FSDP, False, Precision(4, 4, 2, 2)),
        ("bfloat16", True, ZERO3, False, Precision(2, 2, 2, 2, master=4)),
    ],
)
def test_precision(dtype: str, bf16: bool, launch: Launch, lora: bool, expected: Precision) -> None:
    assert precision_of(dtype, bf16, launch, lora) == expected


def test_weights_gradients_optimizer() -> None:
    half = Precision(4, 2, 2, 2)
    assert part("weights", MODEL, FLOAT, ONE) == 4000
    assert part("weights", LORA, half, ONE) == 50 * 4 + 1000 * 2
    assert part("weights", MODEL, FLOAT, FSDP) == 1000
    assert part("weights", MODEL, FLOAT, ZERO2) == 4000
    assert part("gradients", MODEL, FLOAT, ONE) == 4000
    assert part("gradients", MODEL, FLOAT, DDP) == part("buckets of DDP", MODEL, FLOAT, DDP) == 4000
    assert part("gradients", LORA, half, ONE) == 200
    assert optimizer_bytes(MODEL, FLOAT, ONE, "adamw_torch_fused") == 8000
    assert optimizer_bytes(MODEL, FLOAT, ONE, "adamw_bnb_8bit") == 2000
    assert optimizer_bytes(MODEL, FLOAT, ONE, "sgd") == 0
    # DeepSpeed: master copy and two states in float32, shared by four.
    assert optimizer_bytes(MODEL, Precision(2, 2, 2, 2, master=4), ZERO3, "adamw_torch") == 1000 * 12 / 4


def test_activations() -> None:
    # 2*10*4 + 2*8*10 + 12*12 + 4*4 + 2*8*4 + 4*20*4 = 80 + 160 + 144 + 16 + 64 + 320
    assert layer_bytes_per_token(MODEL, 4) == 784
    assert layer_bytes_per_token(LORA, 4) == 784 - 80 - 48
    assert layer_bytes_per_token(replace(MODEL, query_norm=False), 4) == 784 - 96
    # Beside the layers: (2*20 + 2*10)*4 + 2*10*4 + 8*10 = 400 for each token.
    assert activation_bytes(MODEL, 3, 4, gradient_checkpointing=False) == 3 * (5 * 784 + 400)
    assert activation_bytes(MODEL, 3, 4, gradient_checkpointing=True) == 3 * (5 * 40 + 784 + 400)


def test_a_layer_keeps_what_the_formula_says() -> None:
    """Counted on a real model: the tensors that autograd saves, each storage once."""
    model = make_model()
    shape = ModelShape(
        *("m", "test", "qwen3", 0, 0, 0, 0),
        *(2, 16, 32, 42, 16, 8),
        query_norm=True,
        tied=False,
        context=256,
        dtype="float32",
        lora=False,
    )
    layer, tokens = model.model.layers[0], 64
    model.set_attn_implementation("sdpa")
    hidden = torch.randn(1, tokens, 16, requires_grad=True)
    positions = model.model.rotary_emb(hidden, torch.arange(tokens)[None])
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # Kept alive: a storage that is freed may be handed out again.
        out = layer(hidden, position_embeddings=positions, attention_mask=None)
    assert out is not None
    assert sum(saved.values()) == pytest.approx(tokens * layer_bytes_per_token(shape, 4), rel=0.15)


def test_the_head_holds_a_tile_and_gradients_but_no_logits() -> None:
    # Tile 3 x 20, hidden states and their gradient 2 x 3 x 10, gradient of the head 20 x 10: all in float32.
    assert head_bytes(MODEL, 3, FLOAT, on_cpu=True) == 4 * (60 + 60 + 200)
    assert head_bytes(LORA, 3, FLOAT, on_cpu=True) == 4 * (60 + 60)
    many = head_bytes(replace(MODEL, vocabulary=150_000, hidden=1), 100_000, FLOAT, on_cpu=False)
    assert many < 100_000 * 150_000 * 4 / 50


def test_what_is_gathered_or_cast() -> None:
    assert gathered_bytes(MODEL, FLOAT, ONE) == 0
    assert gathered_bytes(MODEL, Precision(4, 2, 2, 2), FSDP) == (300 + 400) * 2
    assert gathered_bytes(MODEL, Precision(2, 2, 2, 2, 4), ZERO3) == 2000
    assert autocast_bytes(MODEL, Precision(4, 4, 2, 4), ONE) == 2000
    assert autocast_bytes(MODEL, Precision(2, 2, 2, 2), ONE) == 0
    assert autocast_bytes(MODEL, Precision(4, 4, 2, 2), FSDP) == 0


def test_sampling_from_shared_weights_needs_all_of_them() -> None:
    name, half, local = "weights gathered for sampling", Precision(4, 2, 2, 2), replace(RUN, rollout="local")
    assert part(name, MODEL, half, FSDP, local) == 2000
    assert part(name, MODEL, half, FSDP) == 0
    assert part(name, MODEL, half, ONE, local) == 0
    assert part("sampling model", MODEL, half, ONE, replace(local, stage="async")) == 2000


def test_the_reference_model() -> None:
    half = Precision(4, 2, 2, 2)
    assert reference_bytes(MODEL, half, FSDP, beta=0.0) == (0, 0)
    assert reference_bytes(LORA, half, FSDP, beta=0.1) == (0, 0)
    assert reference_bytes(MODEL, half, FSDP, beta=0.1) == (500, (200 + 400) * 2)
    assert reference_bytes(MODEL, FLOAT, ONE, beta=0.1) == (4000, 0)


def test_sampling() -> None:
    assert key_value_bytes_per_token(MODEL, 4) == 2 * 5 * 4 * 4
    # Two rows of 50 tokens: a cache of 100 * 160. Beside it the MLP of a layer, 100 * (20 + 60) * 4; its attention,
    # 100 * ((20 + 24 + 8) * 4 + 50 * 5), is more; then a layer's cache and logits, 3,200 + 2 * 20 * 32, less.
    assert local_rollout_bytes(MODEL, FLOAT, rows=2, row=50) == 16_000 + 100 * (208 + 250)
    wide = replace(MODEL, vocabulary=2000)
    assert local_rollout_bytes(wide, FLOAT, rows=2, row=50) == 16_000 + 3200 + 2 * 2000 * 32


def test_the_peak_is_that_of_the_worst_phase() -> None:
    estimate = MemoryEstimate(
        (Part("a", 1, ("rollout", "training")), Part("b", 5, ("rollout",)), Part("c", 2, ("training",)))
    )
    assert (estimate.phase("rollout"), estimate.phase("training"), estimate.peak) == (6, 3, 6)


def test_the_parts_of_an_estimate() -> None:
    estimate = estimate_memory(
        MODEL, FLOAT, ONE, LOAD, replace(RUN, beta=0.1), embedder=7.0, rollout=50_000.0, on_cpu=True
    )  # fmt: skip
    assert {part.name: part.bytes for part in estimate.parts} == {
        "weights": 4000,
        "optimizer": 8000,
        "reference model": 4000,
        "embedder": 7,
        "gradients": 4000,
        "activations (checkpointed)": 3 * (200 + 784 + 400),
        "LM head": 1280,
        "rollout": 50_000,
    }
    assert estimate.phase("rollout") == 16_007 + 50_000
    assert estimate.phase("training") == 16_007 + 4000 + 3 * 1384 + 1280

"""Memory by hand, for a model whose numbers can be multiplied in the head; `bench_dry_run` measures real ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import Qwen3Config

from atommem.train.dry_run.architecture import ModelShape
from atommem.train.dry_run.launcher import GRADIENTS, WEIGHTS, Launch
from atommem.train.dry_run.memory_estimate import (
    PHASES,
    Precision,
    Run,
    estimate_memory,
    local_rollout_bytes,
)
from atommem.train.dry_run.workload import Workload
from atommem.train.dry_run_config import DEVICES

# h 10, i 20, q 8, k 4, V 20, L 5; 100 parameters a layer, 200 in each embedding.
CONFIG = Qwen3Config(
    hidden_size=10, intermediate_size=20, num_attention_heads=2, num_key_value_heads=1, head_dim=4, vocab_size=20,
    num_hidden_layers=5, max_position_embeddings=100, tie_word_embeddings=False,
)  # fmt: skip
MODEL = ModelShape(
    "m",
    "test",
    CONFIG,
    1000,
    1000,
    layer=100,
    embedding=200,
    query_norm=True,
    dtype="x",
    lora=False,
)
LORA = replace(MODEL, parameters=1050, trainable=50, lora=True)
ONE, DDP = Launch("single", 1), Launch("ddp", 4)
FSDP = Launch("fsdp", 4, shards=4, stage=WEIGHTS)
ZERO3 = replace(FSDP, name="zero3")
FLOAT, HALF = Precision(4, 4, 4, 4), Precision(4, 2, 2, 2)
RUN = Run(
    "grpo", "colocate", MODEL, ONE, DEVICES["cpu"], FLOAT, checkpointing=True, optim="adamw_torch", beta=0.0,
    share_prefixes=True,
)  # fmt: skip
LOAD = Workload(
    updates=1, tasks=1, episodes=1, group=1, steps=1, prompt_tokens=1, completion_tokens=3, spread=0.0, sampled_row=1,
    longest_row=1, rows=1, raw_tokens=1, unique_tokens=1, micro_batch=3, micro_batches=1,
)  # fmt: skip


def parts(**changes: Any) -> dict[str, float]:
    found = estimate_memory(replace(RUN, **changes), LOAD, embedder=0.0, rollout=0.0)
    return {part.name: part.bytes for part in found}


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
    assert Precision.of(dtype, bf16, launch, lora) == expected


# A token of a layer keeps 2*10*4 + 2*8*10 + 12*12 + 4*4 + 2*8*4 + 4*20*4 = 784; 40 of every layer and 400 beside them
# with checkpoints. The head: a tile of 3 x 20, hidden states and their gradient 2 x 3 x 10, its own gradient 20 x 10.
ACTIVATIONS, HEAD = 3 * (5 * 40 + 784 + 400), 4 * (60 + 60 + 200)


def test_one_process() -> None:
    weights = {"weights": 4000, "optimizer": 8000, "gradients": 4000}
    assert parts() == {**weights, "activations (checkpointed)": ACTIVATIONS, "LM head": HEAD}
    assert parts(checkpointing=False)["activations (all)"] == 3 * (5 * 784 + 400)
    assert parts(launch=DDP)["buckets of DDP"] == 4000
    assert parts(precision=Precision(4, 4, 2, 4))["weights cast for autocast"] == 2000
    assert parts(optim="adamw_bnb_8bit")["optimizer"] == 2000
    assert "optimizer" not in parts(optim="sgd")
    assert parts(beta=0.1)["reference model"] == 4000


def test_an_adapter() -> None:
    found = parts(model=LORA, precision=HALF, beta=0.1)
    assert (found["weights"], found["optimizer"], found["gradients"]) == (
        50 * 4 + 1000 * 2,
        400,
        200,
    )
    assert "reference model" not in found  # the model without the adapter is it
    assert parts(model=LORA)["LM head"] == 4 * (60 + 60)  # whose gradient is not taken


def test_shards() -> None:
    found = parts(launch=FSDP, precision=HALF, beta=0.1)
    assert [found[name] for name in ("weights", "optimizer", "gradients", "reference model")] == [
        1000,
        2000,
        1000,
        500,
    ]
    # Two layers and the gradient of one, both embeddings; of the reference no gradient.
    assert (found["gathered weights"], found["gathered reference model"]) == (
        (300 + 400) * 2,
        (200 + 400) * 2,
    )
    kept = parts(launch=replace(FSDP, stage=GRADIENTS), precision=HALF)
    assert (kept["weights"], kept["gradients"], "gathered weights" in kept) == (4000, 1000, False)
    # DeepSpeed: master copy and two states in float32, shared by four.
    assert (
        parts(launch=ZERO3, precision=Precision(2, 2, 2, 2, master=4))["optimizer"] == 1000 * 12 / 4
    )


def test_an_engine_that_does_not_sleep_is_there_while_the_model_is_trained() -> None:
    def phases(**changes: Any) -> tuple[str, ...]:
        found = estimate_memory(replace(RUN, **changes), LOAD, embedder=0.0, rollout=7.0)
        return next(part.phases for part in found if part.name == "rollout")

    assert (phases(), phases(sleeps=False)) == (("rollout",), PHASES)


def test_sampling() -> None:
    # Two rows of 50 tokens: a cache of 100 * 2 * 5 * 4 * 4. Beside it the MLP of a layer takes 100 * (20 + 60) * 4, its
    # attention 100 * ((20 + 24 + 8) * 4 + 50 * 5), which is most; then a layer's cache and logits, 3,200 + 2 * 20 * 32.
    assert local_rollout_bytes(RUN, rows=2, row=50) == 16_000 + 100 * (208 + 250)
    config = Qwen3Config(**{**CONFIG.to_dict(), "vocab_size": 2000})
    wide = replace(RUN, model=replace(MODEL, config=config))
    assert local_rollout_bytes(wide, rows=2, row=50) == 16_000 + 3200 + 2 * 2000 * 32

"""Memory, workload and timeline by hand, for a model whose numbers are easy to multiply."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Qwen3Config

from atommem.environment import TaskShape
from atommem.train.dry_run import timeline
from atommem.train.dry_run.memory import Precision, Run, estimate_memory
from atommem.train.dry_run.shapes import GRADIENTS, WEIGHTS, Launch, ModelShape
from atommem.train.dry_run.timeline import Costs, Schedule, Timeline, estimate_timeline, schedules
from atommem.train.dry_run.workload import (
    CompletionShape,
    PromptShape,
    Workload,
    completion_shape,
    estimate_workload,
)
from atommem.train.dry_run_config import DEVICES, DryRunConfig

# h 10, i 20, q 8, k 4, V 20, L 5; 100 parameters a layer, 200 in each embedding.
CONFIG = Qwen3Config(
    hidden_size=10,
    intermediate_size=20,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=20,
    num_hidden_layers=5,
    max_position_embeddings=100,
    tie_word_embeddings=False,
)
MODEL = ModelShape("m", "test", CONFIG, 1000, 1000, 100, 200, True, "x", False)
LORA = replace(MODEL, parameters=1050, trainable=50, lora=True)
ONE, DDP = Launch("single", 1), Launch("ddp", 4)
FSDP = Launch("fsdp", 4, shards=4, stage=WEIGHTS)
ZERO3 = replace(FSDP, name="zero3")
FLOAT, HALF = Precision(4, 4, 4), Precision(4, 2, 2)
RUN = Run("grpo", "colocate", MODEL, ONE, DEVICES["cpu"], FLOAT, True, "adamw_torch", 0.0, True)
LOAD = Workload(1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 3, 1)


def parts(**changes: Any) -> dict[str, float]:
    found = estimate_memory(replace(RUN, **changes), LOAD, embedder=0.0, rollout=0.0)
    return {part.name: part.bytes for part in found}


def test_memory_of_one_process_equals_numbers_by_hand() -> None:
    # A layer keeps 784 bytes of a token; its input 40; gradients and the last norm 400.
    activations, head = 3 * (5 * 40 + 784 + 400), 4 * (60 + 60 + 200)
    weights = {"weights": 4000, "optimizer": 8000, "gradients": 4000}
    assert parts() == {**weights, "activations": activations, "LM head": head}
    assert parts(checkpointing=False)["activations"] == 3 * (5 * 784 + 400)
    assert parts(launch=DDP)["buckets of DDP"] == 4000
    assert parts(precision=Precision(4, 4, 2))["cast weights"] == 2000
    assert parts(optim="adamw_bnb_8bit")["optimizer"] == 2000
    assert parts(beta=0.1)["reference model"] == 4000


def test_memory_of_an_adapter_has_no_reference_model() -> None:
    found = parts(model=LORA, precision=HALF, beta=0.1)
    sizes = [found[name] for name in ("weights", "optimizer", "gradients")]
    assert sizes == [50 * 4 + 1000 * 2, 400, 200]
    assert "reference model" not in found  # the model without the adapter is the reference


def test_memory_of_shards_is_divided_by_their_number() -> None:
    found = parts(launch=FSDP, precision=HALF, beta=0.1)
    names = ("weights", "optimizer", "gradients", "reference model", "gathered layers")
    assert [found[name] for name in names] == [1000, 2000, 1000, 500, (300 + 400) * 2]
    kept = parts(launch=replace(FSDP, stage=GRADIENTS), precision=HALF)
    assert (kept["weights"], kept["gradients"], "gathered layers" in kept) == (4000, 1000, False)
    zero = parts(launch=ZERO3, precision=Precision(2, 2, 2, master=4))
    assert zero["optimizer"] == 1000 * 12 / 4


DATA = TaskShape("test", 100, 30, 3, 1000, questions=2, question_tokens=10, reads=3)
PROMPT = PromptShape(reading=100, answering=80, memory=50, longest_memory=300, is_chunk_first=True)
COMPLETION = CompletionShape(mean=20, longest=200, source="test")
SETTINGS = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "micro_batch_tokens": 5000,
    "max_steps": -1,
    "num_train_epochs": 2,
}


def grpo(prompt: PromptShape = PROMPT, share: bool = True, **changes: Any) -> Workload:
    args = SimpleNamespace(**{**SETTINGS, **changes})
    return estimate_workload(args, 2, DATA, prompt, COMPLETION, share)


def test_workload_of_groups_equals_numbers_by_hand() -> None:
    load = grpo()
    # Reading: 100 + 2*10 + 1000 shared, 50 + 20 own. Answering, twice for each question.
    raw = 3 * (1120 + 70) + 4 * (90 + 70)
    unique = 3 * (1120 / 4 + 70) + 4 * (90 / 4 + 70)
    assert (load.tasks, load.episodes, load.group, load.rows, load.steps) == (4, 8, 4, 56, 7)
    assert (load.raw_tokens, load.unique_tokens) == (8 * raw, round(8 * unique))
    assert load.micro_batches == 3  # 11,360 unique tokens
    assert (load.sampled_row, load.longest_row) == (1120 + 50 + 200, 1120 + 300 + 200)
    assert load.updates == 2 * (100 // 4)
    # The rows of a group in a step, 1,120 + 4 * 70 tokens, stay together if the budget allows.
    assert grpo(micro_batch_tokens=1410).micro_batch == 1400
    assert grpo(share=False).micro_batches == -(-load.raw_tokens // 5000)
    behind = grpo(PROMPT._replace(is_chunk_first=False))
    assert behind.unique_tokens > 2 * load.unique_tokens
    shared = grpo(steps_per_generation=3, updates_per_rollout=6)
    assert (shared.tasks, shared.sharing, shared.iterations) == (12, 3, 2)
    assert shared.updates == 2 * (100 // 12) * 6


def test_completion_shape_follows_thinking_and_settings() -> None:
    def mean(longest: int = 400, thinking: Any = True, **settings: Any) -> float:
        template = {"enable_thinking": thinking}
        args = SimpleNamespace(max_completion_length=longest, template_kwargs=template)
        return completion_shape(args, DryRunConfig(**settings), "qwen3").mean

    assert (mean(), mean(4096), mean(thinking=False)) == (400, 570.5, 100)
    assert mean(dry_run_completion_tokens=7) == 7


COSTS = Costs(prompts=0.0, decode=0.01, sequence=0.001, training=5.0, sync=1.0, switch=2.0)
# Four groups of five episodes of 1,000 tokens, on four processes.
SAMPLED = replace(LOAD, tasks=4, episodes=5, steps=10, completion_tokens=100)


def run(schedule: Schedule, replaced: bool = False, **changes: Any) -> Timeline:
    load = replace(SAMPLED, **changes)
    return estimate_timeline(schedule, COSTS, load, devices=4, processes=4, replaced=replaced)


def test_timeline_equals_numbers_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SPREAD", 0.0)
    # 5 episodes on each device: 1,000 tokens of 10 + 5 x 1 ms; training 5, weights 1, waking 2 s.
    line = run(Schedule("s"))
    assert (line.sampling, line.training) == (pytest.approx(15), pytest.approx(8))
    assert run(Schedule("s"), replaced=True).sampling == pytest.approx(15 / 0.7)
    # Four updates on a rollout of twice the groups.
    shared = run(Schedule("s"), tasks=8, sharing=2, iterations=2)
    assert shared.seconds == pytest.approx((20 + 4 * 5 + 1 + 2) / 4)
    # Two samplers with 2 groups each; two trainers: twice 5 s, and the weights.
    assert run(Schedule("s", samplers=2)).seconds == pytest.approx(20 + 11)
    assert run(Schedule("s", samplers=2, staleness=1)).seconds == pytest.approx(20)


def test_timeline_of_schedules_waits_for_the_longest_episode() -> None:
    colocated, on_policy, stale = (run(schedule) for schedule in schedules(4))
    assert colocated.sampling > 15 + 1000 * 0.01 * 0.5
    assert stale.sampling < on_policy.sampling
    assert stale.seconds == max(stale.sampling, stale.training)

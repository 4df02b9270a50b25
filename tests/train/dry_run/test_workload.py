"""The workload of an update by hand, and from episodes that have been run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atommem.config import MemoryConfig
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.train.dry_run.compute import decode_seconds, estimate_compute, forward_flops, training_flops
from atommem.train.dry_run.data_shape import EstimatingTokenizer, PromptShape, TaskShape, data_shape, measure_prompt
from atommem.train.dry_run.devices import Device
from atommem.train.dry_run.dry_run_config import DryRunConfig
from atommem.train.dry_run.workload import Workload, grpo_workload, sft_workload
from tests.fakes import WordTokenizer, longdoc
from tests.train.dry_run.test_memory_estimate import LORA, MODEL

DATA = TaskShape("test", 100, 30, stream_steps=3, stream_tokens=1000, questions=2, question_tokens=10, reads=3)
PROMPT = PromptShape(reading=100, answering=80, memory=50, longest_memory=300, is_chunk_first=True)


def grpo(data: TaskShape = DATA, prompt: PromptShape = PROMPT, **changes: object) -> Workload:
    settings: dict[str, object] = {
        "processes": 2,
        "episodes": 8,
        "group": 4,
        "completion_tokens": 20,
        "max_completion_tokens": 200,
        "micro_batch_tokens": 5000,
        "max_steps": -1,
        "epochs": 2,
    }
    return grpo_workload(data, prompt, **{**settings, **changes})  # type: ignore[arg-type]


def test_grpo_by_hand() -> None:
    load = grpo()
    # Reading: 100 + 2*10 + 1000 shared, 50 + 20 own. Answering, twice for each of two questions: 80 + 10 and 50 + 20.
    raw = 3 * (1120 + 70) + 4 * (90 + 70)
    unique = 3 * (1120 / 4 + 70) + 4 * (90 / 4 + 70)
    assert (load.tasks, load.episodes, load.group, load.rows) == (4, 8, 4, 8 * 7)
    assert (load.reading_steps, load.answering_steps, load.steps, load.most_steps) == (3, 4, 7, 3 + 2 * 4)
    assert (load.raw_tokens, load.unique_tokens) == (8 * raw, round(8 * unique))
    assert load.prompt_tokens == pytest.approx(raw / 7 - 20)
    assert load.micro_batches == 3  # 11,360 unique tokens
    assert load.micro_batch == pytest.approx(11_360 / 3, abs=1)
    # What a group reads in a step is 1,120 + 4 * 70 tokens, and is not cut unless it has to be.
    assert grpo(micro_batch_tokens=1410).micro_batch == 1400
    assert grpo(micro_batch_tokens=1000).micro_batch == 1000
    assert (load.sampled_row, load.longest_row) == (1120 + 50 + 200, 1120 + 300 + 200)
    assert load.updates == 2 * (100 // 4)


def test_what_is_not_shared_counts_for_every_episode() -> None:
    assert grpo(share_prefixes=False).micro_batches == -(-grpo().raw_tokens // 5000)
    behind = grpo(prompt=replace(PROMPT, is_chunk_first=False))
    assert behind.raw_tokens == grpo().raw_tokens
    assert behind.unique_tokens > 2 * grpo().unique_tokens
    # A group that is spread over processes shares what is on each.
    assert grpo(episodes=2).group == 2


def test_limits() -> None:
    assert grpo(max_steps=7).updates == 7
    assert grpo(replace(DATA, reads=0)).answering_steps == 2
    with pytest.raises(ConfigError, match="3 processes x per_device_train_batch_size 6 are 18 episodes: no multiple"):
        grpo(processes=3, episodes=6)
    with pytest.raises(ConfigError, match="100 tasks are fewer than the 200 groups"):
        grpo(episodes=400)


def test_a_cold_start() -> None:
    load = sft_workload(
        DATA,
        PROMPT,
        processes=2,
        rows=4,
        accumulation=3,
        completion_tokens=20,
        max_completion_tokens=200,
        max_steps=0,
        epochs=3,
    )
    assert (load.rows, load.micro_batches, load.steps) == (12, 3, 5)
    assert load.micro_batch == 4 * (1120 + 50 + 20)  # padded to a reading row
    assert load.prompt_tokens == pytest.approx((3 * 1170 + 2 * 140) / 5)
    assert load.updates == int(3 * 100 * 5 / 24)


def test_data_that_is_not_there_is_supposed() -> None:
    settings = DryRunConfig(dry_run_documents=50, dry_run_questions=2, dry_run_tasks=9)
    data = data_shape("nowhere.parquet", longdoc(WordTokenizer(), chunking="tokens", chunk_tokens=4000), settings)
    assert (data.tasks, data.stream_steps, data.stream_tokens, data.questions) == (9, 2, 3500, 2)
    assert "nowhere.parquet is not there" in data.source
    assert data_shape("no", longdoc(WordTokenizer()), settings).stream_steps == 50


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_data_that_is_there_is_counted(tmp_path: Path, suffix: str) -> None:
    tasks = [
        Task(f"t{i}", (Question("a b c", ("x",)),) * (1 + i % 2), (Document("", "one two three"), Document("", "four")))
        for i in range(40)
    ]
    path = tmp_path / f"tasks.{suffix}"
    save_tasks(tasks, path)
    data = data_shape(str(path), longdoc(WordTokenizer()), DryRunConfig())
    assert (data.tasks, data.stream_steps, data.stream_tokens) == (40, 2, 2)
    assert (data.questions, data.question_tokens) == (1.5, 3)
    data = data_shape(str(path), longdoc(WordTokenizer(), chunking="tokens", chunk_tokens=2), DryRunConfig())
    assert data.stream_steps * data.stream_tokens == 4


def test_prompts_are_built_and_counted() -> None:
    prompt = measure_prompt(MemoryConfig(retrieve_k=2, scratchpad_tokens=100), longdoc(WordTokenizer()), {})
    assert prompt.reading > 200
    assert (prompt.memory, prompt.longest_memory) == (2 * 50 + 15 + 25, 2 * 50 + 15 + 100)
    alone = measure_prompt(
        MemoryConfig(scratchpad_tokens=100, disabled_actions=["create", "read"], layout="paper"),
        longdoc(WordTokenizer()),
        {},
    )
    assert (alone.memory, alone.is_chunk_first) == (25, False)
    assert alone.reading < prompt.reading
    memagent = measure_prompt(
        MemoryConfig(dialect="memagent", templates="memagent"), longdoc(EstimatingTokenizer()), {}
    )
    assert memagent.longest_memory == 1024


def test_the_estimated_tokens_cover_the_text() -> None:
    tokenizer = EstimatingTokenizer()
    text = "x" * 420
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert len(spans) == 100 == len(tokenizer.encode(text))
    assert (spans[0][0], spans[-1][1]) == (0, 420)


def test_flops() -> None:
    # 2 * 5 layers * 100 weights + 4 * 8 * 7 context * 5 layers, for 3 tokens; 2 * 10 * 20 for each of 2 scored.
    forward = 3 * (1000 + 1120) + 2 * 400
    assert forward_flops(MODEL, 3, 2, 7) == forward
    assert training_flops(MODEL, 3, 2, 7, checkpointing=False) == 3 * forward
    assert training_flops(MODEL, 3, 2, 7, checkpointing=True) == 4 * forward
    assert training_flops(LORA, 3, 2, 7, checkpointing=True) == 3 * forward


def test_decoding_reads_weights_and_caches() -> None:
    slow = Device("test", flops=1e30, memory=1, bandwidth=1000)
    load = grpo()
    read = 1000 * 2 + 8 * (load.prompt_tokens + 10) * 80
    assert decode_seconds(MODEL, load, slow, 0.5, 2) == pytest.approx(7 * 20 * read / 600)
    busy = Device("test", flops=1000, memory=1, bandwidth=1e30)
    flops = 8 * forward_flops(MODEL, 1, 1, load.prompt_tokens + 10)
    assert decode_seconds(MODEL, load, busy, 0.5, 2) == pytest.approx(7 * 20 * flops / 500)


def test_the_run_takes_its_updates() -> None:
    device, load = Device("test", 1e9, 1, 1e9), grpo()

    def hours(**changes: object) -> float:
        settings = {"utilisation": 0.5, "element": 2, "gradient_checkpointing": False, "beta": 0.0}
        switches = {"share_prefixes": True, "cached_prefixes": True, "local_rollout": False}
        one = estimate_compute(MODEL, load, device, **{**settings, **switches, **changes})  # type: ignore[arg-type]
        total = one.rollout_seconds + one.training_seconds + one.reference_seconds
        if changes.get("overlap"):
            total = max(one.rollout_seconds, one.training_seconds + one.reference_seconds)
        assert one.hours == pytest.approx(50 * total / 3600)
        return one.hours

    assert hours(beta=0.1) > hours()
    assert hours(share_prefixes=False) > hours()
    assert hours(cached_prefixes=False) > hours()
    assert hours(local_rollout=True) > hours()
    assert hours(overlap=True) < hours()

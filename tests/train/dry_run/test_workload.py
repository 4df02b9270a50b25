"""The workload of an update by hand, and from episodes that have been run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.description import TaskShape
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.tokens import ApproximateTokenizer
from atommem.trace import write_trace
from atommem.train.dry_run.plan import data_shape
from atommem.train.dry_run.workload import (
    CompletionShape,
    PromptShape,
    Workload,
    completion_shape,
    estimate_workload,
    measure_prompt,
)
from atommem.train.dry_run_config import DryRunConfig
from tests.fakes import WordTokenizer, longdoc
from tests.train.toys import random_episode

DATA = TaskShape(
    "test", 100, 30, stream_steps=3, stream_tokens=1000, questions=2, question_tokens=10, reads=3
)
PROMPT = PromptShape(reading=100, answering=80, memory=50, longest_memory=300, is_chunk_first=True)
COMPLETION = CompletionShape(mean=20, longest=200, spread=0.3, source="test")


def grpo(
    data: TaskShape = DATA,
    prompt: PromptShape = PROMPT,
    processes: int = 2,
    share_prefixes: bool = True,
    is_cold_start: bool = False,
    **changes: Any,
) -> Workload:
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "micro_batch_tokens": 5000,
        "max_steps": -1,
    }
    args = SimpleNamespace(**{**settings, "num_train_epochs": 2, **changes})
    return estimate_workload(
        args, processes, data, prompt, COMPLETION, share_prefixes, is_cold_start
    )


def test_grpo_by_hand() -> None:
    load = grpo()
    # Reading: 100 + 2*10 + 1000 shared, 50 + 20 own. Answering, twice for each of two questions: 80 + 10 and 50 + 20.
    raw = 3 * (1120 + 70) + 4 * (90 + 70)
    unique = 3 * (1120 / 4 + 70) + 4 * (90 / 4 + 70)
    assert (load.tasks, load.episodes, load.group, load.rows) == (4, 8, 4, 8 * 7)
    assert load.steps == 7
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
    behind = grpo(prompt=PROMPT._replace(is_chunk_first=False))
    assert behind.raw_tokens == grpo().raw_tokens
    assert behind.unique_tokens > 2 * grpo().unique_tokens
    # So are pages of a web that each episode reads in its own way.
    assert grpo(replace(DATA, same_stream=False)).unique_tokens == behind.unique_tokens
    # A group that is spread over processes shares what is on each.
    assert grpo(per_device_train_batch_size=2).group == 2


def test_limits() -> None:
    assert grpo(max_steps=7).updates == 7
    assert grpo(replace(DATA, reads=0)).steps == 3 + 2
    with pytest.raises(
        ConfigError,
        match="3 processes x per_device_train_batch_size 6 are 18 episodes: no multiple",
    ):
        grpo(processes=3, per_device_train_batch_size=6)
    with pytest.raises(ConfigError, match="100 tasks are fewer than the 200 groups"):
        grpo(per_device_train_batch_size=400)


def test_updates_that_share_a_rollout() -> None:
    """The rollout is what has to hold whole groups, and a run has as many updates as are made on its rollouts."""
    settings = {"steps_per_generation": 3, "updates_per_rollout": 6}
    load = grpo(processes=1, per_device_train_batch_size=4, num_generations=6, **settings)
    assert (load.tasks, load.episodes, load.sharing, load.iterations) == (2, 4, 3, 2)
    assert load.updates == 2 * (100 // 2) * 6
    with pytest.raises(
        ConfigError,
        match=r"1 processes x .* 4 x steps_per_generation 3 are 12 episodes: no multiple",
    ):
        grpo(processes=1, per_device_train_batch_size=4, num_generations=5, **settings)


def test_a_cold_start() -> None:
    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 3,
    }
    load = grpo(**settings, share_prefixes=False, is_cold_start=True)
    assert (load.rows, load.micro_batches, load.steps, load.episodes) == (12, 3, 5, 0)
    assert load.micro_batch == 4 * (1120 + 50 + 20)  # padded to a reading row
    assert load.prompt_tokens == pytest.approx((3 * 1170 + 2 * 140) / 5)
    assert load.updates == int(3 * 100 * 5 / 24)


def test_data_that_is_not_there_is_supposed() -> None:
    settings = DryRunConfig(dry_run_documents=50, dry_run_questions=2, dry_run_tasks=9)
    data = data_shape(
        "nowhere.parquet", longdoc(WordTokenizer(), chunking="tokens", chunk_tokens=4000), settings
    )
    assert (data.tasks, data.stream_steps, data.stream_tokens, data.questions) == (9, 2, 3500, 2)
    assert "nowhere.parquet is not there" in data.source
    assert data_shape("no", longdoc(WordTokenizer()), settings).stream_steps == 50


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_data_that_is_there_is_counted(tmp_path: Path, suffix: str) -> None:
    documents = (Document("", "one two three"), Document("", "four"))
    tasks = [
        Task(f"t{i}", (Question("a b c", ("x",)),) * (1 + i % 2), documents) for i in range(40)
    ]
    path = tmp_path / f"tasks.{suffix}"
    save_tasks(tasks, path)
    data = data_shape(str(path), longdoc(WordTokenizer()), DryRunConfig())
    assert (data.tasks, data.stream_steps, data.stream_tokens) == (40, 2, 2)
    assert (data.questions, data.question_tokens) == (1.5, 3)
    data = data_shape(
        str(path), longdoc(WordTokenizer(), chunking="tokens", chunk_tokens=2), DryRunConfig()
    )
    assert data.stream_steps * data.stream_tokens == 4


def test_prompts_are_built_and_counted() -> None:
    config = MemoryConfig(retrieve_k=2, scratchpad_tokens=100, entry_tokens=300, query_tokens=40)
    prompt = measure_prompt(config, longdoc(WordTokenizer()), {})
    assert prompt.reading > 200
    assert (prompt.memory, prompt.longest_memory) == (2 * 50 + 15 + 25, 2 * 300 + 40 + 100)
    one = measure_prompt(replace(config, capacity=1, entry_tokens=30), longdoc(WordTokenizer()), {})
    assert (one.memory, one.longest_memory) == (30 + 15 + 25, 30 + 40 + 100)
    no_store = MemoryConfig(
        scratchpad_tokens=100, disabled_actions=["create", "read"], layout="paper"
    )
    alone = measure_prompt(no_store, longdoc(WordTokenizer()), {})
    assert (alone.memory, alone.is_chunk_first) == (25, False)
    assert alone.reading < prompt.reading
    memagent = measure_prompt(
        MemoryConfig(dialect="memagent", templates="memagent"), longdoc(ApproximateTokenizer()), {}
    )
    assert memagent.longest_memory == 1024


def test_completions_are_as_long_as_thinking_or_traces_make_them(tmp_path: Path) -> None:
    def args(longest: int = 400, **template: object) -> Any:
        return SimpleNamespace(max_completion_length=longest, data="", template_kwargs=template)

    def mean(args: Any, kind: str = "qwen3", **settings: Any) -> float:
        return completion_shape(args, "grpo", DryRunConfig(**settings), kind).mean

    assert (mean(args()), mean(args(enable_thinking=False)), mean(args(), "llama")) == (
        400,
        100,
        100,
    )
    assert mean(args(4096)) == 570.5
    assert mean(args(), dry_run_completion_tokens=7) == 7
    with pytest.raises(ConfigError, match="holds no trace"):
        mean(args(), dry_run_traces=str(tmp_path))
    for number, lengths in enumerate(((10, 20), (30, 60))):
        episode = random_episode("t", number, 1.0)
        episode.steps = [replace(episode.steps[0], completion_tokens=length) for length in lengths]
        write_trace(tmp_path / f"{number}.jsonl", episode, {})
    found = completion_shape(args(), "grpo", DryRunConfig(dry_run_traces=str(tmp_path)), "qwen3")
    # Episodes of 30 and of 90 tokens: 30 on average, half of their mean from it.
    assert (found.mean, found.spread, found.source) == (30, 0.5, "those of 2 traces")

"""The cold start: the loss is on completions only, falls, and is TRL's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.config import MemoryConfig
from atommem.environment import environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.errors import ConfigError, TraceError
from atommem.policy.contract import Sampling, ScriptedPolicy
from atommem.rollout import EpisodeRunner
from atommem.trace import write_trace
from atommem.train.checkpoints import last_checkpoint
from atommem.train.console import METRICS_FILE, SFT_COLUMNS, read_metrics, use_console
from atommem.train.errors import TrainingInterrupted
from atommem.train.loops.sft import ColdStartTrainer, sft_dataset, trace_demonstrations
from atommem.train.train_config import ColdStartConfig
from tests.fakes import WordEmbedder, WordTokenizer, make_episode_runner
from tests.train.harness import BARE, at, completion_logps, terminate
from tests.train.toys import EOS, make_model, make_tokenizer

ENVIRONMENT = environment_config("longdoc", chunking="documents")
MEMORY = MemoryConfig()


def script(prompt: str) -> str:
    if "It says red." in prompt:  # the document, not the entry
        return "<create_memory>It says red</create_memory> <read_memory>colour</read_memory>"
    return "<final_answer>\\boxed{red}</final_answer>"


def make_runner(tokenizer: Any, policy: Any, environment: Any, **settings: Any) -> EpisodeRunner:
    settings |= {
        "policy": policy,
        "tokenizer": tokenizer,
        "embedder": WordEmbedder(),
        "memory": MEMORY,
    }
    environments = make_environments(environment, tokenizer)
    return make_episode_runner(environments=environments, sampling=Sampling(), **settings)


def save(
    path: Path, tokenizer: WordTokenizer, gold: str = "red", dialect: str = "paper"
) -> Episode:
    """An episode of the script, as a trace in `path`."""
    runner = make_runner(
        tokenizer, ScriptedPolicy(tokenizer, script, eos_token_id=0), ENVIRONMENT, keep_prompts=True
    )
    task = Task("t", (Question("Which colour?", (gold,)),), (Document("", "It says red."),))
    episode = asyncio.run(runner.run(task))
    write_trace(path, episode, {"id": "t"}, {"memory": {"dialect": dialect}})
    return episode


def rows_of(path: Path, tokenizer: WordTokenizer, min_reward: float = 1.0) -> list[Any]:
    return trace_demonstrations(path, tokenizer, MEMORY, ENVIRONMENT, min_reward)


def test_trace_demonstrations_equal_the_episode(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    episode = save(tmp_path / "a.jsonl", tokenizer)
    assert episode.reward == 1.0
    rows = rows_of(tmp_path / "a.jsonl", tokenizer)
    assert rows == [(step.prompt_ids, step.token_ids) for step in episode.steps]
    assert len(rows) == 2
    # Another tokenizer encodes the text.
    other = WordTokenizer()
    other.encode("these words come first in the other vocabulary")
    rows = rows_of(tmp_path, other)
    assert [other.decode(completion) for _, completion in rows] == [
        step.text for step in episode.steps
    ]
    assert all(completion[-1] == other.eos_token_id for _, completion in rows)
    assert rows[0][1] != episode.steps[0].token_ids


def test_trace_demonstrations_of_unusable_traces_are_refused(tmp_path: Path) -> None:
    tokenizer, path = WordTokenizer(), tmp_path / "wrong.jsonl"
    with pytest.raises(ConfigError, match="none of its 0 traces"):
        rows_of(tmp_path, tokenizer)
    save(path, tokenizer, gold="blue")
    with pytest.raises(ConfigError, match=r"none of its 1 traces .* min_reward=1"):
        rows_of(path, tokenizer)
    save(path, tokenizer, dialect="released")
    with pytest.raises(ConfigError, match=r"dialect=paper: .* has the dialect 'released'"):
        rows_of(path, tokenizer)
    path.write_text("no trace\n")
    with pytest.raises(TraceError):
        rows_of(path, tokenizer)


ROWS = [([1, 2, 3], [7, 8, EOS]), ([4, 5], [9, EOS]), ([6, 1, 2, 3, 4], [7, EOS])] * 8


def make_config(folder: Path, **settings: Any) -> ColdStartConfig:
    defaults = {"max_steps": 30, "logging_steps": 1}
    return ColdStartConfig(str(folder), **{**BARE, **defaults, **settings})


@pytest.mark.slow
def test_cold_start_loss_is_on_completions_and_falls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    batch = ROWS[:24]
    with torch.no_grad():
        logps = torch.cat(
            [completion_logps(model, prompt, completion, 1.0) for prompt, completion in batch]
        )
    config = make_config(tmp_path, per_device_train_batch_size=24)
    trainer = ColdStartTrainer(model, config, sft_dataset(batch), make_tokenizer())
    use_console(trainer, SFT_COLUMNS)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(-logps.mean().item(), rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]
    assert [
        entry["step"] for entry in read_metrics(tmp_path / METRICS_FILE) if "loss" in entry
    ] == list(range(1, 31))
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_cold_start_stopped_by_sigterm_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Three updates are an epoch: the second one is under way, and its order has to be kept."""
    settings = {"max_steps": 5, "save_strategy": "steps", "save_steps": 100}

    def run(folder: Path, resume: Path | None = None, **kwargs: Any) -> Any:
        trainer = ColdStartTrainer(
            make_model(),
            make_config(folder, **settings),
            sft_dataset(ROWS),
            make_tokenizer(),
            **kwargs,
        )
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        return trainer.model.state_dict()

    expected = run(tmp_path / "whole")
    with pytest.raises(TrainingInterrupted, match="stopped before update 5"):
        run(tmp_path / "parts", callbacks=[at("on_step_end", 4, terminate)])
    last = last_checkpoint(tmp_path / "parts")
    assert last == tmp_path / "parts" / "checkpoint-4"
    resumed = run(tmp_path / "parts", last)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)

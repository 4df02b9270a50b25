"""Traces as demonstrations: new prompts, completions in the learner's token ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.environment import environment_config, make_environments
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.errors import ConfigError, TraceError
from atommem.policy.contract import Sampling
from atommem.policy.scripted import ScriptedPolicy
from atommem.trace import write_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fakes import WordEmbedder, WordTokenizer, make_episode_runner

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


def test_trace_demonstrations_refuse_unusable_traces(tmp_path: Path) -> None:
    tokenizer, path = WordTokenizer(), tmp_path / "wrong.jsonl"
    with pytest.raises(ConfigError, match="not a trace or a folder with traces"):
        rows_of(tmp_path, tokenizer)
    save(path, tokenizer, gold="blue")
    with pytest.raises(ConfigError, match=r"min_reward=1: none of the 1 traces"):
        rows_of(path, tokenizer)
    save(path, tokenizer, dialect="released")
    with pytest.raises(ConfigError, match=r"dialect=paper: .* has the dialect 'released'"):
        rows_of(path, tokenizer)
    path.write_text("no trace\n")
    with pytest.raises(TraceError):
        rows_of(path, tokenizer)

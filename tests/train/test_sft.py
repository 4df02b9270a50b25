"""The cold start: the loss is on completions only, falls, and is TRL's."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.config import MemoryConfig
from atommem.environment import environment_config, make_factory
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.policy.contract import completion_text
from atommem.run import RunConfig
from atommem.trace import write_trace
from atommem.train.loops.sft import ColdStartTrainer, sft_dataset, trace_demonstrations
from atommem.train.train_config import ColdStartConfig
from tests.fakes import ScriptedPolicy, WordTokenizer, make_episode_runner
from tests.tokenizer_shapes import byte_level, words
from tests.train.harness import BARE, completion_logps
from tests.train.toys import EOS, make_model, make_tokenizer

ENVIRONMENT = environment_config("longdoc", chunking="documents")
MEMORY = MemoryConfig()


def script(prompt: str) -> str:
    if "It says red." in prompt:  # the document, not the entry
        return "<create_memory>It says red</create_memory> <read_memory>colour</read_memory>"
    return "<final_answer>\\boxed{red}</final_answer>"


def save(
    path: Path,
    tokenizer: Any,
    *,
    gold: str = "red",
    dialect: str = "paper",
    script: Callable[[str], str] = script,
    eos: int | None = None,
    text: str = "It says red.",
    **settings: Any,
) -> Episode:
    end = tokenizer.eos_token_id if eos is None else eos
    runner = make_episode_runner(
        policy=ScriptedPolicy(tokenizer, script, end),
        tokenizer=tokenizer,
        factory=make_factory(ENVIRONMENT, tokenizer),
        keep_prompts=True,
        **settings,
    )
    task = Task("t", (Question("Which colour?", (gold,)),), (Document("", text),))
    episode = asyncio.run(runner.run(task))
    write_trace(path, episode, {"id": "t"}, {"memory": {"dialect": dialect}})
    return episode


def rows_of(path: Path, tokenizer: Any) -> list[Any]:
    run = RunConfig(memory=MEMORY, environment=ENVIRONMENT)
    return trace_demonstrations(path, tokenizer, run, 1.0)


def test_trace_demonstrations_equal_the_episode(tmp_path):
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
    texts = [other.decode(completion) for _, completion in rows]
    assert texts == [step.text for step in episode.steps]
    assert all(completion[-1] == other.eos_token_id for _, completion in rows)
    assert rows[0][1] != episode.steps[0].token_ids


def test_trace_demonstrations_of_unusable_traces_are_refused(tmp_path):
    tokenizer, path = WordTokenizer(), tmp_path / "wrong.jsonl"
    with pytest.raises(ConfigError, match=r"no trace .* is there"):
        rows_of(path, tokenizer)
    save(path, tokenizer, gold="blue")
    with pytest.raises(ConfigError, match=r"none of its 1 traces .* min_reward=1"):
        rows_of(path, tokenizer)
    save(path, tokenizer, dialect="released")
    with pytest.raises(ConfigError, match=r"dialect=paper: .* has the dialect 'released'"):
        rows_of(path, tokenizer)
    save(path, tokenizer)
    with pytest.raises(ConfigError, match=r"would read other actions in step 0"):
        rows_of(path, words())  # a vocabulary without the policy's words


def test_trace_demonstrations_of_a_thinking_policy_teach_no_draft(tmp_path):
    class Thinking(WordTokenizer):
        def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
            return super().apply_chat_template(conversation, **kwargs) + "<think>"

    def think(prompt: str) -> str:
        return f"Maybe <create_memory>draft</create_memory>? No.</think>{script(prompt)}"

    save(tmp_path / "a.jsonl", Thinking(), script=think)
    rows = rows_of(tmp_path, plain := byte_level())
    texts = [completion_text(plain, ids, stopped=True) for _, ids in rows]
    assert texts == [script("It says red."), script("")]
    rows = rows_of(tmp_path, other := Thinking())
    assert "draft" in completion_text(other, rows[0][1], stopped=True)


ROWS = [([1, 2, 3], [7, 8, EOS]), ([4, 5], [9, EOS]), ([6, 1, 2, 3, 4], [7, EOS])] * 8


@pytest.mark.slow
@pytest.mark.parametrize("padding_free", [False, True])
def test_cold_start_loss_is_on_completions_and_falls(tmp_path, padding_free):
    model = make_model()
    with torch.no_grad():
        logps = torch.cat([completion_logps(model, *row, 1.0) for row in ROWS])
    settings = {**BARE, "max_steps": 30, "logging_steps": 1, "per_device_train_batch_size": 24}
    config = ColdStartConfig(str(tmp_path), padding_free=padding_free, **settings)
    trainer = ColdStartTrainer(model, config, sft_dataset(ROWS), make_tokenizer())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(-logps.mean().item(), rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]

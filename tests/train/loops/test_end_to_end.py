"""The real parts together: a tiny model samples episodes on documents, is trained on them, saved and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast, TrainerCallback

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.trace import read_trace
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.resume.checkpoint import GenerationSettings
from atommem.train.rollout.episodes import Rollouts
from atommem.train.rollout.local_backend import local_backend
from atommem.train.watch.callbacks import GRPO_COLUMNS, METRICS_FILE, read_metrics, use_console
from atommem.train.watch.trace_writer import TraceWriter
from tests.fakes import word_level
from tests.train.harness import GradientRecorder, make_config
from tests.train.toys import make_model

pytestmark = pytest.mark.slow

MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=8)
ENVIRONMENT = environment_config("longdoc", chunking="documents", max_reads=0)
SETTINGS = [MEMORY, EmbedderConfig(embedder="hashing", embedder_dim=16), ENVIRONMENT, GenerationSettings(4)]
ELEMENTS = [
    "<final_answer>\\boxed{c0}</final_answer>",
    "<final_answer>\\boxed{c1}</final_answer>",
    "<create_memory>a fact</create_memory>",
    "<read_memory>a fact</read_memory>",
    "<update_scratchpad>c0</update_scratchpad>",
    "<delete_memory>Memory 1</delete_memory>",
    "<create_memory>",
]


def make_element_tokenizer() -> PreTrainedTokenizerFast:
    """A token is a whole element, so that a random policy acts and answers."""
    words = ["<unk>", *ELEMENTS, "c0", "c1", "city", "<eos>", "<pad>"]
    return word_level(words, unk_token="<unk>", clean_up_tokenization_spaces=False)


def make_tasks(count: int = 6) -> list[Task]:
    """Every answer is c0."""
    return [
        Task(f"task-{i}", (Question("which city", ("c0",)),), (Document("", "c0 city"), Document("", "c1")))
        for i in range(count)
    ]


def make_real_trainer(
    folder: Path,
    model: Any = None,
    tasks: Sequence[Task] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    on_episodes: Any = None,
    held_out: Sequence[Task] = (),
    **settings: Any,
) -> tuple[MemoryGRPOTrainer, GradientRecorder]:
    """A trainer whose tiny model samples what it is trained on; `settings` are fields of its config."""
    tokenizer, recorder = make_element_tokenizer(), GradientRecorder()
    config = make_config(folder, **{"max_completion_length": 4, "seed": 3, "max_grad_norm": 1.0, **settings})
    tasks = make_tasks() if tasks is None else tasks
    if config.save_traces:
        on_episodes = TraceWriter(folder / "traces", tasks, describe_task, MEMORY)
    trainer = MemoryGRPOTrainer(
        model=model if model is not None else make_model(vocabulary=len(tokenizer), spread=0.1),
        args=config,
        tasks=tasks,
        processing_class=tokenizer,
        make_backend=local_backend(Rollouts(config, tokenizer, HashingEmbedder(16), MEMORY, ENVIRONMENT)),
        on_episodes=on_episodes,
        callbacks=[recorder, *callbacks],
        held_out=held_out,
        settings=SETTINGS,
    )
    use_console(trainer, GRPO_COLUMNS)
    return trainer, recorder


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trains_on_what_it_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: float) -> None:
    """The log-probabilities of the training pass are those of sampling: same tokens, same positions, same mask, and
    the same temperature."""
    sizes = {"per_device_train_batch_size": 24, "num_generations": 12}
    trainer, recorder = make_real_trainer(
        tmp_path, max_steps=2, learning_rate=1e-3, save_traces=True, temperature=temperature, **sizes
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    trainer.close()
    logged = read_metrics(tmp_path / METRICS_FILE)
    updates = [entry for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in updates] == [1, 2]
    for entry in updates:
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-5
        assert 0 < entry["reward"] < 1
        assert entry["actions/create"] > 0
        assert entry["malformed"] > 0
        assert entry["stop/answered"] + entry["stop/unanswered"] == pytest.approx(1.0)
    assert all(recorder.gradients)
    assert not torch.equal(trainer.model.lm_head.weight, before["lm_head.weight"])

    printed = capsys.readouterr().out
    assert "reward" in printed
    assert "{" not in printed  # Hugging Face's printed dictionaries are gone

    traces = sorted((tmp_path / "traces" / "step-1").iterdir())
    assert len(traces) == 24
    trace = read_trace(traces[0])
    assert trace.complete
    assert trace.config["memory"]["templates"] == "compact"
    assert trace.task["questions"] == [
        {"text": "which city", "golds": ["c0"], "id": "", "category": "", "attributes": {}}
    ]


def test_it_learns(tmp_path: Path) -> None:
    trainer, _ = make_real_trainer(
        tmp_path, max_steps=12, learning_rate=2e-2, per_device_train_batch_size=48, num_generations=8
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards[0] < 0.5
    assert rewards[-1] > 0.9

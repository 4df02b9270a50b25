"""The real parts together: a tiny model samples episodes and is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast, TrainerCallback

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import environment_config
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.episode import Episode, Step
from atommem.trace import read_trace
from atommem.train.checkpoints import GenerationSettings
from atommem.train.logs.console import GRPO_COLUMNS, METRICS_FILE, read_metrics, use_console
from atommem.train.logs.episodes import trace_writer
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.backends import make_local_backend
from atommem.train.rollout.rollouts import Rollouts
from tests.fakes import word_level
from tests.train.harness import GradientRecorder, completion_logps, make_config
from tests.train.toys import make_model

pytestmark = pytest.mark.slow

MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=8)
ENVIRONMENT = environment_config("longdoc", chunking="documents", max_reads=0)
SETTINGS = [
    MEMORY,
    EmbedderConfig(embedder="hashing", embedder_dim=16),
    ENVIRONMENT,
    GenerationSettings(4),
]
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


def save_model(folder: Path) -> Path:
    """Save a tiny model with tokenizer and memory settings in ``folder/model``."""
    tokenizer, model = make_element_tokenizer(), folder / "model"
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(model)
    tokenizer.save_pretrained(model)
    save_config(model, *SETTINGS)
    return model


def make_tasks(count: int = 6) -> list[Task]:
    """Every answer is c0."""
    return [
        Task(
            f"task-{i}",
            (Question("which city", ("c0",)),),
            (Document("", "c0 city"), Document("", "c1")),
        )
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
    """Make a trainer whose tiny model samples; `settings` are fields of its config."""
    tokenizer, recorder = make_element_tokenizer(), GradientRecorder()
    config = make_config(
        folder, **{"max_completion_length": 4, "seed": 3, "max_grad_norm": 1.0, **settings}
    )
    tasks = make_tasks() if tasks is None else tasks
    if config.save_traces:
        on_episodes = trace_writer(folder / "traces", tasks, describe_task, MEMORY)
    trainer = MemoryGRPOTrainer(
        model=model if model is not None else make_model(vocabulary=len(tokenizer), spread=0.1),
        args=config,
        tasks=tasks,
        processing_class=tokenizer,
        make_backend=partial(
            make_local_backend,
            Rollouts(config, tokenizer, HashingEmbedder(16), MEMORY, ENVIRONMENT),
        ),
        on_episodes=on_episodes,
        callbacks=[recorder, *callbacks],
        held_out=held_out,
        settings=SETTINGS,
    )
    use_console(trainer, GRPO_COLUMNS)
    return trainer, recorder


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_training_logprobs_equal_sampled_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: float
) -> None:
    sizes = {"per_device_train_batch_size": 24, "num_generations": 12}
    trainer, recorder = make_real_trainer(
        tmp_path,
        max_steps=2,
        learning_rate=1e-3,
        save_traces=True,
        temperature=temperature,
        **sizes,
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


def test_training_raises_the_reward(tmp_path: Path) -> None:
    trainer, _ = make_real_trainer(
        tmp_path,
        max_steps=12,
        learning_rate=2e-2,
        per_device_train_batch_size=48,
        num_generations=8,
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards[0] < 0.5
    assert rewards[-1] > 0.9


def score_even_tokens(episode: Episode, score: Any) -> None:
    """Rewards that differ in every group: the share of even token ids."""
    tokens = [token for step in episode.steps for token in step.token_ids]
    episode.reward = sum(token % 2 == 0 for token in tokens) / len(tokens)


def test_carried_group_is_sampled_by_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third task reads six chunks where others read one, so it runs into the second update."""
    documents = [(Document("", "c0 city"),) * (6 if index == 2 else 1) for index in range(8)]
    monkeypatch.setattr("atommem.episode_runner.set_score", score_even_tokens)
    trained: list[list[Episode]] = []
    trainer, recorder = make_real_trainer(
        tmp_path,
        tasks=[
            Task(f"t{i}", (Question("which city", ("c0",)),), read)
            for i, read in enumerate(documents)
        ],
        on_episodes=lambda update, episodes: trained.append(list(episodes)),
        max_steps=3,
        carried_groups=1,
        learning_rate=3e-2,
    )
    trainer.train()
    names = [sorted({episode.task_id for episode in episodes}) for episodes in trained]
    assert names[:2] == [["t0", "t1"], ["t2", "t3"]]  # what was carried has to end
    assert len({name for update in names for name in update}) == 6  # no group twice
    assert [entry["carried_groups"] for entry in trainer.state.log_history if "reward" in entry][
        :2
    ] == [0.0, 1.0]

    models = [make_model(vocabulary=trainer.model.config.vocab_size) for _ in range(2)]
    for model, weights in zip(models, recorder.states, strict=False):
        model.load_state_dict(weights)

    def sampled_by(step: Step, version: int) -> bool:
        with torch.no_grad():
            logps = completion_logps(models[version], step.prompt_ids, step.token_ids, 1.0)
        return bool((logps - torch.tensor(step.logprobs)).abs().max() < 1e-4)

    for episode in trained[1]:
        versions = [
            int(sampled_by(step, 1)) if sampled_by(step, 1) or sampled_by(step, 0) else None
            for step in episode.steps
        ]
        if episode.task_id == "t2":
            assert versions == sorted(versions)
            assert {*versions} == {0, 1}
        else:
            assert {*versions} == {1}
    # The ratio is against the weights that sampled: 1 only if all steps are fresh.
    ratios = [entry["ratio"] for entry in trainer.state.log_history if "ratio" in entry]
    assert ratios[0] == pytest.approx(1.0, abs=1e-4)
    assert abs(ratios[1] - 1.0) > 1e-4

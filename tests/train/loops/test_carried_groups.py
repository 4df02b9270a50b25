"""Partial rollouts: a group that has not ended goes on in the next update, with the log-probabilities that it has."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Step
from tests.train.harness import completion_logps
from tests.train.loops.test_end_to_end import make_real_trainer
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


def task(index: int, chunks: int) -> Task:
    return Task(f"t{index}", (Question("which city", ("c0",)),), tuple(Document("", "c0 city") for _ in range(chunks)))


class Weights(TrainerCallback):
    """The model as it is when an update begins."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        fresh = make_model(vocabulary=model.config.vocab_size)
        fresh.load_state_dict(copy.deepcopy(model.state_dict()))
        self.models.append(fresh.eval())


def score_even_tokens(episode: Episode, score: Any) -> None:
    """Rewards that differ in every group: the share of even token ids."""
    tokens = [token for step in episode.steps for token in step.token_ids]
    episode.reward = sum(token % 2 == 0 for token in tokens) / len(tokens)


def test_a_long_group_is_sampled_by_two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third task reads six chunks where others read one: it is under way when the first update has its groups."""
    monkeypatch.setattr("atommem.episode_runner.set_score", score_even_tokens)
    weights, trained = Weights(), []
    trainer, _ = make_real_trainer(
        tmp_path,
        tasks=[task(index, 6 if index == 2 else 1) for index in range(8)],
        callbacks=[weights],
        on_episodes=lambda update, episodes: trained.append(list(episodes)),
        max_steps=3,
        carried_groups=1,
        learning_rate=3e-2,
    )
    trainer.train()
    names = [sorted({episode.task_id for episode in episodes}) for episodes in trained]
    assert names[:2] == [["t0", "t1"], ["t2", "t3"]]  # what was carried has to end
    assert len({name for update in names for name in update}) == 6  # no group twice
    assert [entry["carried_groups"] for entry in trainer.state.log_history if "reward" in entry][:2] == [0.0, 1.0]

    def sampled_by(step: Step, version: int) -> bool:
        with torch.no_grad():
            logps = completion_logps(weights.models[version], step.prompt_ids, step.token_ids, 1.0)
        return bool((logps - torch.tensor(step.logprobs)).abs().max() < 1e-4)

    for episode in trained[1]:
        versions = [
            int(sampled_by(step, 1)) if sampled_by(step, 1) or sampled_by(step, 0) else None for step in episode.steps
        ]
        if episode.task_id == "t2":
            assert versions == sorted(versions)
            assert {*versions} == {0, 1}
        else:
            assert {*versions} == {1}
    # The ratio is against the weights that sampled: 1 where all steps are fresh, and not where some are older.
    ratios = [entry["ratio"] for entry in trainer.state.log_history if "ratio" in entry]
    assert ratios[0] == pytest.approx(1.0, abs=1e-4)
    assert abs(ratios[1] - 1.0) > 1e-4

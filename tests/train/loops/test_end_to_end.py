"""The real parts together: a tiny model samples episodes and is trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Step
from atommem.trace import read_trace
from atommem.train.logs.console import METRICS_FILE, read_metrics
from tests.train.harness import completion_logps, make_real_trainer
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


def test_training_logprobs_equal_sampled_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"per_device_train_batch_size": 24, "num_generations": 12}
    trainer, recorder = make_real_trainer(
        tmp_path,
        max_steps=2,
        learning_rate=1e-3,
        save_traces=True,
        temperature=0.7,
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
    assert all(recorder.gradients)
    assert not torch.equal(trainer.model.lm_head.weight, before["lm_head.weight"])

    assert "{" not in capsys.readouterr().out  # the table replaces Hugging Face's dictionaries
    traces = sorted((tmp_path / "traces" / "step-1").iterdir())
    assert len(traces) == 24
    trace = read_trace(traces[0])
    assert trace.complete
    assert trace.config["memory"]["templates"] == "compact"


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
    monkeypatch.setattr("atommem.rollout.set_score", score_even_tokens)
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

"""Several updates on one rollout, against the loss with old log-probabilities."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from atommem.episode import Episode
from atommem.train.loops.update_step import Batch, load_batches, save_batches
from atommem.train.objective.advantages import group_advantages
from atommem.train.objective.loss import MASKED
from atommem.train.objective.rows import Row
from tests.train.harness import (
    assert_equal_gradients,
    completion_logps,
    episodes_of,
    make_config,
    make_trainer,
    reference_gradients,
)
from tests.train.toys import make_episode, make_model

TASKS = ["t0", "t1", "t2", "t3"]


def writer(model: Any) -> Any:
    """Write episodes with log-probabilities of `model`; halves of a rollout have equal size."""

    def write(task_id: str, sample: int) -> Episode:
        episode = make_episode(
            task_id, sample, float((sample + int(task_id[1:])) % 3 == 0), [(3, 2 + sample), (4, 3)]
        )
        for step in episode.steps:
            with torch.no_grad():
                step.logprobs = completion_logps(
                    model, step.prompt_ids, step.token_ids, 1.0
                ).tolist()
        return episode

    return write


def expected_gradients(
    state: dict[str, torch.Tensor], start: Any, part: int
) -> dict[str, torch.Tensor]:
    """Return gradients of an update on half of the rollout, at these parameters."""
    model = make_model()
    model.load_state_dict(state)
    episodes = episodes_of(writer(start), TASKS[2 * part : 2 * part + 2], 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4)
    return reference_gradients(model, episodes, advantages, "token", old=start)[1]


def test_updates_share_and_repeat_a_rollout(tmp_path: Path) -> None:
    start = make_model()
    config = make_config(
        tmp_path, steps_per_generation=2, num_iterations=2, max_steps=5, learning_rate=3e-3
    )
    trainer, recorder, runner = make_trainer(copy.deepcopy(start), config, writer(start))
    trainer.train()
    assert runner.jobs[::4] == [(task, 0) for task in [*TASKS, *TASKS]]  # the fifth update's, too
    assert len(set(runner.seeds)) == 2
    for update, part in enumerate((0, 1, 0, 1)):
        expected = expected_gradients(recorder.states[update], start, part)
        assert_equal_gradients(recorder.gradients[update], expected)


def test_old_logprobs_of_another_engine_are_recomputed(
    tmp_path: Path,
) -> None:
    start = make_model()

    def write(task_id: str, sample: int) -> Episode:
        episode = writer(start)(task_id, sample)
        for step in episode.steps:
            step.logprobs = [logprob - 0.5 for logprob in step.logprobs]
        return episode

    correction = {
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 1.0,
    }
    settings: dict[str, Any] = {
        "steps_per_generation": 2,
        "max_steps": 2,
        "learning_rate": 3e-3,
        "use_vllm": True,
    }
    config = make_config(tmp_path, **settings, **correction)
    trainer, recorder, _ = make_trainer(copy.deepcopy(start), config, write)
    trainer.train()
    # pi_old / pi_sampler is exp(.5) everywhere, truncated to 1.
    for update in (0, 1):
        expected = expected_gradients(recorder.states[update], start, update)
        assert_equal_gradients(recorder.gradients[update], expected)
    assert trainer.state.log_history[0][MASKED] == 1.0


def test_load_batches_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    batches = [
        [Batch([Row([1], [n, rank], [0.5, 0.25], 0, 1.0, 2.0)], 3.0 + n) for n in range(2)]
        for rank in range(2)
    ]
    for rank, own in enumerate(batches):
        save_batches(tmp_path, rank, 7, own)

    def ids(rank: int, ranks: int) -> list[list[list[int]]]:
        number, found = load_batches(tmp_path, rank, ranks)
        assert (number, [batch.normalizer for batch in found]) == (7, [3.0, 4.0])
        return [[row.ids.tolist() for row in batch.rows] for batch in found]

    assert ids(1, 2) == [[[1, 0, 1]], [[1, 1, 1]]]
    assert ids(0, 1) == [[[1, 0, 0], [1, 0, 1]], [[1, 1, 0], [1, 1, 1]]]
    assert ids(2, 3) == [[], []]

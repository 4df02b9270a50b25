"""The trainer's updates against an independent reference, on a random Qwen3."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from atommem.episode import Episode, StopReason
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
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
from tests.train.toys import make_episode, make_model, mixed_episode, random_episode

TASKS = ["t0", "t1", "t2", "t3"]


def check(
    folder: Path,
    write: Callable[[str, int], Episode] = mixed_episode,
    *,
    model: Any = None,
    scored: Any = None,
    reference: Any = None,
    peft_config: Any = None,
    **settings: Any,
) -> tuple[MemoryGRPOTrainer, list[Episode]]:
    """Run one update on four groups, and compare it with the loop over tokens.

    `scored` has the adapter that training starts from.
    """
    model = model or make_model()
    config = make_config(folder, **{"per_device_train_batch_size": 16, **settings})
    episodes = episodes_of(write, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4, config.scale_rewards)
    arguments: Any = (scored or model, episodes, advantages, config.normalization)
    kl = {"beta": config.beta, "reference": reference}
    loss, expected, apart = reference_gradients(*arguments, temperature=config.temperature, **kl)
    trainer, recorder, runner = make_trainer(model, config, write, peft_config=peft_config)
    if scored is not None:
        state = {
            name: p.detach().clone() for name, p in scored.named_parameters() if p.requires_grad
        }
        assert set(expected) == set(state)
        trainer.model.load_state_dict(state, strict=False)
    trainer.train()
    assert runner.jobs == [(task, sample) for task in TASKS for sample in range(4)]
    assert_equal_gradients(recorder.gradients[0], expected)
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert logged["sampling/sampling_logp_difference/mean"] == pytest.approx(apart, rel=1e-4)
    return trainer, episodes


@pytest.mark.parametrize(
    "settings",
    [
        {"normalization": "token"},
        {"normalization": "step", "temperature": 0.6},
        {"normalization": "trajectory", "scale_rewards": "group", "micro_batch_tokens": 40},
        {"normalization": "step", "micro_batch_tokens": 40, "prefix_sharing": False},
    ],
    ids=str,
)
@pytest.mark.slow
def test_update_equals_the_reference_loop(tmp_path: Path, settings: dict[str, Any]) -> None:
    check(tmp_path, **settings)


def test_update_of_one_group_equals_numbers_by_hand(tmp_path: Path) -> None:
    """Rewards 1, 1, 0, 0 on completions of 2 to 5 tokens, ratio 1: -sum(A * tokens) / tokens.

    The last is overlong: it counts in the mean of its group alone.
    """

    def write(task_id: str, sample: int) -> Episode:
        episode = make_episode(task_id, sample, float(sample < 2), [(3, 2 + sample)])
        episode.stop_reason = StopReason.TOKEN_LIMIT if sample == 3 else StopReason.ANSWERED
        return episode

    config = make_config(tmp_path, per_device_train_batch_size=4, overlong_filtering=True)
    trainer, _, _ = make_trainer(make_model(), config, write, tasks=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(
        -0.5 * (2 + 3 - 4) / (2 + 3 + 4), rel=1e-5
    )


@pytest.mark.slow
def test_update_with_kl_to_the_reference_model(tmp_path: Path) -> None:
    """TRL loads the reference from where the model came from; the model has moved since."""
    reference = make_model()
    reference.save_pretrained(tmp_path / "start")
    model = type(reference).from_pretrained(tmp_path / "start")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    trainer, _ = check(
        tmp_path / "out", model=model, micro_batch_tokens=60, beta=0.3, reference=reference
    )
    assert trainer.state.log_history[0]["kl"] > 0


@pytest.mark.slow
def test_update_with_kl_to_the_model_without_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.0
    )
    base = make_model()
    adapted = get_peft_model(copy.deepcopy(base), lora)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                # A larger KL would have float32 rounding errors above the tolerance.
                parameter.normal_(std=0.2)
    trainer, _ = check(
        tmp_path,
        model=base,
        scored=adapted,
        reference=copy.deepcopy(base),
        beta=0.3,
        peft_config=lora,
    )
    assert trainer.state.log_history[0]["kl"] > 1


@pytest.mark.slow
def test_update_without_variance_changes_nothing(tmp_path: Path) -> None:
    """Neither a backward pass nor weight decay."""
    model = make_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = make_config(tmp_path, weight_decay=0.1, max_grad_norm=1.0)
    trainer, recorder, _ = make_trainer(
        model, config, lambda task, sample: random_episode(task, sample, 1.0)
    )
    trainer.train()
    assert recorder.gradients == [{}]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    logged = trainer.state.log_history[0]
    assert logged["loss"] == 0.0


@pytest.mark.slow
def test_updates_have_their_own_tasks_and_seeds(tmp_path: Path) -> None:
    config = make_config(tmp_path, max_steps=3, per_device_train_batch_size=16)
    trainer, _, runner = make_trainer(make_model(), config, mixed_episode, tasks=8)
    trainer.train()
    assert len(set(runner.seeds)) == 3
    assert None not in runner.seeds
    # Four tasks an update; the third begins the second epoch.
    assert [job[0] for job in runner.jobs[::4]] == [*TASKS, "t4", "t5", "t6", "t7", *TASKS]
    logged = trainer.state.log_history[0]
    rewards = [e.reward for e in episodes_of(mixed_episode, TASKS, 4) if e.reward is not None]
    assert logged["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert (logged["episodes"], logged["failed"]) == (16, 1)
    assert all(math.isfinite(value) for value in logged.values())


def shared_episode(task_id: str, sample: int) -> Episode:
    """Episodes of a task whose prompts begin alike, as those of a group do."""
    episode = mixed_episode(task_id, sample)
    for step in episode.steps:
        step.prompt_ids[:0] = [7, 8, 9, len(task_id), int(task_id[1:]) + 1, 5, 4, 3, 2, 1]
    return episode


@pytest.mark.slow
def test_update_computes_shared_prefixes_once(tmp_path: Path) -> None:
    """Also where gradient checkpointing computes the forward pass again."""
    trainer, _ = check(tmp_path, shared_episode, gradient_checkpointing=True)
    assert trainer.state.log_history[0]["packing_ratio"] > 1.3
    assert trainer.model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_model_without_tree_attention_is_padded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    model.config.sliding_window, model.config.use_sliding_window = 4096, True
    with caplog.at_level("WARNING", "atommem.train.loops.update_step"):
        check(tmp_path, model=model)
    assert "rows are padded: its attention has a sliding window of 4096 tokens" in caplog.text


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


@pytest.mark.slow
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


@pytest.mark.slow
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

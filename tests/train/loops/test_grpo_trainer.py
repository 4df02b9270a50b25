"""The trainer's loss and gradients against an independent reference, on a random Qwen3."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.observation import StopReason
from atommem.train.objective.advantages import group_advantages
from atommem.train.objective.sequences import Row
from atommem.train.rollout.dynamic_sampling import replacement_tasks
from tests.train.harness import (
    assert_equal_gradients,
    episodes_of,
    make_config,
    make_trainer,
    reference_gradients,
)
from tests.train.toys import ToyTask, make_episode, make_model, mixed_episode, random_episode

TASKS = ["t0", "t1", "t2", "t3"]


def expectation(model: torch.nn.Module, normalization: str = "token", **settings: object) -> tuple[float, dict]:
    episodes = episodes_of(mixed_episode, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4)
    return reference_gradients(model, episodes, advantages, normalization, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix_sharing", [True, False])
@pytest.mark.parametrize("normalization", ["token", "step", "trajectory"])
def test_gradients_of_each_normalization(tmp_path: Path, normalization: str, prefix_sharing: bool) -> None:
    """Groups with equal rewards are skipped by the trainer and by the reference, but count in the normaliser."""
    model = make_model()
    loss, expected = expectation(model, normalization)
    config = make_config(
        tmp_path, per_device_train_batch_size=16, normalization=normalization, prefix_sharing=prefix_sharing
    )
    trainer, recorder, runner = make_trainer(model, config, mixed_episode)
    trainer.train()
    assert runner.jobs == [(task, sample) for task in TASKS for sample in range(4)]
    assert_equal_gradients(recorder.gradients[0], expected)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)


def test_loss_of_one_group_by_hand(tmp_path: Path) -> None:
    """Rewards 1, 0, 0, 0 on completions of 2, 3, 4 and 5 tokens, ratio 1: the loss is -sum(A * tokens) / 14."""

    def write(task_id: str, sample: int) -> Episode:
        return make_episode(task_id, sample, float(sample == 0), [(3, 2 + sample)])

    config = make_config(tmp_path, per_device_train_batch_size=4)
    trainer, _, _ = make_trainer(make_model(), config, write, tasks=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(-(0.75 * 2 - 0.25 * (3 + 4 + 5)) / 14, rel=1e-5)


@pytest.mark.parametrize("prefix_sharing", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100])
def test_gradients_do_not_depend_on_the_token_budget(tmp_path: Path, budget: int, prefix_sharing: bool) -> None:
    model = make_model()
    _, expected = expectation(model, "trajectory")
    config = make_config(
        tmp_path,
        per_device_train_batch_size=16,
        normalization="trajectory",
        micro_batch_tokens=budget,
        prefix_sharing=prefix_sharing,
    )
    trainer, recorder, _ = make_trainer(model, config, mixed_episode)
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)


def test_logged_means_do_not_depend_on_the_token_budget(tmp_path: Path) -> None:
    logged = []
    for budget in (1, 10_000):
        config = make_config(
            tmp_path, per_device_train_batch_size=16, micro_batch_tokens=budget, normalization="trajectory"
        )
        trainer, _, _ = make_trainer(make_model(), config, mixed_episode)
        trainer.train()
        logged.append(trainer.state.log_history[0])
    for key in ("entropy", "loss", "sampling/sampling_logp_difference/mean", "clip_ratio/region_mean"):
        assert logged[0][key] == pytest.approx(logged[1][key], rel=1e-4, abs=1e-6), key
    assert logged[0]["entropy"] > 0.1


@pytest.mark.parametrize("normalization", ["token", "step", "trajectory"])
def test_equal_rows_are_computed_once(tmp_path: Path, normalization: str) -> None:
    """All samples of a task begin with the same step; the reference computes each of them."""

    def write(task_id: str, sample: int) -> Episode:
        episode = mixed_episode(task_id, sample)
        episode.steps[:1] = mixed_episode(task_id, 0).steps[:1]
        return episode

    model = make_model()
    episodes = episodes_of(write, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4)
    loss, expected = reference_gradients(model, episodes, advantages, normalization)
    config = make_config(tmp_path, per_device_train_batch_size=16, normalization=normalization)
    trainer, recorder, _ = make_trainer(model, config, write)
    counted: list[int] = []
    plan = trainer._update.planner.plan

    def counting(rows: Sequence[Row]) -> list[list[Row]]:
        counted.append(len(rows))
        return plan(rows)

    trainer._update.planner.plan = counting  # type: ignore[method-assign]
    trainer.train()
    steps = [step for e, a in zip(episodes, advantages, strict=True) if a for step in e.steps]
    assert counted[0] < len(steps)
    assert_equal_gradients(recorder.gradients[0], expected)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)


def test_temperature_scales_the_logits(tmp_path: Path) -> None:
    model = make_model()
    _, expected = expectation(model, temperature=0.6)
    config = make_config(tmp_path, per_device_train_batch_size=16, temperature=0.6)
    trainer, recorder, _ = make_trainer(model, config, mixed_episode)
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)


def test_divided_by_the_standard_deviation(tmp_path: Path) -> None:
    model = make_model()
    episodes = episodes_of(mixed_episode, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4, "group")
    _, expected = reference_gradients(model, episodes, advantages, "token")
    config = make_config(tmp_path, per_device_train_batch_size=16, scale_rewards="group")
    trainer, recorder, _ = make_trainer(model, config, mixed_episode)
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_kl_to_the_reference_model(tmp_path: Path, bias_correction: bool) -> None:
    """TRL loads the reference from where the model came from; the model has moved since."""
    reference = make_model()
    reference.save_pretrained(tmp_path / "start")
    model = type(reference).from_pretrained(tmp_path / "start")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    loss, expected = expectation(model, beta=0.3, reference=reference, bias_correction=bias_correction)
    _, without = expectation(model)
    config = make_config(
        tmp_path / "out",
        per_device_train_batch_size=16,
        beta=0.3,
        micro_batch_tokens=60,
        use_bias_correction_kl=bias_correction,
    )
    trainer, recorder, _ = make_trainer(model, config, mixed_episode)
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-4)
    assert trainer.state.log_history[0]["kl"] > 0
    with pytest.raises(AssertionError):
        assert_equal_gradients(recorder.gradients[0], without)


def test_kl_to_the_model_without_its_adapter(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.0)
    base = make_model()
    adapted = get_peft_model(copy.deepcopy(base), lora)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                # A KL of 1.6. With .3 it is 43, from tokens that the reference gives e^9 times the probability: there
                # float32's rounding of log-probabilities alone makes gradients differ by 2e-5.
                parameter.normal_(std=0.2)
    state = {name: p.detach().clone() for name, p in adapted.named_parameters() if p.requires_grad}
    loss, expected = expectation(adapted, beta=0.3, reference=base)
    _, without = expectation(adapted)
    config = make_config(tmp_path, per_device_train_batch_size=16, beta=0.3)
    trainer, recorder, _ = make_trainer(base, config, mixed_episode, peft_config=lora)
    trainer.model.load_state_dict(state, strict=False)
    trainer.train()
    assert set(expected) == set(state)
    assert_equal_gradients(recorder.gradients[0], expected)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-4)
    assert trainer.state.log_history[0]["kl"] > 1
    with pytest.raises(AssertionError):
        assert_equal_gradients(recorder.gradients[0], without)


def test_a_batch_without_variance_changes_nothing(tmp_path: Path) -> None:
    """No backward pass, no weight decay, no moments: only the scheduler moves on."""
    model = make_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = make_config(tmp_path, weight_decay=0.1, max_grad_norm=1.0)
    trainer, recorder, _ = make_trainer(model, config, lambda task, sample: random_episode(task, sample, 1.0))
    trainer.train()
    assert recorder.gradients == [{}]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    logged = trainer.state.log_history[0]
    assert logged["loss"] == 0.0
    assert logged["frac_reward_zero_std"] == 1.0
    assert logged["reward"] == 1.0


def test_a_batch_of_failures_changes_nothing_and_is_counted(tmp_path: Path) -> None:
    model = make_model()
    trainer, recorder, _ = make_trainer(
        model, make_config(tmp_path, max_failed_fraction=1.0), lambda task, sample: random_episode(task, sample, None)
    )
    trainer.train()
    assert recorder.gradients == [{}]
    logged = trainer.state.log_history[0]
    assert logged["failed"] == 8
    assert logged["stop/failed"] == 1.0
    assert "reward" not in logged


def test_what_is_logged(tmp_path: Path) -> None:
    config = make_config(tmp_path, per_device_train_batch_size=16)
    trainer, _, _ = make_trainer(make_model(), config, mixed_episode)
    trainer.train()
    logged = trainer.state.log_history[0]
    episodes = episodes_of(mixed_episode, TASKS, 4)
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    assert logged["episodes"] == 16
    assert logged["failed"] == 1
    assert logged["reward"] == logged["em"] == pytest.approx(sum(rewards) / len(rewards))
    assert logged["frac_reward_zero_std"] == 0.5
    for key in ("seconds/rollout", "seconds/train", "grad_norm", "learning_rate", "steps", "malformed", "store_size"):
        assert key in logged
    assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in logged.values())


def test_updates_are_on_policy_and_have_their_own_seeds(tmp_path: Path) -> None:
    config = make_config(tmp_path, max_steps=3)
    seen: list[int] = []
    trainer, recorder, runner = make_trainer(
        make_model(), config, mixed_episode, on_episodes=lambda update, episodes: seen.append(update)
    )
    trainer.train()
    assert len(recorder.gradients) == 3
    assert len(set(runner.seeds)) == 3
    assert None not in runner.seeds
    assert seen == [0, 1, 2]
    # Two tasks an update; the third begins the second epoch.
    assert [job[0] for job in runner.jobs[::4]] == ["t0", "t1", "t2", "t3", "t0", "t1"]


def test_epochs_are_shuffled_by_seed_and_epoch_alone(tmp_path: Path) -> None:
    orders = []
    for _ in range(2):
        config = make_config(tmp_path, max_steps=4, shuffle_dataset=True)
        trainer, _, runner = make_trainer(make_model(), config, mixed_episode)
        trainer.train()
        tasks = [job[0] for job in runner.jobs[::4]]
        assert sorted(tasks[:4]) == sorted(tasks[4:]) == TASKS
        orders.append(tasks)
    assert orders[0] == orders[1]
    assert orders[0][:4] != orders[0][4:]


def test_fewer_tasks_than_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 tasks are fewer than the 2 groups"):
        make_trainer(make_model(), make_config(tmp_path), mixed_episode, tasks=1)


def test_close_frees_policy_and_embedder(tmp_path: Path) -> None:
    trainer, _, runner = make_trainer(make_model(), make_config(tmp_path), mixed_episode)
    closed = []

    class Held:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            closed.append(self.name)

    runner.agent.policy, runner.agent.embedder = Held("policy"), Held("embedder")  # type: ignore[assignment]
    trainer.close()
    assert closed == ["policy", "embedder"]


def shared_episode(task_id: str, sample: int) -> Episode:
    """Episodes of a task whose prompts begin alike, as those of a group do."""
    episode = mixed_episode(task_id, sample)
    for step in episode.steps:
        step.prompt_ids[:0] = [7, 8, 9, len(task_id), int(task_id[1:]) + 1, 5, 4, 3, 2, 1]
    return episode


@pytest.mark.parametrize("checkpointing", [False, True])
def test_shared_prefixes_are_computed_once(tmp_path: Path, checkpointing: bool) -> None:
    """Also where gradient checkpointing computes the forward pass again."""
    model = make_model()
    episodes = episodes_of(shared_episode, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4)
    _, expected = reference_gradients(model, episodes, advantages, "token")
    config = make_config(tmp_path, per_device_train_batch_size=16, gradient_checkpointing=checkpointing)
    trainer, recorder, _ = make_trainer(model, config, shared_episode)
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)
    assert trainer.state.log_history[0]["packing_ratio"] > 1.3
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_cannot_share_prefixes_is_padded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    _, expected = expectation(model)
    model.config.sliding_window, model.config.use_sliding_window = 4096, True
    with caplog.at_level("WARNING", "atommem.train.loops.update_step"):
        trainer, recorder, _ = make_trainer(model, make_config(tmp_path, per_device_train_batch_size=16), mixed_episode)
    assert [record.message for record in caplog.records if record.name == "atommem.train.loops.update_step"] == [
        "prefix_sharing is off: rows are padded instead, because its attention has a sliding window of 4096 tokens."
    ]
    trainer.train()
    assert_equal_gradients(recorder.gradients[0], expected)


def test_groups_without_variance_are_replaced(tmp_path: Path) -> None:
    """t1 and t2 teach nothing: other tasks are drawn in their place, until one does or there have been two."""

    def write(task_id: str, sample: int) -> Episode:
        episode = mixed_episode(task_id, sample)
        if int(task_id[1:]) >= 4:
            episode.reward = float(sample) if int(task_id[1:]) % 2 else 1.0  # every other one teaches nothing either
        return episode

    config = make_config(tmp_path, per_device_train_batch_size=16, dynamic_sampling=2, micro_batch_tokens=10_000)
    trainer, recorder, runner = make_trainer(make_model(), config, write, tasks=14)
    trainer.train()
    ran = [task for task, sample in runner.jobs if sample == 0]
    assert set(TASKS) <= set(ran)
    drawn = {place: list(tasks) for place, tasks in enumerate(replacements_of(14))}
    trained = ["t0", "t1", "t2", "t3"]
    for place in (1, 2):
        taken = next((n for n, task in enumerate(drawn[place]) if int(task[1:]) % 2), 1)
        trained[place] = drawn[place][taken]
        assert [task for task in ran if task in drawn[place]] == drawn[place][: taken + 1]
    assert not set(ran) & {*drawn[0], *drawn[3]}
    logged = trainer.state.log_history[0]
    assert logged["frac_reward_zero_std"] == 0.5
    assert logged["dynamic_sampling/replaced_groups"] == len(ran) - 4
    episodes = episodes_of(write, trained, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4)
    _, expected = reference_gradients(make_model(), episodes, advantages, "token")
    assert_equal_gradients(recorder.gradients[0], expected)


def replacements_of(tasks: int) -> list[list[str]]:
    """Of the four groups of the first update, as the trainer draws them with the default seed."""
    everything = [ToyTask(f"t{index}") for index in range(tasks)]
    return [[task.id for task in drawn] for drawn in replacement_tasks(everything, TASKS, 4, 2, "42/0")]


def test_overlong_episodes_are_not_trained_on(tmp_path: Path) -> None:
    """They count in the mean of their group, but neither in the sum over tokens nor in what it is divided by."""

    def write(task_id: str, sample: int) -> Episode:
        episode = make_episode(task_id, sample, float(sample < 2), [(3, 2 + sample)])
        episode.stop_reason = StopReason.TOKEN_LIMIT if sample == 3 else StopReason.ANSWERED
        return episode

    config = make_config(tmp_path, per_device_train_batch_size=4, overlong_filtering=True)
    trainer, _, _ = make_trainer(make_model(), config, write, tasks=1)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(-(0.5 * 2 + 0.5 * 3 - 0.5 * 4) / (2 + 3 + 4), rel=1e-5)

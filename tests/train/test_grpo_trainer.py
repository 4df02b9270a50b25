"""The trainer: rollouts, updates against an independent reference, and evaluation."""

import asyncio
import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM
from transformers.utils import logging
from trl.trainer.utils import RepeatSampler

from atommem.environment import TaskDescription
from atommem.episode import Episode, StopReason
from atommem.errors import OutageError
from atommem.eval.runner import evaluate
from atommem.train.checkpoints import list_checkpoints
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.errors import RolloutFailedError, TrainingInterrupted
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.loops.models import make_policy
from atommem.train.loops.update_step import batch_of
from atommem.train.objective.loss import CORRECTION, MASKED
from atommem.train.objective.rows import group_advantages
from atommem.train.packing.micro_batch import pad_rows
from atommem.train.rollout.rollouts import RolloutGroup, TaskOrder, run_groups
from tests.train.harness import (
    assert_equal_gradients,
    completion_logps,
    episodes_of,
    make_config,
    make_real_trainer,
    make_tasks,
    make_trainer,
    reference_gradients,
    terminate,
)
from tests.train.toys import (
    WrittenRunner,
    make_episode,
    make_model,
    make_row,
    make_tokenizer,
    mixed_episode,
    random_episode,
)

TASKS = ["t0", "t1", "t2", "t3"]


def shared_episode(task_id: str, sample: int) -> Episode:
    """Episodes of a task whose prompts begin alike, as those of a group do."""
    episode = mixed_episode(task_id, sample)
    for step in episode.steps:
        step.prompt_ids[:0] = [7, 8, 9, len(task_id), int(task_id[1:]) + 1, 5, 4, 3, 2, 1]
    return episode


def check(
    folder: Path, *, is_windowed: bool = False, adapted: Any = None, **settings: Any
) -> MemoryGRPOTrainer:
    """Run one update on four groups, and compare it with the loop over tokens.

    The reference model is loaded from the start, which the model has left since. `adapted` is
    the base model with the adapter that training starts from.
    """
    reference = make_model()
    reference.save_pretrained(folder / "start")
    model: Any = type(reference).from_pretrained(folder / "start")
    if adapted is None:
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    if is_windowed:
        model.config.sliding_window, model.config.use_sliding_window = 4096, True
    config = make_config(folder, **{"per_device_train_batch_size": 16, **settings})
    episodes = episodes_of(shared_episode, TASKS, 4)
    advantages = group_advantages([episode.reward for episode in episodes], 4, config.scale_rewards)
    given = adapted or model, episodes, advantages, config.normalization
    settings = {"temperature": config.temperature, "beta": config.beta, "reference": reference}
    loss, expected, apart = reference_gradients(*given, **settings)
    peft_config = adapted.peft_config["default"] if adapted else None
    trainer, recorder, runner = make_trainer(model, config, shared_episode, peft_config=peft_config)
    if adapted:
        trainer.model.load_state_dict(adapted.state_dict())
    trainer.train()
    assert runner.jobs == [(task, sample) for task in TASKS for sample in range(4)]
    assert_equal_gradients(recorder.gradients[0], expected)
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    assert logged["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert (logged["episodes"], logged["failed"]) == (16, 1)
    assert logged["sampling/sampling_logp_difference/mean"] == pytest.approx(apart, rel=1e-4)
    return trainer


@pytest.mark.parametrize(
    "settings",
    [
        {"normalization": "token", "beta": 0.3, "token_budget": 60},
        {"normalization": "step", "temperature": 0.6, "gradient_checkpointing": True},
        {"normalization": "trajectory", "scale_rewards": "group", "token_budget": 40},
    ],
    ids=str,
)
@pytest.mark.slow
def test_update_equals_the_reference_loop(tmp_path, settings):
    assert check(tmp_path, **settings).state.log_history[0]["packing_ratio"] > 1.1


@pytest.mark.slow
def test_update_with_kl_to_the_model_without_adapter(tmp_path):
    targets = ["q_proj", "v_proj"]
    # A larger alpha would have float32 rounding errors above the tolerance.
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=1, target_modules=targets)
    lora.init_lora_weights = False
    trainer = check(tmp_path, adapted=get_peft_model(make_model(), lora), beta=0.3)
    assert trainer.state.log_history[0]["kl"] > 0.05


@pytest.mark.slow
def test_update_without_tree_attention_pads_rows_and_warns(tmp_path, caplog):
    with caplog.at_level("WARNING", "atommem.train.loops.update_step"):
        check(tmp_path, is_windowed=True, normalization="step", token_budget=40)
    assert "rows are padded: its attention has a sliding window of 4096 tokens" in caplog.text


def test_update_of_one_group_equals_numbers_by_hand(tmp_path):
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
    expected = -0.5 * (2 + 3 - 4) / (2 + 3 + 4)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_advantages_count_episodes_and_not_their_steps(tmp_path):

    def write(task_id: str, sample: int) -> Episode:
        steps = (1, 1, 3, 7)[sample]
        return make_episode(task_id, sample, float(sample in (0, 2)), [(5, 3)] * steps)

    expected = [0.5, -0.5] + [0.5] * 3 + [-0.5] * 7
    config = make_config(tmp_path, per_device_train_batch_size=4)
    episodes, advantages, _ = make_trainer(make_model(), config, write)[0].collect(0)
    assert [advantage for steps in advantages for advantage in steps] == expected
    batch, _ = batch_of(episodes, config)  # of the other loops
    assert [row.advantage for row in batch.rows] == expected


@pytest.mark.slow
def test_update_without_variance_changes_nothing(tmp_path, monkeypatch):
    model = make_model()
    config = make_config(tmp_path, weight_decay=0.1, max_grad_norm=1.0)
    write = partial(random_episode, reward=1.0)
    trainer, recorder, _ = make_trainer(model, config, write)
    trainer.train()
    assert recorder.gradients == [{}]
    torch.testing.assert_close(model.state_dict(), make_model().state_dict(), atol=0, rtol=0)
    assert trainer.state.log_history[0]["loss"] == 0.0
    sent = {}
    monkeypatch.setattr(HfApi, "upload_folder", lambda api, **options: sent.update(options))
    monkeypatch.setattr(trainer, "init_hf_repo", print)
    trainer.hub_model_id = "x"
    trainer.push_to_hub(dataset_name="d", revision="r")  # as TRL's scripts, and `save_model`
    assert "samples/*" in sent["ignore_patterns"]
    assert "in none of the 1 log entries" in (tmp_path / "README.md").read_text()


def writer(model: Any, offset: float = 0.0) -> Any:
    """Write episodes with log-probabilities of `model`; halves of a rollout have equal size."""

    def write(task_id: str, sample: int) -> Episode:
        reward = float((sample + int(task_id[1:])) % 3 == 0)
        episode = make_episode(task_id, sample, reward, [(3, 2 + sample), (4, 3)])
        for step in episode.steps:
            with torch.no_grad():
                logps = completion_logps(model, step.prompt_ids, step.token_ids, 1.0)
            step.logprobs = (logps + offset).tolist()
        return episode

    return write


def train_on_halves(folder: Path, offset: float = 0.0, **settings: Any) -> Any:
    """Train on halves of a rollout; each update equals the reference at its parameters."""
    start = make_model()
    config = make_config(folder, steps_per_generation=2, learning_rate=3e-3, **settings)
    trainer, recorder, runner = make_trainer(copy.deepcopy(start), config, writer(start, offset))
    trainer.train()
    for update in range(2 * config.num_iterations):
        model = make_model()
        model.load_state_dict(recorder.states[update])
        tasks = TASKS[2:] if update % 2 else TASKS[:2]
        episodes = episodes_of(writer(start), tasks, 4)
        advantages = group_advantages([episode.reward for episode in episodes], 4)
        expected = reference_gradients(model, episodes, advantages, "token", old=start)[1]
        assert_equal_gradients(recorder.gradients[update], expected)
    return trainer, runner


@pytest.mark.slow
def test_updates_share_and_repeat_a_rollout(tmp_path):
    _, runner = train_on_halves(tmp_path, num_iterations=2, max_steps=5)
    assert runner.jobs[::4] == [(task, 0) for task in [*TASKS, *TASKS]]  # the fifth update's, too
    assert len(set(runner.seeds)) == 2


@pytest.mark.slow
def test_old_logprobs_of_another_engine_are_recomputed(tmp_path):
    """pi_old / pi_sampler is exp(.5) everywhere, truncated to 1."""
    name = "vllm_importance_sampling"
    correction = {f"{name}_mode": "token_truncate", f"{name}_clip_max": 1.0}
    trainer, _ = train_on_halves(tmp_path, -0.5, max_steps=2, use_vllm=True, **correction)
    log = trainer.state.log_history[0]
    assert log[MASKED] == log[CORRECTION] == log[f"{CORRECTION}_q1"] == 1.0


@pytest.mark.slow
def test_sampling_from_another_policy_is_warned_of(tmp_path, caplog):
    logging.warning_once.cache_clear()
    with caplog.at_level("WARNING", "atommem.train.loops.update_step"):
        make_trainer(make_model(), make_config(tmp_path, use_vllm=True), mixed_episode)[0].train()
    assert "vllm_importance_sampling_mode changes the weight of tokens" in caplog.text
    assert "differ by over 0.1 nats a token" in caplog.text


@pytest.mark.slow
def test_bfloat16_model_is_trained_in_float32_and_saved_as_it_was(tmp_path):
    """Steps of 1e-6 are below the resolution of most bfloat16 weights."""
    start = make_model().bfloat16()
    start.save_pretrained(tmp_path / "model")
    config = make_config(tmp_path / "out", learning_rate=1e-6, beta=0.1)
    config.model_init_kwargs = {"dtype": "bfloat16"}
    trainer, _, _ = make_trainer(str(tmp_path / "model"), config, mixed_episode)
    trainer.train()
    assert trainer.reference.dtype == torch.bfloat16
    pairs = zip(trainer.model.parameters(), start.parameters(), strict=True)
    changed = [(new != old.float()).flatten() for new, old in pairs]
    assert torch.cat(changed).float().mean() > 0.9
    folder = trainer.save_final()
    file = folder / "model.safetensors"
    assert {weight.dtype for weight in load_file(file).values()} == {torch.bfloat16}
    assert file.stat().st_mode == (folder / "config.json").stat().st_mode  # others may read it
    saved = Qwen3ForCausalLM.from_pretrained(folder, dtype="auto")
    for new, trained in zip(saved.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(new, trained.detach().bfloat16(), atol=0, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_head_in_float32_projects_the_hidden_states_exactly(tmp_path, tied):
    model = make_model().bfloat16()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    policy = make_policy(model, make_config(tmp_path, cast_lm_head_to_fp32=True), make_tokenizer())
    ids = torch.tensor([[1, 2, 3, 4]])
    hidden = policy.base_model(ids).last_hidden_state
    assert hidden.dtype == policy.get_input_embeddings()(ids).dtype == torch.bfloat16
    exact = hidden.float() @ policy.lm_head.weight.float().T
    torch.testing.assert_close(policy(ids).logits, exact, atol=0, rtol=0)
    logps, _ = pad_rows([make_row([1, 2], [3, 4])], 0).score(policy)
    expected = exact[0, 1:3].log_softmax(-1).gather(1, ids[0, 2:, None])[:, 0]
    torch.testing.assert_close(logps, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_training_logprobs_equal_sampled_ones(tmp_path):
    size = {"per_device_train_batch_size": 24, "num_generations": 12, "max_steps": 2}
    with make_real_trainer(tmp_path, learning_rate=1e-3, temperature=0.7, **size) as trainer:
        trainer.train()
    for entry in read_metrics(tmp_path / METRICS_FILE)[:2]:
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-5
        assert 0 < entry["reward"] < 1
        assert min(entry["actions/create"], entry["malformed"]) > 0


async def test_run_groups_replaces_groups_without_variance():
    def write(task_id: str, sample: int) -> Episode:
        reward = float(sample) if task_id in ("t0", "t3") else 1.0
        return make_episode(task_id, sample, reward, [(1, 1)])

    tasks = [TaskDescription(f"t{index}") for index in range(6)]
    kept, other = (RolloutGroup(own, range(2)) for own in ([tasks[0], tasks[5]], tasks[1:5]))
    runner: Any = WrittenRunner(write)
    await run_groups(runner, [kept, other])
    assert [e.task_id for e in kept.episodes + other.episodes] == ["t0", "t0", "t3", "t3"]
    assert [e.task_id for e in kept.replaced + other.replaced] == ["t1", "t1", "t2", "t2"]


def test_task_order_has_each_task_once_per_epoch():
    settings = {"groups_per_update": 3, "shuffle": True, "seed": 7}
    order, again = (TaskOrder(tasks=12, **settings) for _ in range(2))
    first, second = ([order.task(12 * epoch + i) for i in range(12)] for epoch in (0, 1))
    theirs = RepeatSampler(range(12), mini_repeat_count=1, batch_size=3, shuffle=True, seed=7)
    assert first == list(theirs)
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second != list(range(12))
    assert [again.task(12 + i) for i in range(12)] == second  # a resumed run begins anywhere
    assert [order.seed(group) - 7 * 1_000_003 for group in (0, 2, 3, 6)] == [0, 0, 1, 2]


HELD_OUT = [
    replace(task, id=f"h{index}", source=("hotpotqa", "musique")[index % 2])
    for index, task in enumerate(make_tasks(8))
]


def make_evaluating(folder: Path, **settings: Any) -> MemoryGRPOTrainer:
    held = {"held_out": HELD_OUT, "eval_data": "file", "eval_strategy": "steps"}
    return make_real_trainer(folder, learning_rate=2e-2, **held, **settings)


@pytest.mark.slow
def test_evaluation_is_logged_and_chooses_the_best_checkpoint(tmp_path):
    best = {"save_strategy": "best", "metric_for_best_model": "em", "greater_is_better": True}
    best |= {"load_best_model_at_end": True, "save_total_limit": 1}
    trainer = make_evaluating(tmp_path, max_steps=3, eval_steps=2, **best)
    trainer.train()
    logged = [entry for entry in read_metrics(tmp_path / METRICS_FILE) if "eval_em" in entry]
    assert [entry["step"] for entry in logged] == [2, 3], "and in the end"
    for entry in logged:
        assert (entry["eval_n"], entry["eval_episodes"], entry["eval_failed"]) == (8, 8, 0)
        by_source = [entry["eval_em/hotpotqa"], entry["eval_em/musique"]]
        assert entry["eval_em"] == pytest.approx(sum(by_source) / 2)
    step = max(logged, key=lambda entry: entry["eval_em"])["step"]
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{step}")
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}"]
    trainer.close()


@pytest.mark.slow
async def test_evaluation_scores_equal_those_of_eval(tmp_path):
    trainer = make_evaluating(tmp_path, eval_temperature=0.7, num_generations_eval=2)
    metrics = await asyncio.to_thread(trainer.evaluate)
    runner = trainer.backend.runner
    runner.agent.sampling = replace(runner.agent.sampling, temperature=0.7, seed=3)
    summary = (await evaluate(HELD_OUT, runner, num_generations=2, progress=False)).summary()
    for key, of in (("", "mean"), ("_low", "low"), ("_high", "high")):
        assert metrics[f"eval_em{key}"] == summary["metrics"]["em"][of]
    assert metrics["eval_n"] == 16
    assert metrics["eval_actions/create"] == summary["means"]["actions/create"]
    await asyncio.to_thread(trainer.close)


def lose_servers() -> None:
    raise OutageError("no server answers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lose_servers, RolloutFailedError, "8 of 8 episodes of the evaluation failed"),
        (terminate, TrainingInterrupted, "before update 2; the evaluation after update 1 is lost"),
    ],
)
def test_broken_evaluation_ends_the_run(tmp_path, capsys, act, error, message):
    """A mean over what an outage left over would choose the best checkpoint by chance."""
    saves = {"max_steps": 2, "eval_steps": 1, "save_strategy": "steps", "save_steps": 9}
    with make_evaluating(tmp_path, **saves) as trainer:
        policy: Any = trainer.backend.runner.agent.policy
        complete = policy.complete

        def broken(*given: Any) -> Any:
            if trainer.state.global_step == 1 and not trainer.stop_request.requested:
                act()
            return complete(*given)

        policy.complete = broken
        with pytest.raises(error, match=rf"{message}.*--resume"):
            trainer.train()
    assert "evaluation on 8 tasks" in capsys.readouterr().out
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-1"]

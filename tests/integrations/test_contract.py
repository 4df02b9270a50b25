"""The contract of every door, held by the peer's own code: the baseline counts episodes, and not
rows; failed episodes leave it; and each token has the weight that it has in our own loss.

A peer is tested where it is installed: see scripts/engine_env.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.episode import Episode
from atommem.errors import DataError, OutageError
from atommem.integrations.engine import EnginePolicy, Episodes, read_sampling, vllm_params
from atommem.policy.contract import Sampling
from atommem.train.objective import rows as objective
from tests.fakes import WordTokenizer
from tests.train.toys import WrittenRunner, make_episode

SAMPLES = 5
STEPS = {"a": (1, 1, 3, 7, 2), "b": (7, 3, 1, 1, 4)}
REWARDS = {"a": (1.0, 0.0, 0.0, 0.5, None), "b": (0.0, None, 1.0, 1.0, 0.0)}
TASKS = tuple(STEPS)

Weights = dict[tuple[int, ...], float]
"""A row's ids, and the advantage of each of its tokens divided by the loss's denominator."""


def written(task_id: str, sample: int) -> Episode:
    lengths = [(5 + index, 2 + index % 3) for index in range(STEPS[task_id][sample])]
    return make_episode(task_id, sample, REWARDS[task_id][sample], lengths)


EPISODES = [written(task_id, sample) for task_id in TASKS for sample in range(SAMPLES)]


def own_weights(scale: Callable[[list[float]], float] = lambda rewards: 1.0) -> Weights:
    """The weights of our own trainer, with normalization by tokens."""
    advantages: list[float] = []
    for task_id in TASKS:
        rewards = REWARDS[task_id]
        divisor = scale([reward for reward in rewards if reward is not None])
        advantages += [value / divisor for value in objective.group_advantages(rewards, SAMPLES)]
    of_steps = objective.advantages_of_steps(advantages, EPISODES)
    rows = objective.episode_rows(EPISODES, of_steps, "token", with_kl=True)
    sizes = [objective.EpisodeSize.of(episode) for episode in EPISODES]
    total = objective.normalizer(sizes, "token", 0)
    return {tuple(row.ids.tolist()): row.advantage * row.weight / total for row in rows}


class Client:
    """Samples the same answer, or fails with `error`."""

    def __init__(self) -> None:
        self.tokenizer = WordTokenizer()
        self.error: Exception | None = None
        self.ids = [*self.tokenizer.encode("<answer> Rome </answer>"), 0]
        self.requests: list[Any] = []

    async def __call__(self, prompt_ids: list[int], sampling: Sampling) -> Any:
        self.requests.append((prompt_ids, sampling))
        if self.error is not None:
            raise self.error
        return self.ids, [-0.5] * len(self.ids), True

    def check(self, prompts: Iterable[Any], completions: Iterable[Any], affinity: str) -> None:
        """Assert that these are the rows that it sampled; then break the connection."""
        assert sorted(prompts) == sorted(ids for ids, _ in self.requests)
        assert list(completions) == [self.ids] * len(self.requests)
        assert {sampling.affinity for _, sampling in self.requests} == {affinity}
        self.error = ConnectionResetError("reset")


@pytest.fixture
def data(tmp_path: Path) -> str:
    parts = (Question("Where?", ("Rome",)),), (Document("d", "Ida lives in Rome."),)
    save_tasks([Task(name, *parts) for name in TASKS], tmp_path / "tasks.jsonl")
    return str(tmp_path / "tasks.jsonl")


SETTINGS = {"embedder": "hashing", "chunking": "documents", "max_completion_length": 16}
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


def test_engine_policy_samples_the_engines_ids_and_its_outages_fail(data):
    episodes, client = Episodes.read(data, "", SETTINGS), Client()
    runner = episodes.runner(EnginePolicy(client.tokenizer, client), client.tokenizer)
    steps = asyncio.run(runner.run(episodes.task("a"), 0)).steps
    client.check((step.prompt_ids for step in steps), (step.token_ids for step in steps), "a")
    failed = asyncio.run(runner.run(episodes.task("a")))
    assert (failed.failed, failed.reward) == (True, None)
    with pytest.raises(DataError, match=r"task 'A': not in the data"):
        episodes.task("A")
    assert vllm_params(read_sampling(PARAMS, 8)) == {**PARAMS, "max_tokens": 8}


def test_skyrl_trains_on_our_weights(data):
    pytest.importorskip("skyrl.train.trainer")
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        apply_loss_reduction_to_advantages_minibatch,
    )
    from skyrl.train.generators.base import BatchMetadata, TrajectoryID
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from atommem.integrations.skyrl import SkyRLGenerator, read_arguments

    generator = SkyRLGenerator(Episodes.read(data, "", SETTINGS), None, WordTokenizer())
    runner: Any = WrittenRunner(written)
    runner.agent.tokenizer = SimpleNamespace(eos_token_id=40)
    generator.runner = runner
    names = [TrajectoryID(task_id, sample) for task_id in TASKS for sample in range(SAMPLES)]
    batch = {
        "prompts": [[]] * len(names),
        "trajectory_ids": names,
        "sampling_params": {**PARAMS, "max_tokens": 8},
        "batch_metadata": BatchMetadata(1, "train"),
    }
    output = asyncio.run(generator.generate(batch))
    validate_generator_output(len(names), output, step_wise=True)
    assert sum(output["is_last_step"]) == len(names)

    cfg, _ = read_arguments(["--config", "skyrl_qwen3_8b"])
    cfg.generator.n_samples_per_prompt = SAMPLES
    cfg.trainer.train_batch_size = cfg.trainer.policy_mini_batch_size = len(TASKS)
    trainer = SimpleNamespace(
        cfg=cfg,
        all_metrics={},
        tokenizer=SimpleNamespace(pad_token_id=41, eos_token_id=40),
        dispatch=SimpleNamespace(get_lcm_dp_size=lambda: 1),
    )
    uids = [name.instance_id for name in output["trajectory_ids"]]
    output, uids = RayPPOTrainer.postprocess_generator_output(trainer, output, uids)
    inputs = RayPPOTrainer.convert_to_training_input(trainer, output, uids)
    inputs["values"] = None
    inputs = RayPPOTrainer.compute_advantages_and_returns(trainer, inputs)
    both = inputs["advantages"], inputs["loss_mask"]
    reduction = cfg.trainer.algorithm.loss_reduction
    weights = apply_loss_reduction_to_advantages_minibatch(*both, reduction, 1, 0).numpy()
    masks = inputs["loss_mask"].numpy().astype(bool)
    found: Weights = {}
    rows = zip(output["prompt_token_ids"], output["response_ids"], weights, masks, strict=True)
    for prompt, ids, weight, mask in rows:
        if mask.any():
            (found[*prompt, *ids],) = {*weight[mask].tolist()}
    assert found == pytest.approx(own_weights(), abs=1e-6)
    scored = [reward for task_id in TASKS for reward in REWARDS[task_id] if reward is not None]
    assert output["rollout_metrics"]["atommem/reward"] == pytest.approx(np.mean(scored))

    # Held out, failed episodes are left out; and without any other there is no batch.
    batch["batch_metadata"] = BatchMetadata(1, "eval")
    assert sum(asyncio.run(generator.generate(batch))["is_last_step"]) == len(scored)
    runner.write = lambda task_id, sample: make_episode(task_id, sample, None, [(3, 2)])
    with pytest.raises(OutageError, match="every episode of the batch failed"):
        asyncio.run(generator.generate(batch))


def test_skyrl_client_samples_rows_of_real_episodes(data):
    pytest.importorskip("skyrl.train.trainer")
    from skyrl.train.generators.base import BatchMetadata, TrajectoryID

    from atommem.integrations.skyrl import SkyRLGenerator

    client = Client()

    async def generate(batch: dict[str, Any]) -> dict[str, Any]:
        (prompt_ids,), params = batch["prompt_token_ids"], batch["sampling_params"]
        assert (params["top_k"], params["max_tokens"], params["logprobs"]) == (-1, 8, 0)
        ids, logprobs, _ = await client(prompt_ids, Sampling(affinity=batch["session_ids"][0]))
        return {"response_ids": [ids], "response_logprobs": [logprobs], "stop_reasons": ["stop"]}

    engine = SimpleNamespace(generate=generate)
    generator = SkyRLGenerator(Episodes.read(data, "", SETTINGS), engine, client.tokenizer)
    batch = {
        "trajectory_ids": [TrajectoryID("a", 0), TrajectoryID("a", 1)],
        "sampling_params": {**PARAMS, "max_tokens": 8},
        "batch_metadata": BatchMetadata(1, "train"),
    }
    output = asyncio.run(generator.generate(batch))
    client.check(output["prompt_token_ids"], output["response_ids"], "a")
    with pytest.raises(OutageError, match="every episode of the batch failed: the engine does not"):
        asyncio.run(generator.generate(batch))


def test_skyrl_accepts_recipe_and_gets_tasks_of_the_file(data, monkeypatch):
    pytest.importorskip("skyrl.train.trainer")
    from skyrl.train.entrypoints.main_base import BasePPOExp

    from atommem.integrations.skyrl import MemoryExperiment, read_arguments

    monkeypatch.setattr(BasePPOExp, "__init__", lambda experiment, cfg: None)
    ours = [f"data.train_data=[{data}]", "trainer.policy.model.path=''", "trainer.seed=7"]
    cfg, settings = read_arguments(["--config", "skyrl_qwen3_8b", *ours])
    assert cfg.generator.step_wise_trajectories
    assert cfg.trainer.seed == 7
    experiment = MemoryExperiment(cfg, settings | SETTINGS)
    prompts = experiment.get_train_dataset()
    assert [prompts[index]["uid"] for index in range(len(prompts))] == list(TASKS)
    assert experiment.get_eval_dataset() is None


def test_verl_trains_on_our_weights():
    pytest.importorskip("verl")
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    from atommem.integrations.verl import make_outputs

    keys, fields = [], []
    for episode in EPISODES:
        if episode.failed:  # the agent loop raises, and verl stores nothing of it
            continue
        for index, output in enumerate(make_outputs(episode, 40)):
            keys.append(f"{episode.task_id}_{episode.sample}_{index}")
            fields.append(output.as_dict())

    def padded(name: str) -> Any:
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in fields], batch_first=True)

    tensors = {"response_mask": padded("response_mask"), "token_level_rewards": padded("rm_scores")}
    uids = np.array([key.split("_")[0] for key in keys], dtype=object)
    batch = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    groups = {"num_repeat": SAMPLES, "norm_adv_by_std_in_grpo": False}
    batch = compute_advantage_for_multi_trajectories(batch, keys, "grpo", **groups)
    advantages = batch.batch["advantages"].requires_grad_()
    agg_loss(advantages, tensors["response_mask"], "token-mean").backward()
    weights = (advantages.grad * advantages).detach().numpy()
    found = {
        (*row["prompts"].tolist(), *row["responses"].tolist()): float(weight[0])
        for row, weight in zip(fields, weights, strict=True)
    }
    assert found == pytest.approx(own_weights(), abs=1e-6)


def test_verl_agent_loop_runs_real_episodes(data, monkeypatch):
    pytest.importorskip("verl")
    from verl.experimental.agent_loop import AgentLoopBase

    from atommem.integrations.verl import MemoryAgentLoop, TaskDataset

    client = Client()

    async def generate(request_id: str, *, prompt_ids: Any, sampling_params: Any) -> Any:
        assert (sampling_params["top_k"], sampling_params["logprobs"]) == (-1, True)
        ids, logprobs, _ = await client(prompt_ids, Sampling(affinity=request_id))
        return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason="completed")

    def make(loop: Any) -> None:
        loop.tokenizer = client.tokenizer
        loop.server_manager = SimpleNamespace(generate=generate)
        lengths = {"max_model_len": None, "prompt_length": 4096, "response_length": 8}
        loop.rollout_config = SimpleNamespace(**lengths)

    monkeypatch.setattr(AgentLoopBase, "__init__", make)
    loop = MemoryAgentLoop(data=data, model="", settings=SETTINGS)
    outputs = asyncio.run(loop.run(PARAMS, task="a", session_id=1))
    client.check((row.prompt_ids for row in outputs), (row.response_ids for row in outputs), "a")
    with pytest.raises(OutageError, match="task 'a': the engine does not answer"):
        asyncio.run(loop.run(PARAMS, task="a"))

    prompts = object.__new__(TaskDataset)
    prompts.config, prompts.data_files, prompts.prompt_key = {}, [data], "prompt"
    prompts._read_files_and_tokenize()
    assert [row["task"] for row in prompts.dataframe] == list(TASKS)


def test_verl_accepts_recipe_and_writes_the_agent_loop(data, tmp_path, monkeypatch):
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.utils.config import validate_config

    from atommem.integrations.verl import read_arguments

    monkeypatch.chdir(tmp_path)
    ours = [f"data.train_files=[{data}]", "data.val_files=[]", "trainer.nnodes=4"]
    overrides = read_arguments(["--config", "verl_qwen3_8b", *ours])
    with initialize_config_module("verl.trainer.config", version_base=None):
        cfg = compose("ppo_trainer", overrides)
    validate_config(cfg, use_reference_policy=True, use_critic=False)
    assert (cfg.trainer.nnodes, cfg.trainer.use_v1) == (4, True)
    (loop,) = OmegaConf.load(cfg.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert (loop.data, loop.model, loop.settings.max_reads) == ([data], "Qwen/Qwen3-8B", 0)


def test_openenv_session_trains_on_our_weights_divided_by_the_deviation(data, monkeypatch):
    pytest.importorskip("openenv.core.harness")
    from accelerate import PartialState
    from trl.experimental.async_grpo import async_rollout_worker as worker
    from trl.experimental.async_grpo.openenv_harness import _HarnessRolloutLoop

    from atommem.integrations import openenv

    PartialState(cpu=True)  # TRL logs by process
    policy = EnginePolicy(WordTokenizer(), Client())
    monkeypatch.setattr(openenv, "open_policy", lambda config: policy)
    sessions = openenv.MemorySessions(data, "", "http://gpu:8000", SETTINGS)
    sessions.runner = SimpleNamespace(run=run_written)  # type: ignore[assignment]
    loop = SimpleNamespace(
        **{"_factory": sessions, "_live_sessions": set(), "_stop_event": asyncio.Event()},
        **{"_adapter": None, "_rollout_reward_fn": None, "_fork_threshold_tokens": 0},
        **{"reward_funcs": [], "reward_func_names": ["harness_reward"], "_env_reward_types": []},
        _provides_rollout_reward=True,
    )
    found: Weights = {}
    total = 0
    for number, task_id in enumerate(TASKS):
        prompt = [{"role": "user", "content": task_id}]
        run = partial(_HarnessRolloutLoop._run_session, loop, prompt, number)
        results = [run()[0][:6] for _ in range(SAMPLES)]
        texts, ids, sequences, _, _, rewards = map(list, zip(*results, strict=True))
        group = worker.RolloutGroup(
            **{"prompts": [prompt] * SAMPLES, "completions": texts, "completions_ids": ids},
            **{"completions_sequences": sequences, "rollout_rewards": rewards},
            **dict.fromkeys(("tool_call_counts", "tool_failure_counts"), [0] * SAMPLES),
            **{"reward_kwargs": {}, "model_version": 0, "group_id": number},
            env_rewards=[None] * SAMPLES,
        )
        samples = asyncio.run(_HarnessRolloutLoop._score_group(loop, group))
        total += int(sum(sample.completion_mask.sum() for sample in samples))
        found |= {tuple(sample.input_ids.tolist()): sample.advantage for sample in samples}
    found = {row: advantage / total for row, advantage in found.items()}
    assert found == pytest.approx(own_weights(lambda rewards: float(np.std(rewards))), abs=1e-6)


def test_openenv_sessions_run_real_episodes(data, monkeypatch):
    pytest.importorskip("openenv.core.harness")
    from atommem.integrations import openenv

    client = Client()
    policy = EnginePolicy(client.tokenizer, client)
    monkeypatch.setattr(openenv, "open_policy", lambda config: policy)
    sampling = {"temperature": 0.5}
    sessions = openenv.MemorySessions(data, "", "http://gpu:8000", SETTINGS, sampling=sampling)
    session = sessions.create([{"role": "user", "content": "a"}])
    assert session.wait_for_completion() == 0
    turns = session.fetch_training_trace().turns
    rows = [(turn.prompt_token_ids, turn.completion_token_ids) for turn in turns]
    client.check(*zip(*rows, strict=True), "a")
    assert {sampling.temperature for _, sampling in client.requests} == {0.5}
    assert session.verify([]).env_reward == 0.0  # without a box
    failed = sessions.create("a")
    assert failed.wait_for_completion() == 1
    assert (failed.fetch_training_trace().turns, failed.verify([]).env_reward) == ([], None)


async def run_written(task: Any, sample: int) -> Episode:
    return written(task.id, sample)

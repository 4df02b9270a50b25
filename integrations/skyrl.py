"""Training with SkyRL 0.3 on several nodes: ``python -m atommem.integrations.skyrl --config NAME``.

Its step-wise trajectories are our episodes: a row for each step, the advantage from the last row
and the same for all of them. Other arguments are SkyRL's own overrides, KEY=VALUE.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from aiohttp import ClientError
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

from atommem.arguments import split_config
from atommem.episode import Episode, episode_sums, means
from atommem.errors import OutageError
from atommem.integrations.engine import EnginePolicy, Episodes, read_sampling, rows_of, vllm_params
from atommem.policy.contract import Sampling


class SkyRLGenerator(GeneratorInterface):
    """Runs the episodes of a batch on SkyRL's inference engines."""

    def __init__(
        self, episodes: Episodes, client: Any, tokenizer: Any, context_length: int | None = None
    ) -> None:
        self.episodes, self.client = episodes, client
        outages = (ClientError, OSError)
        policy = EnginePolicy(tokenizer, self._sample, outages, context_length)
        self.runner = episodes.runner(policy, tokenizer)

    async def generate(self, input_batch: Any) -> Any:
        """Return the rows of all episodes, in the batch's order."""
        names, params = input_batch["trajectory_ids"], input_batch["sampling_params"]
        sampling = read_sampling(params, params["max_tokens"])
        jobs = [(self.episodes.task(name.instance_id), name.repetition_id) for name in names]
        episodes = await self.runner.copy(sampling=sampling).run_all(jobs)
        if all(episode.failed for episode in episodes):
            raise OutageError(f"every episode of the batch failed: {episodes[0].error}")
        statistics = means(episode_sums(episodes))
        metrics = {f"atommem/{name}": value for name, value in statistics.items()}
        if input_batch["batch_metadata"].training_phase == "eval":
            names = [n for n, e in zip(names, episodes, strict=True) if not e.failed]
            episodes = [episode for episode in episodes if not episode.failed]
        tokenizer: Any = self.runner.agent.tokenizer
        return make_rows(episodes, names, tokenizer.eos_token_id) | {"rollout_metrics": metrics}

    async def _sample(
        self, prompt_ids: list[int], sampling: Sampling
    ) -> tuple[list[int], list[float] | None, bool]:
        request = {
            "prompt_token_ids": [prompt_ids],
            "sampling_params": vllm_params(sampling, logprobs=0),
            "session_ids": [sampling.affinity],
        }
        reply = await self.client.generate(request)
        logprobs = (reply["response_logprobs"] or [None])[0]
        return reply["response_ids"][0], logprobs, reply["stop_reasons"][0] == "stop"


def make_rows(episodes: Sequence[Episode], names: Sequence[Any], pad_id: int) -> dict[str, Any]:
    """Return the columns of SkyRL's batch; `names` are its trajectory ids.

    SkyRL's baseline is the mean over all episodes of a group. A failed one leaves it: its reward is
    the mean of the others, and its one row has no token in the loss.
    """
    groups = defaultdict[str, list[float]](list)
    for name, episode in zip(names, episodes, strict=True):
        groups[name.instance_id] += [] if episode.reward is None else [episode.reward]
    rows: list[dict[str, Any]] = []
    for name, episode in zip(names, episodes, strict=True):
        others = groups[name.instance_id]
        reward = sum(others) / max(1, len(others)) if episode.reward is None else episode.reward
        own = rows_of(episode, pad_id)
        rows += [
            {
                "prompt_token_ids": step.prompt_ids,
                "response_ids": step.token_ids,
                "rollout_logprobs": step.logprobs,
                "loss_masks": [mask] * len(step.token_ids),
                "stop_reasons": step.finish_reason,
                "rewards": reward,
                "trajectory_ids": name,
                "is_last_step": step is own[-1][0],
                "env_metrics": episode.metrics,
                "trajectory_generation_times": episode.seconds,
            }
            for step, mask in own
        ]
    return {column: [row[column] for row in rows] for column in rows[0]}


class MemoryExperiment(BasePPOExp):
    """SkyRL's experiment on task files, with `SkyRLGenerator`."""

    def __init__(self, cfg: Any, settings: dict[str, Any]) -> None:
        model = cfg.trainer.policy.model.path
        train = Episodes.read(cfg.data.train_data, model, settings)
        held_out = Episodes.read(cfg.data.val_data or (), model, settings)
        self.prompts, self.held_out = Prompts(train.tasks), Prompts(held_out.tasks)
        self.episodes = replace(train, tasks=train.tasks | held_out.tasks)
        super().__init__(cfg)

    def get_train_dataset(self) -> Any:
        return self.prompts

    def get_eval_dataset(self) -> Any:
        return self.held_out or None

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        length = cfg.generator.inference_engine.engine_init_kwargs.get("max_model_len")
        return SkyRLGenerator(self.episodes, inference_engine_client, tokenizer, length)


class Prompts(list[dict[str, Any]]):
    """SkyRL's data set: the ids of tasks, whose prompts the episodes write."""

    def __init__(self, tasks: Iterable[str]) -> None:
        other: dict[str, Any] = {"env_class": None, "env_extras": {}}
        super().__init__(
            {"prompt": [{"role": "user", "content": name}], "uid": name, **other} for name in tasks
        )

    def collate_fn(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return items


def read_arguments(argv: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return SkyRL's validated configuration and the settings of an episode."""
    overrides, settings = split_config(argv, "engines")
    theirs = settings.pop("skyrl", {}) | {"generator.step_wise_trajectories": True}
    lines = [f"{key}={'null' if value is None else value}" for key, value in theirs.items()]
    cfg = SkyRLTrainConfig.from_cli_overrides([*lines, *overrides])
    validate_cfg(cfg)
    return cfg, settings


def train(cfg: Any, settings: dict[str, Any]) -> None:
    MemoryExperiment(cfg, settings).run()


if __name__ == "__main__":
    import ray

    cfg, settings = read_arguments(sys.argv[1:])
    initialize_ray(cfg)
    ray.get(ray.remote(num_cpus=1)(train).remote(cfg, settings))

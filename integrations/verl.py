"""Training with verl 0.9 (its V1 trainer): ``python -m atommem.integrations.verl --config NAME``.

Its agent loop runs an episode and returns a row for each step. Other arguments are verl's own.
"""

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from ray.exceptions import RayError
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.utils.dataset.rl_dataset import RLHFDataset

from atommem.arguments import split_config
from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.integrations.engine import EnginePolicy, Episodes, read_sampling, rows_of, vllm_params
from atommem.policy.contract import Sampling
from atommem.rollout import EpisodeRunner

NAME, MODULE = "atommem", "atommem.integrations.verl"


class MemoryAgentLoop(AgentLoopBase):
    """Runs one episode; `data`, `model` and `settings` come from the agent loop's YAML file."""

    def __init__(self, *args: Any, data: Any, model: str, settings: Any = None, **own: Any) -> None:
        super().__init__(*args, **own)
        given = OmegaConf.to_container(OmegaConf.create([data, model, settings or {}]))
        self.episodes, self.runner = _open(json.dumps(given), self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """Return the rows of an episode; raise for a failed one, which verl then leaves out."""
        rollout = self.rollout_config
        length = rollout.max_model_len or rollout.prompt_length + rollout.response_length
        sampling = read_sampling(sampling_params, rollout.response_length)
        policy = EnginePolicy(self.tokenizer, self._sample, (RayError, OSError), length)
        runner = self.runner.copy(policy=policy, sampling=sampling)
        task = self.episodes.task(kwargs["task"])
        episode = await runner.run(task, int(kwargs.get("session_id", 0)))
        if episode.failed:
            raise OutageError(f"task {episode.task_id!r}: {episode.error}")
        return make_outputs(episode, self.tokenizer.eos_token_id)

    async def _sample(
        self, prompt_ids: list[int], sampling: Sampling
    ) -> tuple[list[int], list[float] | None, bool]:
        params = vllm_params(sampling, logprobs=True)
        reply = await self.server_manager.generate(
            sampling.affinity, prompt_ids=prompt_ids, sampling_params=params
        )
        if reply.stop_reason == "aborted":
            raise OutageError("verl's engine aborted a completion.")
        ids = list(reply.token_ids)
        cut = len(ids) >= sampling.max_completion_length
        stopped = not cut or ids[-1] == self.tokenizer.eos_token_id
        return ids, reply.log_probs, stopped


def make_outputs(episode: Episode, pad_id: int) -> list[AgentLoopOutput]:
    """Return an output for each step, or one outside of the loss for an episode without tokens."""
    return [
        AgentLoopOutput(
            prompt_ids=step.prompt_ids,
            response_ids=step.token_ids,
            response_mask=[mask] * len(step.token_ids),
            response_logprobs=step.logprobs,
            reward_score=episode.reward,
            num_turns=len(episode.steps),
            metrics={"generate_sequences": episode.seconds},
            extra_fields={"reward_extra_info": {}},
        )
        for step, mask in rows_of(episode, pad_id)
    ]


class TaskDataset(RLHFDataset):
    """verl's prompts from task files: the ids of tasks, whose prompts the episodes write."""

    def _read_files_and_tokenize(self) -> None:
        from datasets import Dataset

        environment = {"environment": self.config.get("environment") or "longdoc"}
        names = Episodes.read(list(self.data_files), "", environment).tasks
        rows = [
            {
                self.prompt_key: [{"role": "user", "content": name}],
                "task": name,
                "agent_name": NAME,
                "data_source": NAME,
                "extra_info": {"index": index},
            }
            for index, name in enumerate(names)
        ]
        self.dataframe = Dataset.from_list(rows)


@lru_cache(maxsize=4)
def _open(given: str, tokenizer: Any) -> tuple[Episodes, EpisodeRunner]:
    """Read the tasks and load the embedder once for all agent loops of a process."""
    episodes = Episodes.read(*json.loads(given))
    policy: Any = None  # an agent loop brings its own
    return episodes, episodes.runner(policy, tokenizer)


def read_arguments(argv: Sequence[str]) -> list[str]:
    """Return verl's overrides for a recipe; the agent loop's file is beside the checkpoints."""
    overrides, settings = split_config(argv, "engines")
    theirs = settings.pop("verl", {})
    pairs = (override.partition("=") for override in overrides)
    theirs |= {key: yaml.safe_load(value) for key, _, value in pairs}
    file = Path(theirs["trainer.default_local_dir"]).absolute() / "agent.yaml"
    loop = {
        "name": NAME,
        "_target_": f"{MODULE}.{MemoryAgentLoop.__name__}",
        "data": [*theirs["data.train_files"], *theirs["data.val_files"]],
        "model": theirs["actor_rollout_ref.model.path"],
        "settings": settings,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump([loop]), encoding="utf-8")
    theirs |= {
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(file),
        "data.custom_cls.path": f"pkg://{MODULE}",
        "data.custom_cls.name": TaskDataset.__name__,
    }
    return [f"{key}={json.dumps(value)}" for key, value in theirs.items()]


if __name__ == "__main__":
    from verl.trainer.main_ppo import main

    sys.argv[1:] = read_arguments(sys.argv[1:])
    main()

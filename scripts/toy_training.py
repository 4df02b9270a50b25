"""GRPO on a tiny random model, for benches: real rollouts, real updates, and a reward that random models differ in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from agents import make_agent

from atommem.config import MemoryConfig
from atommem.demo.recipe import PolicySize
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.world import WorldConfig
from atommem.envs.task import Task
from atommem.episode import Episode, Step
from atommem.episode_runner import EpisodeRunner, Kept
from atommem.policy.local import LocalPolicy
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.backends import LocalBackend
from atommem.train.train_config import TrainConfig

WORLD = WorldConfig(prose="compact", names=16, facts_per_document=2)
MEMORY = MemoryConfig(templates="compact", scratchpad_tokens=32, retrieve_k=2)


class EvenTokens(EpisodeRunner):
    """The one loop; the reward is the share of even token ids among those that an episode sampled."""

    async def run(
        self, task: Any, sample: int = 0, past: Sequence[Step] = (), kept: Kept | None = None
    ) -> Episode:
        """Run one episode and score it."""
        episode = await super().run(task, sample, past, kept)
        tokens = [token for step in episode.steps for token in step.token_ids]
        episode.reward = sum(token % 2 == 0 for token in tokens) / len(tokens)
        return episode


def toy_trainer(
    settings: dict[str, Any],
    tasks: Sequence[Task],
    acting: Mapping[str, Any],
    on_episodes: Callable[[int, Sequence[Episode]], None] | None = None,
) -> MemoryGRPOTrainer:
    """A trainer on CPU that saves nothing.

    Args:
        settings: Of `TrainConfig`.
        tasks: From `WORLD`.
        acting: Settings of the agent: how documents are cut, how long completions may be.
        on_episodes: Of the trainer.
    """
    tokenizer = make_tokenizer(WORLD, MEMORY)
    torch.manual_seed(0)
    model = make_model(PolicySize(), tokenizer)

    def make_backend(training: Any) -> LocalBackend:
        stored = {**asdict(MEMORY), **acting, "temperature": 1.0}
        policy = LocalPolicy(training, tokenizer)
        return LocalBackend(
            EvenTokens(make_agent(policy, HashingEmbedder(16), stored=stored, keep_prompts=True))
        )

    quiet = {"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    return MemoryGRPOTrainer(
        model=model,
        args=TrainConfig(**{**quiet, **settings}),
        tasks=tasks,
        processing_class=tokenizer,
        make_backend=make_backend,
        on_episodes=on_episodes,
    )

"""What every backend builds: the one loop, around its policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atommem.config import MemoryConfig
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentConfig
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.policy.contract import Policy, Sampling
from atommem.run import RunConfig, build_agent
from atommem.session import ENCODE_THREADS
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How episodes of training run, whichever policy samples them.

    Attributes:
        args: Temperature, longest completion, limits of an episode.
        tokenizer: The model's.
        embedder: Shared by all episodes.
        memory: Dialect, layout and limits of the memory.
        environment: Which one, and how its tasks are cut and scored.
    """

    args: TrainConfig | AsyncTrainConfig
    tokenizer: Any
    embedder: Embedder
    memory: MemoryConfig
    environment: EnvironmentConfig

    def runner(self, policy: Policy, max_in_flight: int | None = None) -> EpisodeRunner:
        """The one loop around `policy`, with at most so many episodes at the same time."""
        args = self.args
        run = RunConfig(
            memory=self.memory,
            environment=self.environment,
            sampling=Sampling(
                temperature=args.temperature, max_tokens=args.max_completion_length or 1024
            ),
            chat_template_kwargs=args.template_kwargs,
        )
        return EpisodeRunner(
            build_agent(
                run,
                policy,
                tokenizer=self.tokenizer,
                embedder=self.embedder,
                encode_threads=ENCODE_THREADS,
                keep_prompts=True,
            ),
            limits=Limits(max_tokens=args.episode_max_tokens, max_seconds=args.episode_max_seconds),
            max_in_flight=max_in_flight,
        )

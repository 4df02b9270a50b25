"""What the trainer asks of the side that samples."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from atommem.episode_runner import EpisodeRunner

if TYPE_CHECKING:
    from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer


class Backend(Protocol):
    """Samples episodes from the weights that are being trained.

    Attributes:
        runner: Runs this rank's episodes. Ranks make different numbers of model calls, so nothing that it
            does may be a collective operation.
    """

    runner: EpisodeRunner

    def publish(self, trainer: MemoryGRPOTrainer) -> None:
        """Give the sampling side the trainer's current weights. Every rank calls it, before every rollout.

        Raises:
            OutageError: The sampling side cannot be reached.
        """
        ...

    def rollout(self, trainer: MemoryGRPOTrainer) -> AbstractContextManager[None]:
        """Entered on every rank around each rollout."""
        ...

    def metrics(self) -> dict[str, float]:
        """What this rank measured since the last call; keys and meanings are the backend's.

        The trainer logs the sum over ranks: what is no sum comes from one rank only.
        """
        ...

    async def close(self) -> None:
        """Free what the backend holds, its runner's policy with it."""
        ...

"""What the trainer asks of the side that samples."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from atommem.episode_runner import EpisodeRunner

Result = TypeVar("Result")


class TrainingSide(Protocol):
    """What a backend asks of the trainer.

    Attributes:
        accelerator: Its process, device and place among the ranks.
        model: What is trained; `model_wrapped` is the same as it is prepared for distributed training.
        args: TRL's settings.
        _dist: TRL's access to parameters that are sharded.
    """

    accelerator: Any
    model: Any
    model_wrapped: Any
    args: Any
    _dist: Any

    def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop that the episodes run in."""
        ...


class Backend:
    """Samples episodes from the weights that are being trained; this one, wherever its runner does.

    Args:
        runner: Runs this rank's episodes. Ranks make different numbers of model calls, so nothing that it
            does may be a collective operation.
    """

    def __init__(self, runner: EpisodeRunner) -> None:
        self.runner = runner

    def publish(self, trainer: TrainingSide) -> None:
        """Give the sampling side the trainer's current weights. Every rank calls it, before every rollout.

        Raises:
            OutageError: The sampling side cannot be reached.
        """

    def rollout(self, trainer: TrainingSide) -> AbstractContextManager[None]:
        """Entered on every rank around each rollout."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """What this rank measured since the last call; keys and meanings are the backend's.

        The trainer logs the sum over ranks: what is no sum comes from one rank only.
        """
        return {}

    async def close(self) -> None:
        """Free what the backend holds, its runner's policy with it."""
        await self.runner.agent.policy.close()

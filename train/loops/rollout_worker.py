"""The rollout side of asynchronous training: a thread that runs episodes ahead of the trainer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from atommem.episode import Episode
from atommem.errors import OutageError
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.process import run_jobs
from atommem.rollout import EpisodeRunner
from atommem.train.rollout.rollouts import TaskOrder

Result = TypeVar("Result")

POLL_SECONDS = 0.2  # between two checks for a stop request while waiting for groups


@dataclass(frozen=True)
class Group:
    """The finished episodes of one task."""

    episodes: Sequence[Episode]
    versions: Sequence[Sequence[int]]  # for each episode, the weight version that sampled each step


class _TaggedPolicy(Policy):
    """One episode's view of the policy, which records the weight version of each completion.

    It is read when the request is made: a request that waits while weights are published is tagged
    older than it is, never newer.
    """

    def __init__(self, policy: Policy, worker: RolloutWorker) -> None:
        self._policy = policy
        self._worker = worker
        self.versions: list[int] = []

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        version = self._worker.version
        completion = await self._policy.complete(prompt_ids, sampling)
        self.versions.append(version)
        self._worker.note_progress()
        return completion


@dataclass(eq=False, kw_only=True)
class RolloutWorker:
    """Runs the episodes of groups in a thread, ahead of the trainer.

    Weights of version v serve the groups of one update (of `weight_sync_steps` updates). With the
    first weights the worker may start the groups of ``1 + max_staleness`` versions, and with every
    new version those of one more. The trainer takes groups by number, so each is fresh enough, and
    with ``max_staleness=0`` the worker waits for every update. `close` is awaited at its end.
    """

    runner: EpisodeRunner
    tasks: Sequence[Any]
    order: TaskOrder
    group_size: int
    groups_per_version: int
    max_staleness: int
    close: Callable[[], Coroutine[Any, Any, None]]

    def __post_init__(self) -> None:
        self.version = 0
        self._groups: dict[int, Future[Group]] = {}  # by number, until they are taken
        self._progress = time.monotonic()
        self._running: Future[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, numbers: range) -> None:
        """Start running these groups of the run, with the published weights, unless they run."""
        if self._running is not None:
            return
        first, each = numbers.start, self.groups_per_version
        # The first version serves what is left of its updates.
        self._permits = asyncio.Semaphore((1 + self.max_staleness) * each - first % each)
        self.note_progress()
        self._running = self.spawn(self._run(numbers))

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self.spawn(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def update_model_version(self, model_version: int) -> None:
        """Allow more groups: weights of this version have been published."""
        self.version = model_version
        if self._running is not None:
            self._loop.call_soon_threadsafe(self._grant)

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the thread, or OutageError `stale_after_s` after the last completion."""
        if self._running is not None and self._running.done():
            self._running.result()
        silent = time.monotonic() - self._progress
        if silent > stale_after_s:
            raise OutageError(
                f"no completion for {silent:.0f} s (heartbeat_stale_after_s={stale_after_s:.0f}). "
                "Resume from the last checkpoint when the policy's servers answer."
            )

    def spawn(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run `work` in the loop of the episodes; thread-safe."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def note_progress(self) -> None:
        self._progress = time.monotonic()

    def take(
        self, numbers: Sequence[int], stale_after_s: float, stopped: Callable[[], bool]
    ) -> list[Group]:
        """Wait for the groups of an update, by number; fewer if `stopped` returns true.

        By number and not as they end, because updates would otherwise consist of short tasks, and
        long ones would be too old. Raises as `check_health` does.
        """
        while wait(map(self._group, numbers), POLL_SECONDS).not_done and not stopped():
            self.check_health(stale_after_s)
        ended = [number for number in numbers if self._group(number).done()]
        return [self._groups.pop(number).result() for number in ended]

    def _group(self, number: int) -> Future[Group]:
        return self._groups.setdefault(number, Future())

    def _grant(self) -> None:
        for _ in range(self.groups_per_version):
            self._permits.release()
        self.note_progress()

    # In the loop ----------------------------------------------------------------------------------

    async def _run(self, numbers: range) -> None:
        try:
            async with asyncio.TaskGroup() as groups:
                for index in numbers:
                    await self._permits.acquire()
                    groups.create_task(self._run_group(index))
        except BaseExceptionGroup as failures:
            # The first failure is the cause of the others.
            raise failures.exceptions[0] from None

    async def _run_group(self, index: int) -> None:
        sampling = replace(self.runner.agent.sampling, seed=self.order.seed(index))

        async def run_episode(task: Any, sample: int) -> tuple[Episode, list[int]]:
            policy = _TaggedPolicy(self.runner.agent.policy, self)
            runner = self.runner.copy(policy=policy, sampling=sampling)
            return await runner.run(task, sample), policy.versions

        task = self.tasks[self.order.task(index)]
        jobs = [(task, sample) for sample in range(self.group_size)]
        ended = await run_jobs(run_episode, jobs, max_in_flight=self.runner.max_in_flight)
        episodes, versions = zip(*ended, strict=True)
        self._group(index).set_result(Group(episodes, versions))

    async def _close(self) -> None:
        await self.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

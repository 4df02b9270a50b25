"""Episodes as OpenEnv 0.10 sessions that own their loop, for TRL's stock `AsyncGRPOTrainer`.

TRL's `HarnessRolloutWorker` makes a session for each episode, waits for it, and trains on its
`TrainingTrace`: every step is a turn, and a row, with the advantage of the session's reward.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from openenv.core import harness

from atommem.config import PolicyConfig
from atommem.episode import Episode
from atommem.integrations.engine import Episodes, sampled_steps
from atommem.policy.opening import open_policy
from atommem.process import background_loop


class MemorySession(harness.ResourceSession):
    """One episode of our loop."""

    def __init__(self, running: Future[Episode]) -> None:
        self._running = running

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the episode's end; 1 if it failed."""
        return int(self._running.result(timeout_s).failed)

    def fetch_training_trace(self) -> harness.TrainingTrace:
        """Return the steps as sampled; a failed episode has none to train on."""
        return make_trace(self._running.result())

    def verify(self, transcript: list[Any], final_state: Any = None) -> harness.VerifyResult:
        """Return the reward; None, which leaves the baseline, for a failed episode."""
        episode = self._running.result()
        metrics = dict(episode.metrics)
        return harness.VerifyResult(env_reward=episode.reward, done=True, metrics=metrics)

    def close(self) -> None:
        self._running.cancel()

    def initial_messages(self) -> list[Any]:
        """Return none: the session writes its own prompts."""
        return []

    def list_tools(self) -> list[Any]:
        """Return none: actions are text."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raise: no tool was offered."""
        raise ValueError(f"tool {name!r}: the session offers none.")


class MemorySessions(harness.ResourceSessionFactory):
    """Makes the sessions of a run; the dataset's prompts are the ids of tasks.

    `base_url` is the vLLM server that TRL updates, with ``--logprobs-mode processed_logprobs``.
    `settings` count on top of those stored with `model`; `sampling` is TRL's.
    """

    def __init__(
        self,
        data: str,
        model: str,
        base_url: str,
        settings: Mapping[str, Any] | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.episodes = Episodes.read(data, model, settings)
        policy: Any = open_policy(PolicyConfig([base_url], tokenizer=model))
        runner = self.episodes.runner(policy, policy.tokenizer)
        temperature = float((sampling or {}).get("temperature", 1.0))
        own = replace(runner.agent.sampling, temperature=temperature, top_p=1.0, top_k=0)
        self.runner = runner.copy(sampling=own)
        self._samples: Counter[str] = Counter()

    def create(self, task: Any, seed: Any = None, episode_id: Any = None) -> MemorySession:
        """Start an episode of the task whose id is the prompt."""
        name = task if isinstance(task, str) else task[-1]["content"]
        self._samples[name] += 1
        episode = self.runner.run(self.episodes.task(name), self._samples[name] - 1)
        # One event loop for all sessions: TRL waits for each in a thread of its own.
        loop, _ = background_loop()
        return MemorySession(asyncio.run_coroutine_threadsafe(episode, loop))


def make_trace(episode: Episode) -> harness.TrainingTrace:
    """Return OpenEnv's validated record of the steps with a token."""
    return harness.TrainingTrace(
        turns=[
            harness.TrainingTurn(
                node_id=f"{episode.task_id}/{episode.sample}/{index}",
                prompt_token_ids=step.prompt_ids,
                completion_token_ids=step.token_ids,
                per_token_logps=step.logprobs,
                loss_mask=[0] * len(step.prompt_ids) + [1] * len(step.token_ids),
            )
            for index, step in enumerate(sampled_steps(episode))
        ]
    )

"""Episodes for the trainer of another project: our loop around its sampler, and the rows of a step.

Every step of an episode is a row of its own, since its context is written anew. What must hold in
every engine: the baseline counts episodes and never rows, and a failed episode leaves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atommem.environment import find_environment
from atommem.episode import Episode, Observation, Step
from atommem.errors import DataError, OutageError, format_error, suggest
from atommem.memory.log import MemoryView
from atommem.policy.contract import Completion, Policy, Sampling, check_request, make_completion
from atommem.rollout import ENCODE_THREADS, EpisodeRunner
from atommem.run import RunConfig, build_agent, make_run, stored_settings

Sample = Callable[[list[int], Sampling], Awaitable[tuple[list[int], list[float] | None, bool]]]
"""Returns the sampled ids, their log-probabilities, and whether an end token stopped them."""


@dataclass(frozen=True)
class Episodes:
    """The tasks of a run by id, and the settings of an episode."""

    tasks: dict[str, Any]
    run: RunConfig

    @classmethod
    def read(
        cls, data: str | Sequence[str], model: str, settings: Mapping[str, Any] | None = None
    ) -> Episodes:
        """Read task files, and `settings` by name on top of those stored with `model`."""
        settings = dict(settings or {})
        stored = stored_settings(model, settings.get("environment"), named=settings)
        read_tasks = find_environment(stored["environment"]).read_tasks
        files = [data] if isinstance(data, str) else data
        tasks = {task.id: task for file in files for task in read_tasks(file)}
        return cls(tasks, make_run(settings, stored))

    def task(self, name: str) -> Any:
        if name not in self.tasks:
            raise DataError(f"task {name!r}: not in the data{suggest(name, self.tasks)}.")
        return self.tasks[name]

    def runner(self, policy: Policy, tokenizer: Any) -> EpisodeRunner:
        agent = build_agent(
            self.run, policy, tokenizer=tokenizer, encode_threads=ENCODE_THREADS, keep_prompts=True
        )
        return EpisodeRunner(agent)


@dataclass
class EnginePolicy(Policy):
    """Samples with an engine's own client, by token ids; `outages` are errors of that client."""

    tokenizer: Any
    sample: Sample
    outages: tuple[type[Exception], ...] = (OSError, TimeoutError)
    context_length: int | None = None

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion; raises as `Policy.complete` does."""
        check_request(prompt_ids, sampling, self.context_length)
        try:
            token_ids, logprobs, stopped = await self.sample(prompt_ids, sampling)
        except self.outages as error:
            raise OutageError(f"the engine does not answer: {format_error(error)}") from error
        return make_completion(self.tokenizer, token_ids, logprobs, stopped, "the engine")


def read_sampling(params: Mapping[str, Any], max_tokens: int) -> Sampling:
    """Return an engine's sampling settings as ours."""
    return Sampling(params["temperature"], params["top_p"], max(params["top_k"], 0), max_tokens)


def vllm_params(sampling: Sampling, **further: Any) -> dict[str, Any]:
    """Return our sampling settings under the names that vLLM and its likes take."""
    return sampling.to_request() | {"top_k": sampling.top_k or -1} | further


def sampled_steps(episode: Episode) -> list[Step]:
    """Return the steps that have tokens to train on: none of a failed episode."""
    if episode.failed:
        return []
    if episode.reward is None:
        raise DataError(f"task {episode.task_id!r}: has no gold answer, so no reward. Remove it.")
    return [step for step in episode.steps if step.token_ids]


def rows_of(episode: Episode, pad_id: int) -> list[tuple[Step, int]]:
    """Return `sampled_steps`, and whether they are in the loss; at least one that is not.

    An episode without a token, whose first prompt was too long, keeps its reward by such a row.
    """
    outside = Step(0, Observation(""), MemoryView(), [pad_id], [pad_id], [0.0])
    return [(step, 1) for step in sampled_steps(episode)] or [(outside, 0)]

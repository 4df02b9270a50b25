"""The expert as a policy, so that its demonstrations come out of the one loop."""

from __future__ import annotations

from typing import Any

from atommem.envs.synthetic.expert import Expert
from atommem.episode import Observation
from atommem.episode_runner import EpisodeRunner
from atommem.memory.entries import MemoryView
from atommem.policy.contract import Completion, Sampling
from atommem.prompts import PromptBuilder
from atommem.tokens import Tokenizer


class ExpertPolicy:
    """Answers a prompt with what the expert does on the observation that the prompt was built from.

    Use `runner`: the policy has to be told which observation a prompt shows.
    """

    def __init__(self, expert: Expert, tokenizer: Tokenizer, eos_token_id: int | None = None) -> None:
        self._expert = expert
        self._tokenizer = tokenizer
        self._end = [] if eos_token_id is None else [eos_token_id]
        # A prompt shows everything that the expert looks at, so equal prompts may share their place.
        self._shown: dict[tuple[int, ...], tuple[Observation, MemoryView]] = {}

    def runner(self, **arguments: Any) -> EpisodeRunner:
        """An `EpisodeRunner` of this policy; `arguments` are the runner's others."""
        runner = EpisodeRunner(policy=self, tokenizer=self._tokenizer, **arguments)
        runner.prompts = _Recording(runner, self._shown)
        return runner

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """The expert's completion, closed by the end-of-sequence token as a model's would be."""
        observation, view = self._shown[tuple(prompt_ids)]
        text = self._expert.act(observation, view, sampling.seed)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) + self._end
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    async def close(self) -> None:
        """Forget the prompts."""
        self._shown.clear()


class _Recording(PromptBuilder):
    """Notes what each of its prompts shows."""

    def __init__(self, runner: EpisodeRunner, shown: dict[tuple[int, ...], tuple[Observation, MemoryView]]) -> None:
        super().__init__(runner.tokenizer, runner.dialect, runner.memory)
        self._shown = shown

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        prompt_ids = super().build(observation, view)
        self._shown[tuple(prompt_ids)] = (observation, view)
        return prompt_ids

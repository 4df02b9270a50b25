"""The expert as a policy, so that its demonstrations come out of the one loop."""

from __future__ import annotations

from atommem.envs.synthetic.expert import Expert
from atommem.episode import Observation
from atommem.errors import PolicyError
from atommem.memory.log import MemoryView
from atommem.policy.contract import Completion, Sampling
from atommem.tokens import Tokenizer


class ExpertPolicy:
    """Does what the expert does on an observation: a policy that looks at it, and not at its prompt."""

    def __init__(
        self, expert: Expert, tokenizer: Tokenizer, eos_token_id: int | None = None
    ) -> None:
        self._expert = expert
        self._tokenizer = tokenizer
        self._end = [] if eos_token_id is None else [eos_token_id]

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """The expert's completion, closed by the end-of-sequence token as a model's would be."""
        text = self._expert.act(observation, view, sampling.seed)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) + self._end
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Not possible: the expert reads no prompts."""
        raise PolicyError("the expert acts on observations: run it through a Session.")

    async def close(self) -> None:
        """It holds nothing."""
        return

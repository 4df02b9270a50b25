"""A policy that is a function, for experts, demonstrations and tests."""

from __future__ import annotations

from collections.abc import Callable

from atommem.policy.contract import Completion, Sampling
from atommem.tokens import Tokenizer


class ScriptedPolicy:
    """Answer every prompt with ``script(prompt text)``.

    Completions end with `eos_token_id`, if set, so that they can serve as demonstrations.
    Log-probabilities are 0.
    """

    def __init__(
        self, tokenizer: Tokenizer, script: Callable[[str], str], eos_token_id: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._end = [] if eos_token_id is None else [eos_token_id]

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Return the script's answer, cut at `sampling.max_tokens`."""
        text = self._script(self._tokenizer.decode(prompt_ids, skip_special_tokens=False))
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) + self._end
        is_cut = len(token_ids) > sampling.max_tokens
        if is_cut:
            token_ids = token_ids[: sampling.max_tokens]
            text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return Completion(token_ids, [0.0] * len(token_ids), text, "length" if is_cut else "stop")

    async def close(self) -> None:
        """Do nothing."""

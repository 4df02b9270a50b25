"""The policy contract: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol

from atommem.config import setting
from atommem.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is sampled; field names are vLLM's.

    Attributes:
        affinity: Requests with the same value share a prefix; a pool of servers sends them to one
            server for its prefix cache. The episode loop gives the task's id. It never changes the
            sampled tokens.
    """

    temperature: float = setting(0.7, "Sampling temperature; 0 is greedy.")
    top_p: float = setting(1.0, "Nucleus mass; 1 keeps everything.")
    top_k: int = setting(0, "Keep the k most likely tokens; 0 keeps all.")
    max_tokens: int = setting(1024, "Longest completion of a step, tokens.")
    seed: int | None = setting(
        None, "Base seed; every request derives its own. Unset: not reproducible."
    )
    affinity: str | None = None


def check_sampling(sampling: Sampling | Any) -> None:
    """Refuse what no back end can sample; takes whatever has the fields of `Sampling`.

    Raises:
        PolicyError: A value is out of range.
    """
    if not 0 <= sampling.temperature < inf:
        raise PolicyError(
            f"temperature is {sampling.temperature}: give a finite number, 0 (greedy) or more."
        )
    if not 0 < sampling.top_p <= 1:
        raise PolicyError(f"top_p is {sampling.top_p}: give a value above 0, at most 1.")
    if sampling.top_k < 0:
        raise PolicyError(f"top_k is {sampling.top_k}: give 0 (keep all) or more.")
    if sampling.max_tokens < 1:
        raise PolicyError(f"max_tokens is {sampling.max_tokens}: give at least 1.")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy answered.

    `logprobs[i]` is the log-probability (nats) of `token_ids[i]` under the distribution that it was sampled
    from: scaled by the temperature, and over what top-k and top-p left (vLLM's ``processed_logprobs``). At
    temperature 0, which samples nothing, it is the model's own. The closing end-of-sequence token is included
    in both, as it is trained on. Both are empty where a server returns text only (`atommem.policy.chat`); then
    `prompt_tokens` and `completion_tokens` are its counts.
    ``content_filter`` says that the model or its provider refused, and `text` is empty.
    """

    token_ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: Literal["stop", "length", "content_filter"]
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Policy(Protocol):
    """Maps a prompt to a completion.

    One that has ``complete_chat(messages, sampling)`` is asked by that instead, with the messages that the prompt is
    made of (`atommem.policy.chat.ChatPolicy`).
    """

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            OutageError: The back end is out of reach and retries are used up.
            PromptTooLongError: The prompt does not fit the context window.
            PolicyError: The back end refused the request for good.
        """
        ...

    async def close(self) -> None:
        """Free what the policy holds (connections, threads)."""
        ...

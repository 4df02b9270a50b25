"""The policy contract: token ids in, token ids and log-probabilities out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal, Protocol, Self, runtime_checkable

from atommem.config import setting
from atommem.errors import PolicyError, PromptTooLongError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of a completion; field names are vLLM's.

    Requests of one `affinity` (the task id) share a prompt prefix, so a server pool sends them to
    one server for its prefix cache.
    """

    temperature: float = setting(0.7, "Sampling temperature; 0 is greedy.")
    top_p: float = setting(1.0, "Nucleus mass; 1 keeps everything.")
    top_k: int = setting(0, "Keep the k most likely tokens; 0 keeps all.")
    max_completion_length: int = setting(1024, "Longest completion of a step, tokens.")
    seed: int | None = setting(None, "Base of requests' seeds (eval: 0). Unset: not reproducible.")
    affinity: str | None = None

    def __post_init__(self) -> None:
        for name, holds, constraint in (
            ("temperature", 0 <= self.temperature < inf, "must be finite and at least 0"),
            ("top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "must be at least 0 (0 keeps all tokens)"),
            ("max_completion_length", self.max_completion_length >= 1, "must be at least 1"),
        ):
            if not holds:
                raise PolicyError(f"{name}={getattr(self, name)}: {constraint}.")

    def to_request(self) -> dict[str, Any]:
        """Return the settings as vLLM's and OpenAI's requests call them."""
        names = ("temperature", "top_p", "top_k", "seed")
        values = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"max_tokens": self.max_completion_length, **values}

    def for_request(self, key: str, index: int, affinity: str | None = None) -> Self:
        """Return the sampling of request number `index` of the session `key`, with its own seed."""
        seed = None if self.seed is None else derived_seed(f"{self.seed}/{key}/{index}")
        return replace(self, affinity=affinity, seed=seed)


def derived_seed(name: str) -> int:
    """Return a seed of 31 bits that depends on `name`."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True)
class Completion:
    """A policy's completion; a server of texts (`ChatPolicy`) returns token counts, but no ids.

    `logprobs` (nats) are of the distribution that was sampled from, after temperature, top-k and
    top-p (vLLM's ``processed_logprobs``), at temperature 0 the model's own.
    """

    token_ids: list[int]  # with the closing end-of-sequence token, which is trained on
    logprobs: list[float]
    text: str  # empty after content_filter, a refusal
    finish_reason: Literal["stop", "length", "content_filter"]
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    thinking_apart: bool = False  # the server took the thoughts out of the text


class Policy(Protocol):
    """Map a prompt to a completion. It may instead be a `MessagePolicy` or an `ObservationPolicy`.

    If its attribute ``samples_what_waits`` is true, it samples all waiting requests together, in
    this process: prompts are then encoded in the event loop, since threads would hand them over one
    by one, and the first batch would have a single prompt.
    """

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            OutageError: The back end is out of reach and retries are exhausted.
            PromptTooLongError: The prompt does not fit the context window.
            PolicyError: The back end refused the request.
        """

    async def close(self) -> None:
        """Free connections and threads."""
        return


@runtime_checkable
class MessagePolicy(Protocol):
    """A policy of a chat server, which gets messages instead of a prompt."""

    async def complete_chat(self, messages: list[dict[str, str]], sampling: Sampling) -> Completion:
        """Sample one completion; raises as `Policy.complete` does."""


def check_request(prompt_ids: Sequence[int], sampling: Sampling, context: int | None) -> None:
    """Raise PolicyError for an empty prompt, PromptTooLongError for one beyond the context."""
    longest, most = sampling.max_completion_length, context or inf
    if not prompt_ids:
        raise PolicyError("The prompt is empty: give at least one token.")
    if longest >= most:
        raise PolicyError(
            f"max_completion_length={longest}: leaves no room for a prompt in the model's context "
            f"of {context}. Lower it."
        )
    if len(prompt_ids) + longest > most:
        raise PromptTooLongError(
            f"The prompt has {len(prompt_ids)} tokens; with max_completion_length={longest} it "
            f"exceeds the context of {context}. Give a smaller chunk_tokens or "
            "max_completion_length, or a model with a longer context."
        )


def make_completion(
    tokenizer: Any,
    token_ids: list[int],
    logprobs: Sequence[float | None] | None,
    stopped: bool,
    source: str = "the model",
) -> Completion:
    """Decode sampled tokens (`completion_text`); `source` names the back end in errors.

    PolicyError: a log-probability is missing or not finite.
    """
    found = [logprob for logprob in logprobs or () if logprob is not None and isfinite(logprob)]
    if len(found) != len(token_ids) or len(found) != len(logprobs or ()):
        raise PolicyError(
            f"{source} returned {len(found)} finite log-probabilities for {len(token_ids)} tokens. "
            "If the model computes NaN, try another dtype."
        )
    text = completion_text(tokenizer, token_ids, stopped)
    return Completion(token_ids, found, text, "stop" if stopped else "length")


def completion_text(tokenizer: Any, token_ids: Sequence[int], stopped: bool) -> str:
    """Decode a completion without the token that ended it, and without padding.

    Other special tokens stay: they mark thoughts (``[THINK]``) and calls.
    """
    ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id")}
    kept = [token_id for token_id in token_ids if token_id not in ends]
    last = kept[-1:] if stopped and kept[-1:] == list(token_ids[-1:]) else []
    if last and not tokenizer.decode(last, skip_special_tokens=True):
        del kept[-1]  # another token that ends a turn
    return tokenizer.decode(kept, skip_special_tokens=False)

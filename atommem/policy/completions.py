"""What every policy back end checks before it samples, and how it turns token ids into a completion."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, cast

from atommem.errors import PolicyError, PromptTooLongError
from atommem.policy.contract import Completion, Sampling, check_sampling


def check_request(
    prompt_ids: Sequence[int], sampling: Sampling, context_length: int | None
) -> None:
    """Refuse what no back end can sample.

    Args:
        prompt_ids: The prompt.
        sampling: How it is to be sampled.
        context_length: Tokens that prompt and completion may have together; None is unknown.

    Raises:
        PromptTooLongError: The prompt leaves no room for ``sampling.max_tokens``.
        PolicyError: The prompt is empty, a sampling value is out of range, or no prompt would fit.
    """
    if not prompt_ids:
        raise PolicyError("The prompt has no tokens: give at least one.")
    check_sampling(sampling)
    if context_length is None:
        return
    if sampling.max_tokens >= context_length:
        raise PolicyError(
            f"max_tokens is {sampling.max_tokens} and the model's context {context_length}: no prompt would fit."
        )
    if len(prompt_ids) + sampling.max_tokens > context_length:
        raise PromptTooLongError(
            f"The prompt has {len(prompt_ids)} tokens; with max_tokens={sampling.max_tokens} that exceeds the "
            f"context of {context_length}: use shorter chunks, a smaller max_tokens, or a model with a longer context."
        )


def make_completion(
    tokenizer: Any,
    token_ids: list[int],
    logprobs: Sequence[float | None] | None,
    stopped: bool,
    source: str = "the model",
) -> Completion:
    """Decode `token_ids` (special tokens left out of the text, not of the ids).

    Args:
        tokenizer: A transformers tokenizer.
        token_ids: What was sampled, with the closing end-of-sequence token if there was one.
        logprobs: Their log-probabilities, in nats.
        stopped: Whether an end-of-sequence token ended it, rather than max_tokens.
        source: Who sampled, for messages.

    Raises:
        PolicyError: There is not one log-probability for each token, or one is no number: no ratio can be taken of it.
    """
    if logprobs is None or len(logprobs) != len(token_ids):
        count = "no" if logprobs is None else len(logprobs)
        raise PolicyError(
            f"{source} returned {count} log-probabilities for {len(token_ids)} tokens."
        )
    if None in logprobs or not all(map(isfinite, cast(Sequence[float], logprobs))):
        position, logprob = next(
            (i, p) for i, p in enumerate(logprobs) if p is None or not isfinite(p)
        )
        raise PolicyError(
            f"{source} returned the log-probability {logprob} for token {position} of {len(token_ids)}: "
            "the model computes NaN there; try another dtype."
        )
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    return Completion(
        token_ids, cast(list[float], list(logprobs)), text, "stop" if stopped else "length"
    )

"""A vLLM engine in this process: requests of all episodes stream into it as they come."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from atommem.errors import PolicyError
from atommem.policy.completions import check_request, make_completion
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import Adapter


class VllmEnginePolicy:
    """Samples from a `vllm.v1.engine.llm_engine.LLMEngine` with continuous batching.

    One task steps the engine while it has requests; between two steps of the engine, episodes go on and
    hand in new requests. It steps in the thread of the event loop, as the trainer's other uses of the
    device do.

    Args:
        engine: The engine; requests carry token ids only.
        tokenizer: The model's; decodes completions.
    """

    def __init__(self, engine: Any, tokenizer: Any) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.context_length: int = engine.model_config.max_model_len
        self._numbers = count()
        self._adapters = count(1)
        self._lora_request: Any = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._prompt_tokens = self._cached_tokens = 0

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            PromptTooLongError: The prompt leaves no room for ``sampling.max_tokens``.
            PolicyError: A sampling value is out of range, or the engine computed no log-probabilities.
        """
        check_request(prompt_ids, sampling, self.context_length)
        name = str(next(self._numbers))
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        self.engine.add_request(
            name, {"prompt_token_ids": prompt_ids}, sampling_params(sampling), lora_request=self._lora_request
        )
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.get_running_loop().create_task(self._step())
        try:
            output = await future
        finally:
            if self._waiting.pop(name, None) is not None:
                self.engine.abort_request([name])
        return self._read(output)

    def use_adapter(self, adapter: Adapter) -> None:
        """Sample with this LoRA adapter from now on."""
        from vllm.lora.request import LoRARequest

        self._lora_request = LoRARequest(adapter.name, next(self._adapters), adapter.path)

    def take_counts(self) -> dict[str, float]:
        """Prompt tokens since the last call, and those that the prefix cache served."""
        counts = {
            "vllm/prompt_tokens": float(self._prompt_tokens),
            "vllm/prefix_cache_hits": float(self._cached_tokens),
        }
        self._prompt_tokens = self._cached_tokens = 0
        return counts

    async def close(self) -> None:
        """Free the engine."""
        if self._stepping is not None:
            self._stepping.cancel()
        self.engine = None

    async def _step(self) -> None:
        """Step the engine until it has no more requests; what it raises goes to all who wait."""
        try:
            while self._waiting:
                for output in self.engine.step():
                    if output.finished and (future := self._waiting.pop(output.request_id, None)) is not None:
                        future.set_result(output)
                await asyncio.sleep(0)
        except Exception as error:  # whatever it is, it belongs to those who wait for this engine
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            self._waiting.clear()

    def _read(self, output: Any) -> Completion:
        sampled = output.outputs[0]
        token_ids = list(sampled.token_ids)
        self._prompt_tokens += len(output.prompt_token_ids)
        self._cached_tokens += output.num_cached_tokens or 0
        if sampled.logprobs is None or len(sampled.logprobs) != len(token_ids):
            raise PolicyError(f"vLLM returned no log-probability for each of {len(token_ids)} tokens.")
        logprobs = [step[token].logprob for step, token in zip(sampled.logprobs, token_ids, strict=True)]
        return make_completion(self.tokenizer, token_ids, logprobs, sampled.finish_reason == "stop")


def sampling_params(sampling: Sampling) -> Any:
    """vLLM's own, without its defaults from a model's generation_config.json.

    And without a seed: vLLM would sample such requests row by row, and a completion still depends,
    within rounding, on what else is in its batch.
    """
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        logprobs=0,
        detokenize=False,
    )

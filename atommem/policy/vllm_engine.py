"""A vLLM engine in this process, with continuous batching over all episodes."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

from atommem.chat_format import turn_ends
from atommem.errors import PolicyError
from atommem.policy.contract import Completion, Sampling, check_request, make_completion
from atommem.policy.server_pool import Adapter


class VllmEnginePolicy:
    """Sample from a `vllm.v1.engine.llm_engine.LLMEngine`.

    A thread steps the engine while it has requests and adds new ones between steps, because a step
    takes longer than the event loop may block.
    """

    def __init__(self, engine: Any, tokenizer: Any) -> None:
        import torch

        self.tokenizer = tokenizer
        self.context_length: int = engine.model_config.max_model_len
        self._engine = engine
        self._stops = sorted(turn_ends(tokenizer))
        self._numbers = count()
        self._adapters = count(1)
        self._lora_request: Any = None
        self._thread = ThreadPoolExecutor(1, "atommem-engine")
        if torch.cuda.is_available():  # a new thread starts on the first GPU, not on the engine's
            self._thread.submit(torch.cuda.set_device, torch.cuda.current_device())
        # Used in the thread alone.
        self._waiting: dict[str, Future[Completion]] = {}
        self._is_stepping = False

    @property
    def engine(self) -> Any:
        """The engine at rest: waits for pending requests."""
        while self._thread.submit(bool, self._waiting).result():  # behind the next step
            pass
        self._thread.submit(_settle).result()
        return self._engine

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.context_length)
        name = str(next(self._numbers))
        future: Future[Completion] = Future()
        request = name, {"prompt_token_ids": prompt_ids}, sampling_params(sampling, self._stops)
        self._thread.submit(self._add, future, self._lora_request, *request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._thread.submit(self._abort, name)
            raise

    def use_adapter(self, adapter: Adapter) -> None:
        from vllm.lora.request import LoRARequest

        self._lora_request = LoRARequest(adapter.name, next(self._adapters), adapter.path)

    async def close(self) -> None:
        self._thread.submit(self._waiting.clear).result()
        self._thread.shutdown()
        self._engine = None

    # In the thread --------------------------------------------------------------------------------

    def _add(
        self, future: Future[Completion], lora_request: Any, name: str, prompt: Any, params: Any
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if not self._is_stepping:
                _settle()  # raises errors of earlier work on the device
            self._engine.add_request(name, prompt, params, lora_request=lora_request)
        except Exception as error:  # the engine refused this request
            future.set_exception(error)
            return
        self._waiting[name] = future
        if not self._is_stepping:
            self._is_stepping = True
            self._thread.submit(self._step)

    def _step(self) -> None:
        """Step the engine once, and again after the calls that have come meanwhile."""
        try:
            outputs = self._engine.step() if self._waiting else ()
        except Exception as error:  # every pending request gets it
            outputs = ()
            for future in self._waiting.values():
                future.set_exception(error)
            self._waiting.clear()
        for output in outputs:
            if output.finished and output.request_id in self._waiting:
                self._resolve(self._waiting.pop(output.request_id), output)
        self._is_stepping = bool(self._waiting)
        if self._is_stepping:
            self._thread.submit(self._step)

    def _abort(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._engine.abort_request([name])

    def _resolve(self, future: Future[Completion], output: Any) -> None:
        sampled = output.outputs[0]
        token_ids, stopped = list(sampled.token_ids), sampled.finish_reason == "stop"
        steps = zip(sampled.logprobs or (), token_ids, strict=False)
        logprobs = [step[token].logprob for step, token in steps]
        try:
            done = make_completion(self.tokenizer, token_ids, logprobs, stopped, "vLLM")
        except PolicyError as error:
            future.set_exception(error)
        else:
            future.set_result(done)


def _settle() -> None:
    # vLLM uses one CUDA stream per thread: synchronise weight loads and sleep with steps.
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def sampling_params(sampling: Sampling, stop_token_ids: list[int]) -> Any:
    """Convert to vLLM's parameters, without defaults from generation_config.json.

    The seed is dropped: vLLM samples seeded requests row by row, and a completion depends on its
    batch within rounding anyway.
    """
    from vllm import SamplingParams

    values = replace(sampling, seed=None).to_request()
    return SamplingParams(**values, stop_token_ids=stop_token_ids, logprobs=0, detokenize=False)

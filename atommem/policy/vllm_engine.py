"""A vLLM engine in this process, with continuous batching over all episodes."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
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
        self._lock = Lock()  # of the two below
        self._calls: list[Callable[[], None]] = []
        self._stepping: Future[None] | None = None
        # Used in the thread alone.
        self._waiting: dict[str, Future[Completion]] = {}

    @property
    def engine(self) -> Any:
        """The engine at rest: waits for the current step and pending requests."""
        if (stepping := self._stepping) is not None:
            stepping.result()
        return self._engine

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.context_length)
        name = str(next(self._numbers))
        future: Future[Completion] = Future()
        request = name, {"prompt_token_ids": prompt_ids}, sampling_params(sampling, self._stops)
        self._call(partial(self._add, future, self._lora_request, *request))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._call(partial(self._abort, name))
            raise

    def use_adapter(self, adapter: Adapter) -> None:
        from vllm.lora.request import LoRARequest

        self._lora_request = LoRARequest(adapter.name, next(self._adapters), adapter.path)

    async def close(self) -> None:
        self._call(self._waiting.clear)
        self._thread.shutdown()
        self._engine = None

    def _call(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._stepping is None or self._stepping.done():
                self._stepping = self._thread.submit(self._step)

    # In the thread --------------------------------------------------------------------------------

    def _step(self) -> None:
        is_settled = False
        while True:
            with self._lock:
                calls, self._calls = self._calls, []
                if not calls and not self._waiting:
                    _settle()
                    self._stepping = None
                    return
            try:
                for call in calls:
                    call()
                if not is_settled:  # raises errors of earlier work on the device
                    _settle()
                    is_settled = True
                outputs = self._engine.step() if self._waiting else ()
            except Exception as error:  # every pending request gets it
                for future in self._waiting.values():
                    future.set_exception(error)
                self._waiting.clear()
                continue
            for output in outputs:
                if output.finished and output.request_id in self._waiting:
                    self._resolve(self._waiting.pop(output.request_id), output)

    def _add(
        self, future: Future[Completion], lora_request: Any, name: str, prompt: Any, params: Any
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            self._engine.add_request(name, prompt, params, lora_request=lora_request)
        except Exception as error:  # the engine refused this request
            future.set_exception(error)
        else:
            self._waiting[name] = future

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

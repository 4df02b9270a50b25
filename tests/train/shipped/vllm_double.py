"""A stand-in for vLLM that samples with transformers, loses what sleep drops, and records calls.

`install` puts it in place of the package ``vllm``; `with_seeds` sends the seeds of requests, so
that an episode is the same in every process.
"""

import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM

from atommem.policy import vllm_engine
from atommem.policy.contract import Sampling
from atommem.policy.decoding import Row, decode
from atommem.policy.server_pool import ServerPool
from atommem.train.loops.models import loading_whole

calls: list[str] = []  # calls to engines of this process, without repetitions


def record(call: str) -> None:
    if calls[-1:] != [call]:
        calls.append(call)


class LLMEngine:
    def __init__(self, args: Any) -> None:
        record("build")
        assert args.logprobs_mode == "processed_logprobs"
        self.args = args
        with loading_whole():  # as vLLM does, which knows nothing of launchers
            self.model = AutoModelForCausalLM.from_pretrained(
                args.model, dtype=getattr(torch, args.dtype)
            ).eval()
        longest = args.max_model_len or self.model.config.max_position_embeddings
        self.model_config = SimpleNamespace(max_model_len=longest)
        self._awake = {"weights", "kv_cache"}
        self._requests: dict[str, Row] = {}
        self._lora: Any = None  # of the last request
        self._adapter = ""

    @classmethod
    def from_engine_args(cls, args: Any) -> Self:
        return cls(args)

    def sleep(self, level: int) -> None:
        assert self.args.enable_sleep_mode
        record(f"sleep {level}")
        self._awake = set()
        if level == 2:
            for parameter in self.model.parameters():
                parameter.data.fill_(math.nan)

    def wake_up(self, tags: list[str]) -> None:
        record(f"wake {tags[0]}")
        self._awake |= set(tags)

    @torch.no_grad()
    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        assert "weights" in self._awake, "weights were loaded into an engine that sleeps"
        record("load")
        for name, weight in kwargs["weights_iterator"]:
            self.model.get_parameter(name).copy_(weight)

    def reset_prefix_cache(self) -> None:
        record("reset")

    def add_request(
        self, name: str, prompt: Any, sampling_params: Any, lora_request: Any = None
    ) -> None:
        p, seed = sampling_params, getattr(sampling_params, "seed", None)
        sampling = Sampling(p.temperature, p.top_p, p.top_k, p.max_tokens, seed)
        self._requests[name] = Row(prompt["prompt_token_ids"], sampling)
        self._lora = lora_request

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self._requests.pop(name, None)

    def step(self) -> list[Any]:
        record("generate")
        assert self._awake == {"weights", "kv_cache"}, f"only {self._awake} is awake"
        requests, self._requests = self._requests, {}
        if self._lora is not None:
            self._use(*self._lora.args)
        eos = self.model.generation_config.eos_token_id
        stops = {eos} if isinstance(eos, int) else set(eos or ())
        decode(self.model, list(requests.values()), stops, pad_id=0)
        return [self._output(name, row) for name, row in requests.items()]

    def _use(self, adapter: str, number: int, folder: str) -> None:
        if adapter != self._adapter:
            from peft import PeftModel

            base = self.model.unload() if self._adapter else self.model
            self.model = PeftModel.from_pretrained(base, folder).eval()
            self._adapter = adapter

    @staticmethod
    def _output(name: str, row: Row) -> Any:
        logprobs = [
            {token: SimpleNamespace(logprob=logprob, rank=1)}
            for token, logprob in zip(row.token_ids, row.logprobs, strict=True)
        ]
        reason = "stop" if row.stopped else "length"
        sampled = SimpleNamespace(token_ids=row.token_ids, logprobs=logprobs, finish_reason=reason)
        return SimpleNamespace(
            request_id=name, finished=True, prompt_token_ids=row.prompt_ids, outputs=[sampled]
        )


def with_seeds() -> None:
    """Have the seeds of requests handed on to the engine, and to real servers."""
    pool_init = ServerPool.__init__

    def seeding(self: ServerPool, *args: Any, **settings: Any) -> None:
        pool_init(self, *args, **{**settings, "send_seeds": True})

    ServerPool.__init__ = seeding  # type: ignore[method-assign]
    original = vllm_engine.sampling_params

    def seeded(sampling: Sampling, stop_token_ids: list[int]) -> Any:
        params = original(sampling, stop_token_ids)
        params.seed = sampling.seed
        return params

    vllm_engine.sampling_params = seeded


def install(on_cpu: bool = False) -> None:
    """Put the stand-in where ``import vllm`` finds it; `on_cpu` is its platform."""

    def fields(*args: Any, **named: Any) -> SimpleNamespace:
        return SimpleNamespace(args=args, **named)

    module: Any = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.EngineArgs = module.SamplingParams = module.LoRARequest = fields
    module.LLM = module.RequestOutput = None
    module.LLMEngine = LLMEngine
    module.current_platform = SimpleNamespace(is_cpu=lambda: on_cpu)
    module.get_open_port = lambda: 29555
    parts = ["platforms", "utils", "utils.network_utils", "lora", "lora.request"]
    parts += ["v1", "v1.engine", "v1.engine.llm_engine"]
    for name in ["vllm", *(f"vllm.{part}" for part in parts)]:
        sys.modules[name] = module

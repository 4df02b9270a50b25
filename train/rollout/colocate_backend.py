"""Sampling from a vLLM engine inside every training process."""

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel

from atommem.errors import ConfigError
from atommem.policy.server_pool import Adapter
from atommem.policy.vllm_engine import VllmEnginePolicy
from atommem.rollout import EpisodeRunner
from atommem.train.rollout import weight_sync
from atommem.train.rollout.backends import Backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.weight_sync import AdapterPublisher, check_adapter, check_servable
from atommem.train.train_config import TrainConfig

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's; a smaller adapter fits, too


class ColocateBackend(Backend):
    """Samples from an engine that shares the device with the trainer.

    The engine goes to sleep once it is loaded, and torch's cached memory is returned to the device
    before it wakes: there is no room for both. Calls come in the order of TRL's ``VLLMGeneration``.
    `publisher` saves the adapter; None if all weights are trained.
    """

    def __init__(
        self, runner: EpisodeRunner, publisher: AdapterPublisher | None, sleeps: bool
    ) -> None:
        super().__init__(runner)
        self._publisher, self._sleeps = publisher, sleeps
        self._asleep = self._loaded = self._checked = False
        self._adapter: Adapter | None = None
        self._sleep()

    def publish(self, trainer: Any) -> None:
        """Load the current weights, or the adapter, into the engine."""
        self._load_weights(trainer)
        if self._publisher is not None:
            self._adapter, _ = self._publisher.save(trainer)
            self.policy.use_adapter(self._adapter)

    @contextmanager
    def rollout(self, trainer: Any) -> Iterator[None]:
        """Wake the engine; there may be several rollouts between two updates."""
        if self._asleep:
            if not self._loaded:
                self._load_weights(trainer)
            self.policy.engine.wake_up(["kv_cache"])
            self._asleep = False
        if self._adapter is not None and not self._checked:
            if trainer.accelerator.is_main_process:
                asyncio.run(check_adapter(self._adapter, self.policy, self._use))
                self.policy.use_adapter(self._adapter)
            self._checked = True
        yield
        self._sleep()

    async def _use(self, adapter: Adapter) -> None:
        self.policy.use_adapter(adapter)

    def _sleep(self) -> None:
        if self._sleeps:
            # Level 2 drops the weights; the next update does not bring LoRA's base weights.
            self.policy.engine.sleep(2 if self._publisher is None else 1)
            self._asleep, self._loaded = True, False

    def _load_weights(self, trainer: Any) -> None:
        """Restore the engine's weights; current ones where all are trained."""
        engine = self.policy.engine
        if self._asleep:
            clear_device_cache()
            engine.wake_up(["weights"])
        if self._publisher is None:
            # Not the model's `load_weights`: kernels may keep weights in another layout.
            new = {"weights_iterator": weight_sync.named_weights(trainer)}
            engine.collective_rpc("reload_weights", kwargs=new)
            engine.reset_prefix_cache()
        self._loaded = True

    async def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        await super().close()


def clear_device_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def make_colocate_backend(rollouts: Rollouts, model: Any) -> ColocateBackend:
    """Make a backend with an engine of the trained `model` in this process."""
    args: TrainConfig = rollouts.args
    publisher = None
    if isinstance(model, PeftModel):
        check_servable(model)
        publisher = AdapterPublisher(Path(args.output_dir) / "adapters")
    policy = VllmEnginePolicy(make_engine(args, model), rollouts.tokenizer)
    # Engines take different times to load, and collectives have a time limit.
    PartialState().wait_for_everyone()
    return ColocateBackend(rollouts.runner(policy), publisher, args.vllm_enable_sleep_mode)


def make_engine(args: TrainConfig, model: Any) -> Any:
    """Make vLLM's engine of the trained model, with the settings of TRL's colocated engine."""
    adapted = isinstance(model, PeftModel)
    # In this process, not one that vLLM starts: weights are passed in memory.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(single | os.environ)
    try:
        from vllm import EngineArgs
        from vllm.platforms import current_platform
        from vllm.utils.network_utils import get_open_port
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        problem = f"vllm_mode=colocate needs vLLM: pip install -e '.[vllm]' ({error})."
        raise ConfigError(problem) from error
    os.environ.setdefault("MASTER_PORT", str(get_open_port()))
    adapter: dict[str, Any] = {}
    if adapted:
        config = model.peft_config[model.active_adapters[0]]
        rank = max([config.r, *config.rank_pattern.values()])
        fitting = min(size for size in LORA_RANKS if size >= rank)
        adapter = {"enable_lora": True, "max_lora_rank": fitting}
    elif current_platform.is_cpu():  # not the model's device: FSDP2's is still on the CPU here
        raise ConfigError(
            "vllm_mode=colocate: vLLM on CPU cannot take new full weights. Train a LoRA adapter "
            "(use_peft: true), or sample locally (use_vllm: false)."
        )
    # Whole prompts in a batch, and all episodes, unless the user has another limit.
    episodes = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    ours: dict[str, Any] = {
        "max_num_batched_tokens": max(4096, args.vllm_max_model_length or 0),
        "max_num_seqs": max(128, episodes),
        "disable_log_stats": True,
    }
    own = dict(args.vllm_engine_kwargs or {})
    if args.cast_lm_head_to_fp32:  # as in training
        own["hf_overrides"] = {"head_dtype": "float32"} | own.get("hf_overrides", {})
    settings = {
        "model": model.config.name_or_path,
        "revision": (args.model_init_kwargs or {}).get("revision"),
        # What is trained is in float32, which vLLM's fast attention kernels do not take.
        "dtype": "bfloat16" if args.bf16 else str(model.dtype).removeprefix("torch."),
        "max_model_len": args.vllm_max_model_length,
        "gpu_memory_utilization": args.vllm_gpu_memory_utilization,
        "enable_sleep_mode": args.vllm_enable_sleep_mode,
        "model_impl": args.vllm_model_impl,
        "distributed_executor_backend": "external_launcher",
        "logprobs_mode": "processed_logprobs",  # scaled by the temperature, as sampled
        "seed": args.seed + int(os.environ["RANK"]),
    }
    if fixed := sorted(own.keys() & (settings | adapter).keys()):
        raise ConfigError(f"vllm_engine_kwargs: other settings of the run set {fixed[0]}. Drop it.")
    return LLMEngine.from_engine_args(EngineArgs(**ours | own | settings | adapter))

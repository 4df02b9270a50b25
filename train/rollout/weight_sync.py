"""The trained weights as vLLM takes them: LoRA adapters as folders, full weights by name."""

import secrets
import shutil
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from peft import PeftType
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from atommem.errors import ConfigError, OutageError, PolicyError
from atommem.files import let_others_read
from atommem.policy.contract import Sampling
from atommem.policy.server_pool import Adapter
from atommem.train.errors import WRITE_ERRORS

KEPT = 2  # versions of an adapter on disk; late requests may still name the one before the last


class AdapterPublisher:
    """Saves the trained LoRA adapter under a new name for every update.

    vLLM keys its prefix cache by the adapter's name, so a replaced one would get keys and values of
    old weights. Names hold a random number, because a server may have served another run. Requests
    may still name `kept` versions.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder, self._kept = folder.absolute(), kept
        self._run, self._count = "", 0
        self._saved: deque[Adapter] = deque()

    def save(self, trainer: Any) -> tuple[Adapter, list[Adapter]]:
        """Save the current adapter; returns it and deleted versions, the same on every rank."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not self._run:
            check_servable(model)
            self._run = broadcast_object_list([secrets.token_hex(4)])[0]
        self._count += 1
        name = f"atommem-{self._run}-v{self._count}"
        adapter = Adapter(name, str(self.folder / name))
        adapted = [parameter for key, parameter in model.named_parameters() if "lora_" in key]
        problem = ""
        with gathered(adapted):
            try:
                save_adapter(model, trainer.accelerator, Path(adapter.path))
            except WRITE_ERRORS as error:
                problem = f"the adapter could not be written to {adapter.path}: {error}"
        (problem,) = broadcast_object_list([problem])  # the others wait for the one that writes
        if problem:
            raise OutageError(problem)
        self._saved.append(adapter)
        return adapter, self._delete(len(self._saved) - self._kept)

    def close(self) -> list[Adapter]:
        """Delete all folders; returns the versions that were still there."""
        return self._delete(len(self._saved))

    def _delete(self, count: int) -> list[Adapter]:
        oldest = [self._saved.popleft() for _ in range(count)]
        for adapter in oldest:
            shutil.rmtree(adapter.path, ignore_errors=True)
        return oldest


def save_adapter(model: Any, accelerator: Any, folder: Path) -> None:
    """Save the active adapter to a new folder, whole when it appears; all ranks together."""
    name = model.active_adapters[0]
    weights = {
        key: whole(tensor, accelerator.device).cpu()
        for key, tensor in model.state_dict().items()
        if "lora_" in key and f".{name}." in key
    }
    if not accelerator.is_main_process:
        return
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, selected_adapters=[name], state_dict=weights)
    let_others_read(partial)
    # peft gives every adapter but "default" a folder of its own.
    (partial if name == "default" else partial / name).rename(folder)
    shutil.rmtree(partial, ignore_errors=True)


def check_servable(model: Any) -> None:
    """Raise ConfigError if vLLM cannot serve the model's adapter."""
    config = model.peft_config[model.active_adapters[0]]
    targets = str(config.target_modules)
    refused = {
        "peft_type": config.peft_type != PeftType.LORA,
        "modules_to_save": config.modules_to_save,
        "use_dora": config.use_dora,
        "bias": config.bias != "none",
        "target_parameters": config.target_parameters,
        "target_modules": "lm_head" in targets or "embed_tokens" in targets,
    }
    for name in (name for name, is_refused in refused.items() if is_refused):
        raise ConfigError(
            f"{name}={getattr(config, name)}: vLLM cannot serve this adapter. Train a plain LoRA "
            "of linear layers."
        )


class Weight(NamedTuple):
    """A parameter as vLLM knows it, described without gathering it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def describe_weights(trainer: Any) -> list[Weight]:
    """Describe what `named_weights` yields; not collective."""
    # ZeRO-3 leaves the parameter itself empty.
    return [
        Weight(name, parameter.dtype, tuple(getattr(parameter, "ds_shape", parameter.shape)))
        for name, parameter in served_parameters(trainer)
    ]


def named_weights(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter, gathered from all ranks one at a time, under vLLM's name."""
    for name, parameter in served_parameters(trainer):
        with gathered([parameter]):
            yield name, whole(parameter, trainer.accelerator.device)


def served_parameters(trainer: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield parameters by vLLM's names, without those of an adapter."""
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        if "lora_" not in name:
            yield vllm_name(name), parameter


def gathered(parameters: Sequence[torch.nn.Parameter]) -> AbstractContextManager[Any]:
    """Gather parameters that DeepSpeed's ZeRO-3 has sharded; collective."""
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def whole(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return all of a tensor that FSDP2 may have sharded, and offloaded, on the device."""
    tensor = tensor.detach().to(device)
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def vllm_name(name: str) -> str:
    """Return a parameter's name in the checkpoint, without what wrappers and peft add."""
    name = name.removeprefix("module.").removeprefix("base_model.model.")
    for added in ("_checkpoint_wrapped_module.", "_orig_mod.", "base_layer."):
        name = name.replace(added, "")
    return name


# Whether vLLM applies an adapter: it may ignore modules that its model names otherwise (as in a
# vision-language wrapper around a text model), and training then changes nothing that is sampled.

_PROBE = Sampling(temperature=0.0, max_completion_length=8)
_PROBE_IDS = list(range(1, 9))  # a prompt of any vocabulary
STANDARD_DEVIATION = 0.1
"""Of the random weights: they change completions more than rounding, and stay finite."""
LEAST_CHANGE = 1e-3  # nats
_WEIGHTS = "adapter_model.safetensors"


async def check_adapter(
    adapter: Adapter,
    policy: Any,
    load: Callable[[Adapter], Awaitable[None]],
    unload: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Raise PolicyError if a module of `adapter` has no effect on a completion of `policy`.

    `load` makes it use an adapter: this one, then copies with random weights in all modules of one
    name (``q_proj``), beside the adapter's folder.
    """
    weights = load_file(Path(adapter.path) / _WEIGHTS)
    modules: dict[str, list[str]] = defaultdict(list)
    for key in weights:
        if ".lora_B." in key:
            modules[key.partition(".lora_B.")[0].rpartition(".")[2]].append(key)
    await load(adapter)
    expected, ignored = await policy.complete(_PROBE_IDS, _PROBE), list[str]()
    generator = torch.Generator().manual_seed(0)
    for name, keys in modules.items():
        canary = Adapter(f"{adapter.name}-{name}", f"{adapter.path}-{name}")
        shutil.copytree(adapter.path, canary.path)
        noisy = dict(weights)
        for key in keys:
            drawn = STANDARD_DEVIATION * torch.randn(weights[key].shape, generator=generator)
            noisy[key] = drawn.to(weights[key].dtype)
        save_file(noisy, Path(canary.path) / _WEIGHTS)
        try:
            await load(canary)
            found = await policy.complete(_PROBE_IDS, _PROBE)
        finally:
            shutil.rmtree(canary.path)
            if unload is not None:
                await unload(canary.name)
        if found.token_ids == expected.token_ids and np.allclose(
            found.logprobs, expected.logprobs, rtol=0, atol=LEAST_CHANGE
        ):
            ignored += keys
    if ignored:
        raise PolicyError(
            f"vLLM ignores {len(ignored)} of the adapter's weights, such as {ignored[0]}: random "
            "ones change no completion. Its model has other names for these modules, or does not "
            "adapt them. Serve the checkpoint that is trained, or leave them out of "
            "lora_target_modules."
        )

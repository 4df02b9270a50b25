"""A check that vLLM applies the trained LoRA adapter: it may ignore modules without an error.

It does if its model names them otherwise (as in a vision-language wrapper around a text model), and
then training changes nothing that is sampled.
"""

import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from atommem.errors import PolicyError
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import Adapter

PROBE = Sampling(temperature=0.0, max_completion_length=8)
PROBE_IDS = list(range(1, 9))  # a prompt of any vocabulary
STANDARD_DEVIATION = 0.1
"""Of the random weights: they change completions more than rounding, and stay finite."""
LEAST_CHANGE = 1e-3  # nats
_WEIGHTS = "adapter_model.safetensors"


async def check_adapter(
    adapter: Adapter, sample: Callable[[Adapter], Awaitable[Completion]]
) -> None:
    """Raise PolicyError if a module of `adapter` has no effect on what `sample` returns.

    `sample` completes `PROBE_IDS` with `PROBE` and an adapter. It gets copies with random
    weights in all modules of one name (``q_proj``), beside the adapter's folder.
    """
    weights = load_file(Path(adapter.path) / _WEIGHTS)
    modules: dict[str, list[str]] = defaultdict(list)
    for key in weights:
        if ".lora_B." in key:
            modules[key.partition(".lora_B.")[0].rpartition(".")[2]].append(key)
    expected, ignored = await sample(adapter), list[str]()
    generator = torch.Generator().manual_seed(0)
    for name, keys in modules.items():
        canary = Adapter(f"{adapter.name}-{name}", f"{adapter.path}-{name}")
        shutil.copytree(adapter.path, canary.path)
        noise = {
            key: (STANDARD_DEVIATION * torch.randn(weights[key].shape, generator=generator)).to(
                weights[key].dtype
            )
            for key in keys
        }
        save_file(weights | noise, Path(canary.path) / _WEIGHTS)
        try:
            found = await sample(canary)
        finally:
            shutil.rmtree(canary.path)
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

"""Full weights to vLLM servers over NCCL, as TRL sends them to a plain ``vllm serve``. Needs GPUs on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import ServerPool
from atommem.train.rollout.backend import TrainingSide

USE_LORA = "Train a LoRA adapter instead (use_peft: true), with vLLM started with --enable-lora."
SERVER_FLAGS = 'start it as VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config \'{"backend":"nccl"}\''


class FullWeights:
    """A `atommem.train.rollout.server_backend.WeightSync` for models that are trained as a whole.

    A server that is gone when an update begins is left out of its rollout, for it has old weights; it
    gets the next ones. One that breaks while weights are on their way to it stops the run.

    Args:
        timeout: Seconds that a server may take to answer before it is left out.
        connect: Makes the client of a server that can take weights; None when it is gone. For tests.
    """

    def __init__(
        self, timeout: float, connect: Callable[[str, dict[str, Any], float], Any | None] | None = None
    ) -> None:
        self._timeout = timeout
        self._connect = connect or connect_nccl
        self._clients: dict[str, Any] = {}

    def publish(self, trainer: TrainingSide, pool: ServerPool) -> None:
        """Stream every parameter to every server that is up.

        Raises:
            ConfigError: A server, or this machine, cannot take part in NCCL.
            OutageError: No server is up, or one broke while it was given weights.
        """
        urls = self._ready(trainer, pool) if trainer.accelerator.is_main_process else []
        urls = broadcast_object_list([urls])[0]
        if isinstance(urls, ConfigError):
            raise urls
        broken = ""
        for url in urls:
            weights = named_weights(trainer)
            if trainer.accelerator.is_main_process:
                client = self._clients[url]
                try:
                    client.pause()  # and clears the prefix cache, which is of the old weights
                    client.send_weights(weights)
                    client.resume()
                except Exception as error:  # of HTTP or of NCCL: the other ranks are still gathering, and must not hang
                    broken += f"; {url}: {error!r}"
            for _ in weights:  # gathering a parameter takes all ranks
                pass
        if broken:
            raise OutageError(f"servers broke while they were given weights{broken}")
        pool.restrict(urls)
        if not urls:
            raise OutageError(f"no server could be given weights: {', '.join(s.url for s in pool.servers)}")

    async def close(self, pool: ServerPool) -> None:
        """Leave the NCCL groups."""
        for client in self._clients.values():
            client.destroy()
        self._clients.clear()

    def _ready(self, trainer: TrainingSide, pool: ServerPool) -> list[str] | ConfigError:
        """The servers that are up and joined to this process; an error goes to all ranks as a value."""
        description = describe_weights(trainer)
        ready = []
        try:
            for server in pool.servers:
                # One that was dropped may have been started anew: its group is gone, and a new one is made.
                if not server.serving and (old := self._clients.pop(server.url, None)) is not None:
                    old.destroy()
                if not trainer.run_async(server.control.healthy()):
                    self._clients.pop(server.url, None)
                    continue
                if server.url not in self._clients:
                    client = self._connect(server.url, description, self._timeout)
                    if client is None:
                        continue
                    self._clients[server.url] = client
                ready.append(server.url)
        except ConfigError as error:
            return error
        return ready


def connect_nccl(url: str, description: dict[str, Any], timeout: float) -> Any | None:
    """TRL's client of one server, joined to it by NCCL; None when the server is gone.

    Raises:
        ConfigError: The server or this process cannot take full weights.
    """
    import requests
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    client = VLLMClient(url, timeout)
    try:
        info = client.get_server_info()
    except requests.HTTPError as error:
        raise ConfigError(f"{url} does not show its settings ({error}): {SERVER_FLAGS}.") from error
    except requests.RequestException:
        return None
    check_devices(url, info)
    try:
        transfer = WeightTransferClient(client, description, weight_sync_timeout=1800)
    except ImportError as error:
        raise ConfigError(
            f"full weights need vLLM beside the trainer too: pip install 'atommem[serve]'. {USE_LORA}"
        ) from error
    transfer.init_weight_transfer()
    return transfer


def check_devices(url: str, server_info: dict[str, Any]) -> None:
    """Raise ConfigError where NCCL cannot work: on a server or in a process without a GPU."""
    device = str((server_info.get("device_config") or {}).get("device", ""))
    if device == "cpu":
        raise ConfigError(
            f"the vLLM server at {url} runs on CPU, where full weights cannot be sent to it (its backend repacks "
            f"them). {USE_LORA}"
        )
    if not torch.cuda.is_available():
        raise ConfigError(f"full weights go to {url} over NCCL, and this process has no GPU. {USE_LORA}")


def describe_weights(trainer: TrainingSide) -> dict[str, Any]:
    """Names, dtypes and (whole) shapes of what `named_weights` gives, in its order: no collective."""
    names, dtypes, shapes = [], [], []
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        names.append(vllm_name(name))
        dtypes.append(str(parameter.dtype).removeprefix("torch."))
        shapes.append(list(getattr(parameter, "ds_shape", parameter.shape)))  # ZeRO-3 leaves the shape empty
    return {"names": names, "dtype_names": dtypes, "shapes": shapes}


def named_weights(trainer: TrainingSide) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter, gathered whole from all ranks one at a time, under the name that vLLM loads it by.

    Raises:
        ConfigError: The model is sharded by FSDP version 1.
    """
    if trainer._dist.fsdp_version == 1:
        raise ConfigError("weights of FSDP version 1 are not sent to vLLM: use fsdp_version: 2.")
    device = trainer.accelerator.device
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        with trainer._dist.gather_params([parameter]):
            # The shard of an offloaded parameter lies on the CPU; gathering takes it on the device.
            whole: torch.Tensor = parameter.detach().to(device)
            yield vllm_name(name), whole.full_tensor() if isinstance(whole, DTensor) else whole


def vllm_name(name: str) -> str:
    """A parameter's name in the checkpoint: without what wrappers put into it."""
    return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")

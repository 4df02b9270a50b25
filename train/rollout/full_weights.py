"""Full weights to a vLLM server over NCCL, with TRL's client. Needs GPUs on both sides.

One server is supported; `vllm serve --data-parallel-size N` makes one of N engines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import ServerPool

USE_LORA = "Train a LoRA adapter instead (use_peft: true), with vLLM started with --enable-lora."
START_SERVER = (
    "Start it as VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --weight-transfer-config "
    '\'{"backend":"nccl"}\''
)


class FullWeightSync:
    """Sends all parameters of the trained model to a server (a `WeightSync`).

    A server that was lost is connected again before the next update; one that breaks during a
    transfer ends the run.

    Args:
        timeout: Seconds that the server may take to get ready.
        connect: Makes the client; `connect_nccl` but for tests.
    """

    def __init__(self, timeout: float, connect: Callable[..., Any] | None = None) -> None:
        self._timeout = timeout
        self._connect = connect or connect_nccl
        self._client: Any = None

    def publish(self, trainer: Any, pool: ServerPool | None) -> None:
        """Send every parameter; all ranks together, of which only the main one needs a pool.

        Raises:
            ConfigError: The server, or this machine, cannot use NCCL.
            OutageError: The server is gone, or broke during the transfer.
        """
        problem: Exception | None = None
        is_main = trainer.accelerator.is_main_process
        if is_main:
            try:
                self._join(trainer, pool)
            except (ConfigError, OutageError) as error:
                problem = error
        problem = broadcast_object_list([problem])[0]
        if problem is not None:
            raise problem
        weights = _SharedIterator(named_weights(trainer))
        broken: Exception | None = None
        if is_main:
            try:
                self._client.pause()  # also clears the prefix cache of the old weights
                self._client.send_weights(weights)
                self._client.resume()
            except Exception as error:  # the other ranks are still gathering, and must not hang
                broken = error
        for _ in weights:  # gathering a parameter takes all ranks
            pass
        if broken is not None:
            raise OutageError(f"the server broke during a weight transfer: {broken!r}")

    async def close(self, pool: ServerPool) -> None:
        """Leave the NCCL group."""
        self._leave()

    def _join(self, trainer: Any, pool: ServerPool | None) -> None:
        assert pool is not None, "the main process talks to the server"
        if len(pool.servers) > 1:
            raise ConfigError(
                f"vllm_server_base_url has {len(pool.servers)} servers: full weights go to one. "
                f"Use `vllm serve --data-parallel-size`. {USE_LORA}"
            )
        (server,) = pool.servers
        if self._client is not None and server.serving:
            return
        # A server that was dropped may have restarted outside of the NCCL group.
        self._leave()
        self._client = self._connect(server.url, trainer, self._timeout)

    def _leave(self) -> None:
        if self._client is not None:
            self._client.destroy()
        self._client = None


class _SharedIterator:
    """An iterator for the thread that sends, and the one that drains it after an error."""

    def __init__(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        with self._lock:
            return next(self._iterator)


def connect_nccl(url: str, trainer: Any, timeout: float) -> Any:
    """Return TRL's weight transfer client, connected; it sends in the dtype of the server.

    Raises:
        ConfigError: The server or this process cannot transfer full weights.
        OutageError: The server is gone.
    """
    import requests
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    client = VLLMClient(url, timeout)
    try:
        client.wait_for_server_ready()
        check_devices(url, client.get_server_info())
        dtype = client.get_dtype().removeprefix("torch.")
    except requests.HTTPError as error:
        raise ConfigError(f"{url} does not show its settings ({error}). {START_SERVER}.") from error
    except (requests.RequestException, TimeoutError) as error:
        raise OutageError(f"{url} does not answer: {error}") from error
    try:
        transfer = WeightTransferClient(client, describe_weights(trainer, dtype))
        transfer.init_weight_transfer()
    except ImportError as error:
        raise ConfigError(
            f"full weights need vLLM in this process: pip install 'atommem[vllm]'. {USE_LORA}"
        ) from error
    except (RuntimeError, TimeoutError) as error:
        raise OutageError(str(error)) from error
    send = transfer.send_weights
    transfer.send_weights = lambda weights: send(
        (name, weight.to(getattr(torch, dtype))) for name, weight in weights
    )
    return transfer


def check_devices(url: str, server_info: dict[str, Any]) -> None:
    """Raise ConfigError if the server or this process has no GPU."""
    device = str((server_info.get("device_config") or {}).get("device", ""))
    if device == "cpu":
        raise ConfigError(f"{url} runs on CPU, where vLLM cannot take full weights. {USE_LORA}")
    if not torch.cuda.is_available():
        raise ConfigError(f"full weights need a GPU in this process. {USE_LORA}")


def describe_weights(trainer: Any, dtype: str) -> dict[str, Any]:
    """Describe what `named_weights` yields, as TRL's client takes it; not collective."""
    names, shapes = [], []
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        names.append(vllm_name(name))
        # ZeRO-3 leaves the parameter itself empty.
        shapes.append(list(getattr(parameter, "ds_shape", parameter.shape)))
    return {"names": names, "dtype_names": [dtype] * len(names), "shapes": shapes}


def named_weights(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter, gathered from all ranks one at a time, under vLLM's name.

    Raises:
        ConfigError: The model is sharded by FSDP version 1.
    """
    if trainer._dist.fsdp_version == 1:
        raise ConfigError("fsdp_version=1: weights cannot be sent to vLLM. Use fsdp_version: 2.")
    device = trainer.accelerator.device
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        with trainer._dist.gather_params([parameter]):
            # The shard of an offloaded parameter is on the CPU; gathering needs it on the device.
            whole: torch.Tensor = parameter.detach().to(device)
            yield vllm_name(name), whole.full_tensor() if isinstance(whole, DTensor) else whole


def vllm_name(name: str) -> str:
    """Return a parameter's name in the checkpoint, without what wrappers add."""
    name = name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")
    return name.replace("_orig_mod.", "")

"""How vLLM gets the trained weights: LoRA adapters as folders, full weights over NCCL.

Full weights go to one server with TRL's client, which needs GPUs on both sides; `vllm serve
--data-parallel-size N` makes a server of N engines.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor

from atommem.errors import ConfigError, OutageError
from atommem.policy.server_pool import Adapter, ServerPool
from atommem.train.errors import WRITE_ERRORS


class WeightSync(Protocol):
    """Brings the trainer's weights to the servers of a pool; all ranks call it together."""

    def publish(self, trainer: Any, pool: ServerPool | None) -> None:
        """Send the weights; in asynchronous training only the main process has a pool.

        Raises:
            OutageError: No server takes them.
        """
        ...

    async def close(self, pool: ServerPool) -> None:
        """Remove what is left on disk and servers."""
        ...


class AdapterSync:
    """LoRA: the adapter is saved to a folder, and every server loads it under a new name."""

    def __init__(self, publisher: AdapterPublisher) -> None:
        self._publisher = publisher
        self._main = False

    def publish(self, trainer: Any, pool: ServerPool | None) -> None:
        """Save and load the adapter, and unload outdated ones.

        Every rank makes all servers load it: loading twice is a no-op, and ranks need not agree on
        which servers are lost.
        """
        adapter, outdated = self._publisher.save(trainer)
        if pool is None:
            return
        trainer.run_async(pool.use_adapter(adapter))
        self._main = trainer.accelerator.is_main_process
        if self._main:
            for old in outdated:
                trainer.run_async(_unload(pool, old.name))
            self._publisher.remove(outdated)

    async def close(self, pool: ServerPool) -> None:
        """Unload and delete all adapters."""
        if self._main:
            for old in self._publisher.close():
                await _unload(pool, old.name)


async def _unload(pool: ServerPool, name: str) -> None:
    await asyncio.gather(*(server.admin.unload_adapter(name) for server in pool.serving))


KEPT = 2
"""Versions on disk; late requests may still name the one before the last."""


class AdapterPublisher:
    """Saves the trained LoRA adapter under a new name for every update.

    vLLM keys its prefix cache by the adapter's name, so replacing an adapter in place would serve
    attention keys and values of old weights. Names hold a random number of this run, because a
    server may have served another run.

    Args:
        folder: Where the versions go; servers read them there.
        kept: Versions that requests may still name.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder = folder.absolute()
        self._kept = kept
        self._run = ""
        self._count = 0
        self._saved: deque[Adapter] = deque()

    def save(self, trainer: Any) -> tuple[Adapter, list[Adapter]]:
        """Save the current adapter; returns it and outdated versions.

        Collective: every rank gets the same result.

        Raises:
            ConfigError: vLLM cannot serve the adapter.
            OutageError: It cannot be written.
        """
        # Imported here because it takes seconds.
        from trl.experimental.async_grpo.async_grpo_trainer import save_lora_adapter

        model = trainer.accelerator.unwrap_model(trainer.model)
        if not self._run:
            check_servable(model)
            self._run = broadcast_object_list([secrets.token_hex(4)])[0]
        self._count += 1
        name = f"atommem-{self._run}-v{self._count}"
        adapter = Adapter(name, str(self.folder / name))
        adapted = [parameter for key, parameter in model.named_parameters() if "lora_" in key]
        problem = ""
        with trainer._dist.gather_params(adapted):
            try:
                active = model.active_adapters[0]
                save_lora_adapter(model, trainer.accelerator, active, adapter.path)
            except WRITE_ERRORS as error:
                problem = f"the adapter could not be written to {adapter.path}: {error}"
        # The other ranks wait here for the one that writes.
        problem = broadcast_object_list([problem])[0]
        if problem:
            raise OutageError(problem)
        self._saved.append(adapter)
        return adapter, [self._saved.popleft() for _ in range(len(self._saved) - self._kept)]

    def remove(self, adapters: list[Adapter]) -> None:
        """Delete the folders of these versions."""
        for adapter in adapters:
            shutil.rmtree(adapter.path, ignore_errors=True)

    def close(self) -> list[Adapter]:
        """Delete all folders; returns the versions that were still there."""
        left = list(self._saved)
        self._saved.clear()
        self.remove(left)
        return left


def check_servable(model: Any) -> None:
    """Raise ConfigError if vLLM cannot serve the model's adapter (TRL's rules)."""
    from trl.experimental.async_grpo.async_grpo_trainer import validate_lora_for_vllm_sync

    try:
        validate_lora_for_vllm_sync(model)
    except ValueError as error:
        raise ConfigError(f"vLLM cannot serve this adapter: {error}") from error


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


def make_weight_sync(args: Any, lora: bool, kept: int = KEPT) -> WeightSync:
    """Make what sends the trained weights; `kept` versions of an adapter stay loaded."""
    if lora:
        return AdapterSync(AdapterPublisher(Path(args.output_dir) / "adapters", kept))
    return FullWeightSync(args.vllm_server_timeout)

"""Full weights to vLLM servers over NCCL: each parameter is gathered once, and broadcast to all servers together.

The client is TRL's, for a plain ``vllm serve``; that it has several servers, whose workers are the further ranks of one
NCCL group, it is not told. Needs GPUs on both sides.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
        connect: Makes the client of servers that can take weights (`connect_nccl`). For tests.
    """

    def __init__(
        self,
        timeout: float,
        connect: Callable[[Sequence[str], Callable[[str], dict[str, Any]], float], Any]
        | None = None,
    ) -> None:
        self._timeout = timeout
        self._connect = connect or connect_nccl
        self._client: Any = None
        self._joined: list[str] = []

    def publish(self, trainer: TrainingSide, pool: ServerPool | None) -> None:
        """Stream every parameter to every server that is up; all ranks together, also one that has no pool.

        Raises:
            ConfigError: A server, or this machine, cannot take part in NCCL.
            OutageError: No server is up, or one broke while it was given weights.
        """
        joined: list[str] | Exception = []
        if trainer.accelerator.is_main_process:
            assert pool is not None, "the main process talks to the servers"
            joined = self._join(trainer, pool)
        joined = broadcast_object_list([joined])[0]
        if isinstance(joined, Exception):
            raise joined
        broken = None
        weights = _Shared(named_weights(trainer))
        if trainer.accelerator.is_main_process:
            try:
                self._client.pause()  # and clears the prefix cache, which is of the old weights
                self._client.send_weights(weights)
                self._client.resume()
            except Exception as error:  # of HTTP or of NCCL: the other ranks are still gathering, and must not hang
                broken = error
        for _ in weights:  # gathering a parameter takes all ranks
            pass
        if broken is not None:
            raise OutageError(
                f"servers broke while they were given weights; {', '.join(joined)}: {broken!r}"
            )
        if pool is not None:
            trainer.run_async(_restrict(pool, joined))

    async def close(self, pool: ServerPool) -> None:
        """Leave the NCCL group."""
        self._leave()

    def _join(self, trainer: TrainingSide, pool: ServerPool) -> list[str] | Exception:
        """The servers that are up and joined to this process; an error goes to all ranks as a value."""
        trouble: object = "none of them answers"
        for _ in pool.servers:
            up = trainer.run_async(_healthy(pool))
            # One that was dropped may have been started anew: then it has left the group, which is made again.
            if (
                up
                and up == self._joined
                and all(server.serving for server in pool.servers if server.url in up)
            ):
                return up
            self._leave()
            try:
                if up:
                    self._client = self._connect(
                        up, lambda dtype: describe_weights(trainer, dtype), self._timeout
                    )
                    self._joined = up
                    return up
            except ConfigError as error:
                return error
            except OutageError as error:  # one went away meanwhile: the others may do
                trouble = error
        urls = ", ".join(server.url for server in pool.servers)
        return OutageError(f"no server could be given weights ({urls}): {trouble}")

    def _leave(self) -> None:
        if self._client is not None:
            self._client.destroy()
        self._client, self._joined = None, []


class _Shared:
    """An iterator that two threads may ask: the one that sends, and the one that goes on where sending broke off."""

    def __init__(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._iterator = iterator
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        with self._lock:
            return next(self._iterator)


async def _healthy(pool: ServerPool) -> list[str]:
    up = await asyncio.gather(*(server.admin.healthy() for server in pool.servers))
    return [server.url for server, healthy in zip(pool.servers, up, strict=True) if healthy]


async def _restrict(pool: ServerPool, urls: Sequence[str]) -> None:
    pool.restrict(urls)


class Servers:
    """Several of TRL's `VLLMClient`, asked together as if they were one server with the workers of all."""

    def __init__(self, clients: Sequence[Any]) -> None:
        self._clients = clients
        self.server_url = ", ".join(client.server_url for client in clients)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*arguments: Any, **settings: Any) -> None:
            together(
                [partial(getattr(client, name), *arguments, **settings) for client in self._clients]
            )

        return ask

    def get_dtype(self) -> str:
        """The weights' on all of them, e.g. ``torch.bfloat16``.

        Raises:
            ConfigError: They differ: one broadcast has one.
        """
        dtypes = {client.get_dtype() for client in self._clients}
        if len(dtypes) > 1:
            raise ConfigError(
                f"{self.server_url} serve in {sorted(dtypes)}: start all with the same --dtype."
            )
        return str(dtypes.pop())

    def get_world_size(self) -> int:
        """Workers of all of them."""
        return sum(client.get_world_size() for client in self._clients)

    def init_weight_transfer_engine(self, init_info: dict[str, Any], timeout: int = 1800) -> None:
        """Each worker joins the group at a rank of its own."""
        calls, offset = [], init_info["rank_offset"]
        for client in self._clients:
            info = {**init_info, "rank_offset": offset}
            calls.append(partial(client.init_weight_transfer_engine, info, timeout=timeout))
            offset += client.get_world_size()
        together(calls)


def together(calls: Sequence[Callable[[], Any]]) -> None:
    """Make all `calls` at the same time; the first that fails ends the wait: the others may wait for it for ever."""
    ended: queue.Queue[Exception | None] = queue.Queue()

    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # raised below, in the thread that waits
            ended.put(error)
        else:
            ended.put(None)

    for call in calls:
        threading.Thread(target=run, args=(call,), daemon=True).start()
    for _ in calls:
        if (error := ended.get()) is not None:
            raise error


def connect_nccl(
    urls: Sequence[str], describe: Callable[[str], dict[str, Any]], timeout: float
) -> Any:
    """TRL's client of these servers, joined to them by NCCL; what it sends is in their dtype.

    Args:
        urls: The servers.
        describe: `describe_weights`, given a dtype.
        timeout: Seconds that a server may take to get ready.

    Raises:
        ConfigError: A server or this process cannot take full weights.
        OutageError: A server went away.
    """
    import requests
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    clients = [VLLMClient(url, timeout) for url in urls]
    for client in clients:
        try:
            check_devices(client.server_url, client.get_server_info())
        except requests.HTTPError as error:
            raise ConfigError(
                f"{client.server_url} does not show its settings ({error}): {SERVER_FLAGS}."
            ) from error
        except requests.RequestException as error:
            raise OutageError(f"{client.server_url} went away: {error}") from error
    servers = Servers(clients)
    dtype = servers.get_dtype().removeprefix("torch.")
    try:
        transfer = WeightTransferClient(servers, describe(dtype), weight_sync_timeout=1800)
    except ImportError as error:
        raise ConfigError(
            f"full weights need vLLM beside the trainer too: pip install 'atommem[vllm]'. {USE_LORA}"
        ) from error
    try:
        transfer.init_weight_transfer()
    except (RuntimeError, TimeoutError) as error:
        raise OutageError(str(error)) from error
    send = transfer.send_weights
    # Half the bytes, and what the servers would make of them anyway.
    transfer.send_weights = lambda weights: send(
        (name, weight.to(getattr(torch, dtype))) for name, weight in weights
    )
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
        raise ConfigError(
            f"full weights go to {url} over NCCL, and this process has no GPU. {USE_LORA}"
        )


def describe_weights(trainer: TrainingSide, dtype: str) -> dict[str, Any]:
    """Names and (whole) shapes of what `named_weights` gives, in its order, and the dtype that it is sent in: no
    collective."""
    names, shapes = [], []
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        names.append(vllm_name(name))
        shapes.append(
            list(getattr(parameter, "ds_shape", parameter.shape))
        )  # ZeRO-3 leaves the shape empty
    return {"names": names, "dtype_names": [dtype] * len(names), "shapes": shapes}


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
    return (
        name.removeprefix("module.")
        .replace("_checkpoint_wrapped_module.", "")
        .replace("_orig_mod.", "")
    )

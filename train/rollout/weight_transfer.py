"""All trained weights to a vLLM server over NCCL, with vLLM's own trainer-side engine."""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import httpx
import torch

from atommem.errors import ConfigError, OutageError
from atommem.train.rollout.weight_sync import Weight, describe_weights

FULL_WEIGHTS = (
    "For full weights start the server as VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    '--weight-transfer-config \'{"backend":"nccl"}\'; or train a LoRA adapter (use_peft: true), '
    "with servers started with --enable-lora."
)
TRANSFER_SECONDS = 1800.0  # longest request of a transfer


class WeightTransfer:
    """A connection to a server, and vLLM's ``VLLMWeightSyncClient`` and ``WeightSource`` for it."""

    def __init__(self, url: str, weights: list[Weight]) -> None:
        self._http = httpx.Client(base_url=url, timeout=TRANSFER_SECONDS)
        self._described = weights
        self._weights: Iterator[tuple[str, torch.Tensor]] = iter(())
        self._refusal: Future[None] = Future()
        self._engine: Any = None

    def connect(self, timeout: float) -> None:
        """Wait for the server, and join its workers in an NCCL group."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        from vllm.utils.network_utils import get_ip, get_open_port

        end = time.monotonic() + timeout
        while True:
            try:
                self._http.get("/health", timeout=5.0).raise_for_status()
                break
            except httpx.HTTPError:
                if time.monotonic() > end:
                    raise
            time.sleep(1.0)
        size = 1 + self._http.get("/get_world_size").raise_for_status().json()["world_size"]
        info = NCCLTrainerInitInfo(get_ip(), get_open_port(), size, rank=0)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=self, source=self)

    def send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Replace the server's weights, and its prefix cache, between two of its steps."""
        self._weights, self._refusal = weights, Future()
        self._http.post("/pause", params={"mode": "keep"}).raise_for_status()
        # In a thread: NCCL would wait for ever for a server that refused.
        pool = ThreadPoolExecutor(1)
        sending = pool.submit(self._engine.send_weights)
        pool.shutdown(wait=False)
        for done in wait((sending, self._refusal), return_when=FIRST_COMPLETED).done:
            done.result()
        self._post("/resume")

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._http.close()

    def _post(self, route: str, **body: Any) -> None:
        self._http.post(route, json=body).raise_for_status()

    # vLLM's WeightSource --------------------------------------------------------------------------

    def metadata(self) -> list[Weight]:
        return self._described

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._weights

    # vLLM's VLLMWeightSyncClient ------------------------------------------------------------------

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("/init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        try:
            self._post("/update_weights", update_info=update_info)
        except httpx.HTTPError as error:
            self._refusal.set_exception(error)
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update", weight_version=weight_version)


def connect_nccl(url: str, trainer: Any, timeout: float) -> WeightTransfer:
    """Return a connected transfer to the server at `url`."""
    if not torch.cuda.is_available():
        raise ConfigError(f"{url}: NCCL needs GPUs on both sides. {FULL_WEIGHTS}")
    transfer = WeightTransfer(url, describe_weights(trainer))
    try:
        transfer.connect(timeout)
    except ImportError as error:
        raise ConfigError(f"full weights need vLLM in this process: {error}") from error
    except (OSError, RuntimeError, httpx.HTTPError) as error:
        raise OutageError(f"{url}: {error}. {FULL_WEIGHTS}") from error
    return transfer

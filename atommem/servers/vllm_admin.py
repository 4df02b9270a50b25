"""Administer a running vLLM server: health, metrics, LoRA adapters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from atommem.errors import OutageError, PolicyError
from atommem.servers.client import ClientOptions, RefusedError, ServerClient

if TYPE_CHECKING:
    import httpx

HEALTH_SECONDS = 5.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)", re.MULTILINE)


class VllmAdmin:
    """Call a server's administrative endpoints, without retries: callers decide whether to wait.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        timeout: Seconds that loading an adapter may take.
        transport: An httpx transport, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 300.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        def client(seconds: float) -> ServerClient:
            options = ClientOptions(timeout=seconds, retries=0, transport=transport)
            return ServerClient(base_url, service="policy", **options)

        self._client, self._health = client(timeout), client(HEALTH_SECONDS)
        self.base_url = self._client.base_url

    async def healthy(self) -> bool:
        """Return whether the server and its engine answer."""
        try:
            await self._health.get_text("/health")
        except (OutageError, RefusedError):
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Return the values of ``/metrics`` by name, summed over engines and models.

        Raises:
            OutageError: The server is out of reach.
        """
        try:
            return parse_metrics(await self._health.get_text("/metrics"))
        except RefusedError as error:
            raise OutageError(
                f"{self.base_url}/metrics: {error}. Start vLLM without --disable-log-stats."
            ) from error

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the LoRA adapter in folder `path` as model `name`; loading it twice is allowed.

        Raises:
            OutageError: The server is out of reach.
            PolicyError: The server does not take adapters, or cannot load this one.
        """
        try:
            body = {"lora_name": name, "lora_path": path}
            await self._client.post_text("/v1/load_lora_adapter", body)
        except RefusedError as error:
            if error.status == 400 and "already been" in error.message:
                return
            if error.status == 404 and "Not Found" in error.message:
                raise PolicyError(
                    f"{self.base_url} has no /v1/load_lora_adapter. Start vLLM with --enable-lora "
                    "and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment."
                ) from error
            raise PolicyError(
                f"{self.base_url} could not load the adapter in {path} ({error}). The server must "
                "see "
                "this folder, and its --max-lora-rank must be at least the adapter's rank."
            ) from error

    async def unload_adapter(self, name: str) -> None:
        """Unload the adapter `name`. Errors are ignored: the adapter may already be gone."""
        try:
            await self._client.post_text("/v1/unload_lora_adapter", {"lora_name": name})
        except (OutageError, RefusedError):
            return

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()
        await self._health.close()


def parse_metrics(text: str) -> dict[str, float]:
    """Sum each metric of the Prometheus text format over its label sets."""
    totals: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        totals[match["name"]] = totals.get(match["name"], 0.0) + float(match["value"])
    return totals

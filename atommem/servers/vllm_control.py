"""What a vLLM server offers beside completions: health, metrics, and adapters that come and go while it runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from atommem.errors import OutageError, PolicyError
from atommem.servers.client import RefusedError, ServerClient

if TYPE_CHECKING:
    import httpx

HEALTH_SECONDS = 5.0
"""In which a server that is alive says so."""
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)", re.MULTILINE)


class VllmControl:
    """One vLLM server's endpoints for who runs it.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        timeout: Seconds that loading an adapter may take.
        transport: An httpx transport, for tests.

    Raises:
        ConfigError: `base_url` is no http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 300.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        # Nothing is repeated here: who calls decides whether a server that fails is waited for.
        common: dict[str, Any] = {
            "service": "policy",
            "retries": 0,
            "max_in_flight": 8,
            "transport": transport,
        }
        self._client = ServerClient(base_url, timeout=timeout, **common)
        self._health = ServerClient(base_url, timeout=HEALTH_SECONDS, **common)
        self.base_url = self._client.base_url

    async def healthy(self) -> bool:
        """Whether the server and its engine answer now."""
        try:
            await self._health.get_text("/health")
        except (OutageError, RefusedError):
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """The figures of ``/metrics`` by name, summed over engines and models.

        Raises:
            OutageError: The server is out of reach.
        """
        try:
            return parse_metrics(await self._health.get_text("/metrics"))
        except RefusedError as error:
            raise OutageError(
                f"{self.base_url}/metrics: {error}: start vLLM without --disable-log-stats."
            ) from error

    async def load_adapter(self, name: str, path: str) -> None:
        """Make the LoRA adapter in the folder `path` available as model `name`. Twice is no error.

        Raises:
            OutageError: The server is out of reach.
            PolicyError: It takes no adapters, or cannot load this one.
        """
        try:
            await self._client.post_text(
                "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}
            )
        except RefusedError as error:
            if error.status == 400 and "already been" in error.message:
                return
            if error.status == 404 and "Not Found" in error.message:
                raise PolicyError(
                    f"{self.base_url} has no /v1/load_lora_adapter: start vLLM with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment."
                ) from error
            raise PolicyError(
                f"{self.base_url} could not load the adapter in {path} ({error}): the server must see this folder, "
                "and its --max-lora-rank must be at least the adapter's rank."
            ) from error

    async def unload_adapter(self, name: str) -> None:
        """Forget the adapter `name`; a server that does not know it, or is gone, is none the worse."""
        try:
            await self._client.post_text("/v1/unload_lora_adapter", {"lora_name": name})
        except (OutageError, RefusedError):
            return

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()
        await self._health.close()


def parse_metrics(text: str) -> dict[str, float]:
    """Sum over all label sets of each metric in the Prometheus text format; comments are skipped."""
    totals: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        totals[match["name"]] = totals.get(match["name"], 0.0) + float(match["value"])
    return totals

"""A search engine or reader that is asked over HTTP, and whose fault it is when it does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote_plus

from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.tools import PageError, ToolSource
from atommem.envs.web.web_config import WebConfig
from atommem.errors import ConfigError, OutageError
from atommem.servers.client import (
    OversizeError,
    RefusedError,
    ServerClient,
    Service,
    is_loopback,
    key_variable,
)

_HEALTH_SECONDS = 10.0
_OF_THE_CALL = (400, 409, 413, 414, 415, 422, 431, 451)
"""Statuses that a provider has for a query that it does not take, or a page that it cannot get."""


class Provider:
    """One provider.

    Args:
        config: Settings of tools.
        service: Its name, which is also that of its key (``ATOMMEM_SERPER_API_KEY``).
        base_url: Where it is.
        headers: Sent with every request.
    """

    def __init__(
        self,
        config: WebConfig,
        service: Service,
        base_url: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.service = service
        self._client = ServerClient(
            base_url,
            service=service,
            timeout=config.tool_seconds,
            retries=config.tool_retries,
            max_in_flight=config.tool_requests,
            headers=headers,
            max_bytes=int(config.page_megabytes * 1e6),
        )

    async def get(self, path: str) -> Any:
        """GET. Raises as `post` does."""
        return await self._answer(self._client.get(path), path)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST `body` as JSON and return the JSON that comes back.

        Raises:
            PageError: This one query or page is refused, or what it gives is larger than ``page_megabytes``.
            OutageError: The provider is gone, overloaded after its retries, or refuses the key.
        """
        return await self._answer(self._client.post(path, body), str(body))

    @contextmanager
    def reading(self, answer: Any) -> Iterator[None]:
        """Within it, `answer` is taken apart: one that is not as its documentation has it is an outage."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
            said = f"{self._client.base_url} gives no {self.service} answer: {str(answer)[:200]}."
            raise OutageError(said) from error

    async def breaks_at(self, error: OutageError, control: Callable[[], Awaitable[Any]]) -> bool:
        """Whether an outage is one call's: the provider answered it with 5xx, and answers `control`, made now.

        A query or an address that breaks a provider is as easy to write as any other: whoever could have outages by it
        would not be scored.
        """
        if error.status is None or error.status < 500:
            return False
        try:
            await control()
        except (OutageError, PageError):
            return False
        return True

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def _answer(self, request: Awaitable[Any], asked: str) -> Any:
        try:
            return await request
        except OversizeError as error:
            raise PageError(f"{self.service} gives {error.message}.") from error
        except RefusedError as error:
            if error.status in _OF_THE_CALL and not error.of_account(unquote_plus(asked)):
                raise PageError(f"{error.message[:300]} ({error.status})", error.status) from error
            raise OutageError(
                f"{self._client.base_url} refuses {self.service} requests ({error}): check "
                f"{key_variable(self.service)}, the account and the URL."
            ) from error


class ProviderSource(ToolSource):
    """Tools of one provider: what may not be visited is neither asked for nor shown."""

    def __init__(
        self, config: Any, service: Service, base_url: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(config)
        self._hosts = HostRules.of(config)
        self._provider = Provider(config, service, base_url, headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._provider.close()


def served(config: WebConfig, service: Service, url: str) -> str:
    """What answers at `url`, for a cassette's keys: with the version of its contents where calls are recorded and the
    server tells it (``GET /health``, as ours does).

    Raises:
        ConfigError: Calls are recorded, and it is out of reach.
    """
    backend = f"{service} {url}"
    if config.cassette is None:
        return backend
    from atommem.envs.web.net.cassette import told

    def ask() -> str:
        import httpx

        try:
            # As its other requests: to this machine by no proxy, whatever the environment says.
            place, proxied = f"{url.rstrip('/').removesuffix('/v1')}/health", not is_loopback(url)
            answer = httpx.get(place, timeout=_HEALTH_SECONDS, trust_env=proxied)
            return str(answer.json()["version"]) if answer.is_success else ""
        except httpx.TransportError as error:
            raise ConfigError(
                f"{url} is out of reach ({error!r}): start it, or correct the URL."
            ) from error
        except (ValueError, LookupError, TypeError):
            return ""

    version = told(config, "health", backend, ask)
    return f"{backend} {version}" if version else backend

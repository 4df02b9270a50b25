"""A search engine or reader that is asked over HTTP, and whose fault a failure is."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from atommem.envs.web.net.hosts import HostRules
from atommem.envs.web.tools import PageError, ToolSource
from atommem.errors import OutageError
from atommem.servers.client import (
    OversizeError,
    RefusedError,
    ServerClient,
    Service,
    key_variable,
)

_REQUEST_STATUSES = (400, 409, 413, 414, 415, 422, 431, 451)
"""Statuses that concern one query or page, and not the provider as a whole."""


class ProviderSource(ToolSource):
    """Tools of one provider.

    Attributes:
        service: The provider's name, also of its key (``ATOMMEM_SERPER_API_KEY``).

    Raises:
        ConfigError: The URL is invalid, or the key may not be sent there.
    """

    service: ClassVar[Service]

    def __init__(self, config: Any, url: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(config)
        self.backend = f"{self.service} {url}"
        self._url = url
        self._hosts = HostRules.of(config)
        self._client = ServerClient(
            url,
            service=self.service,
            timeout=config.tool_seconds,
            retries=config.tool_retries,
            max_in_flight=config.tool_requests,
            headers=headers,
            max_bytes=int(config.page_megabytes * 1e6),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _get(self, path: str) -> Any:
        """Return the JSON at `path`. Raises as `_post` does."""
        return await self._ask(self._client.get(path), path)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        """Post `body` and return the JSON of the response.

        Raises:
            PageError: This query or page is refused, or its result exceeds ``page_megabytes``.
            OutageError: The provider is out of reach, overloaded after retries, or refuses the key.
        """
        return await self._ask(self._client.post(path, body), str(body))

    async def _ask(self, request: Awaitable[Any], sent: str) -> Any:
        try:
            return await request
        except OversizeError as error:
            raise PageError(f"{self.service} returned {error.message}.") from error
        except RefusedError as error:
            if error.status in _REQUEST_STATUSES and not error.of_account(sent):
                raise PageError(f"{error.message[:300]} ({error.status})", error.status) from error
            raise OutageError(
                f"{self._url} refuses {self.service} requests ({error}): check "
                f"{key_variable(self.service)}, the account and the URL."
            ) from error

    @contextmanager
    def _parsing(self, answer: Any) -> Iterator[None]:
        """Turn errors of reading a malformed `answer` into an outage."""
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
            raise OutageError(
                f"{self._url} does not answer as {self.service} does: {str(answer)[:200]}."
            ) from error

    def _check_host(self, name: str) -> None:
        if not self._hosts.allows(name):
            raise PageError(f"{name} may not be visited.")

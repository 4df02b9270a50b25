"""Which API key a server gets: one per service, and never in plain text over a network."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit

from atommem.config import is_loopback
from atommem.errors import ConfigError

Service = Literal["policy", "embedder", "judge", "serper", "searxng", "retrieve", "access", "jina"]
PLAIN_HTTP = "ATOMMEM_ALLOW_KEYS_OVER_HTTP"


def key_variable(service: Service) -> str:
    """The environment variable with the key of `service` (``ATOMMEM_POLICY_API_KEY``, ...)."""
    return f"ATOMMEM_{service.upper()}_API_KEY"


def api_key(service: Service, base_url: str) -> str | None:
    """The key that requests to `base_url` carry, or None.

    It comes from the service's own variable and from no other: OPENAI_API_KEY is meant for another host. Over plain
    http a key goes to this machine alone, unless ATOMMEM_ALLOW_KEYS_OVER_HTTP is 1 (a network of one's own).

    Raises:
        ConfigError: The service has a key of its own, and `base_url` is plain http to another machine.
    """
    variable = key_variable(service)
    own = os.environ.get(variable, "").strip()
    if (
        urlsplit(base_url).scheme != "https"
        and own
        and not is_loopback(base_url)
        and os.environ.get(PLAIN_HTTP) != "1"
    ):
        raise ConfigError(
            f"{variable} is set, and {base_url} is plain http to another machine, where anyone on the way could read "
            f"it: give an https URL or a tunnel to this machine, unset {variable} if the server wants no key, or set "
            f"{PLAIN_HTTP}=1 if the network is yours alone."
        )
    return own or None


def key_header(service: Service, key: str | None) -> dict[str, str]:
    """The header that carries a key: Serper has its own, all others take a bearer token."""
    if key is None:
        return {}
    return {"X-API-KEY": key} if service == "serper" else {"Authorization": f"Bearer {key}"}

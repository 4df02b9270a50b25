"""Checks before every request (host, origin, bearer key), and the request log."""

import asyncio
import hmac
import json
import logging
import os
import re
import secrets
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atommem.errors import ConfigError
from atommem.serve.served_model import STAGES
from atommem.serve.wire import error_response

LOGGER = logging.getLogger("atommem.serve")
REQUESTS = Counter("atommem_requests", "Requests", ["route", "status"])
LOCAL = "local"  # owner of everything on a server without keys, which listens on this machine only
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
KEYS_VARIABLE = "ATOMMEM_SERVE_KEYS"
_PUBLIC = ("/", "/health", "/ready", "/ui")
_KEY_LINE = re.compile(r"(?P<owner>[^=]{1,64}?) *= *(?P<key>[!-~]{16,})")


def load_keys(path: str | None = None) -> dict[str, str]:
    """Load the owner of each key, from a file or else from ``ATOMMEM_SERVE_KEYS``.

    Either has lines ``OWNER=KEY`` (in the variable also separated by commas).
    """
    if path is None:
        name, text = KEYS_VARIABLE, os.environ.get(KEYS_VARIABLE, "").replace(",", "\n")
    else:
        name = f"keys={path}"
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: cannot read the file ({error}).") from error
    owners: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _KEY_LINE.fullmatch(line.strip())
        if found is None or found["key"] in owners:
            raise ConfigError(
                f"{name}, line {number}: not OWNER=KEY with a key of its own of at least 16 ASCII "
                "characters. Make a key with: openssl rand -hex 32"
            )
        owners[found["key"]] = found["owner"]
    if not owners and (path is not None or text):
        raise ConfigError(f"{name}: has no line OWNER=KEY.")
    return owners


class RequestMiddleware:
    """ASGI middleware that checks requests, sets ``scope["state"]["owner"]`` and logs.

    Without `keys` everything belongs to `LOCAL`; `hosts` are names of this server, ``*`` is any.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str], hosts: Sequence[str]) -> None:
        self._app = app
        self._keys = [(key.encode(), owner) for key, owner in keys.items()]
        self._hosts = {*LOOPBACK, *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status, request_id = time.perf_counter(), 0, secrets.token_hex(8)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        location: dict[str, Any] = {}
        try:
            app = self._check(scope) or self._app
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # the drain is over
            if not status:
                message = "the server restarts. Try again later."
                await error_response(503, "server_restarts", message)(scope, receive, send_with_id)
            raise
        except Exception as error:
            location = error_location(error)
            if not status:
                failed = error_response(500, "server_error", "the server failed.")
                await failed(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "none")
            REQUESTS.labels(route, str(status)).inc()
            STAGES.labels("request").observe(seconds)
            line = {
                "event": "request",
                "id": request_id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "owner": scope.get("state", {}).get("owner"),
            }
            LOGGER.log(logging.ERROR if location else logging.INFO, line | location)

    def _check(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if "*" not in self._hosts and name not in self._hosts:
            message = "this server is not known by this name. Add it with --hosts."
            return error_response(421, "wrong_host", message)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host:
            message = "pages of other sites may not send requests to this server."
            return error_response(403, "wrong_origin", message)
        owner = self._owner(headers.get("authorization", ""))
        public = scope["path"] in _PUBLIC or scope["path"].startswith("/ui/")
        if owner is None and not public:
            message = "the key is missing or unknown. Send Authorization: Bearer KEY."
            return error_response(401, "invalid_api_key", message)
        scope.setdefault("state", {})["owner"] = owner
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and has_body and not kind.endswith("json"):
            message = "the body must be JSON. Send Content-Type: application/json."
            return error_response(415, "not_json", message)
        return None

    def _owner(self, authorization: str) -> str | None:
        """Return the owner of the key; the time does not depend on how much of it is right."""
        if not self._keys:
            return LOCAL
        scheme, _, key = authorization.partition(" ")
        sent = key.encode() if scheme.lower() == "bearer" else b""
        equal = [owner for key, owner in self._keys if hmac.compare_digest(key, sent)]
        return next(iter(equal), None)


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines, without messages of exceptions: they may quote clients."""

    def format(self, record: Any) -> str:
        head = {"time": round(record.created, 3), "level": record.levelname.lower()}
        return json.dumps({**head, **record.msg})


def error_location(error: Exception) -> dict[str, Any]:
    """Return type and place of an exception, for the log."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames]
    return {"error": type(error).__name__, "at": places}

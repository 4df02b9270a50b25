"""What stands before every request: host and origin, key, rate and size; and its line in the log."""

from __future__ import annotations

import json
import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atommem.serve.api_keys import Key, Keys
from atommem.serve.conversations import Conversations
from atommem.serve.wire import error_response

LOGGER = logging.getLogger("atommem.serve")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_OPEN = ("/health", "/ready", "/ui")
"""Asked without a key: by who runs the server, and for the page, which asks for the key itself."""
KEY_SECONDS = 1.0
"""How long a key that was found is not looked up again: so long may one go on that was revoked."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what comes in.

    Attributes:
        hosts: Names by which the server may be called, besides this machine's; ``*`` is any.
        requests_per_minute: Of a key that has no rate of its own; None is unlimited.
        max_body_bytes: Of one request likewise.
    """

    hosts: tuple[str, ...] = ()
    requests_per_minute: int | None = 600
    max_body_bytes: int = 8_000_000


class Rates:
    """How often each key has asked: a bucket that fills evenly, and holds a minute's requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, key: str, per_minute: int) -> float:
        """Seconds until `key` may ask; 0 is now, and counts."""
        now = self._clock()
        left, then = self._left.get(key, (float(per_minute), now))
        left = min(float(per_minute), left + (now - then) * per_minute / 60)
        if left < 1:
            self._left[key] = left, now
            return (1 - left) * 60 / per_minute
        self._left[key] = left - 1, now
        return 0.0


class Guard:
    """ASGI middleware. Whatever it lets through has an owner in ``scope["state"]``."""

    def __init__(self, app: ASGIApp, conversations: Conversations, limits: Limits) -> None:
        self._app = app
        self._conversations = conversations
        self._keys = Keys(conversations.log)
        self._limits = limits
        self._rates = Rates()
        self._known: dict[str, tuple[Key, float]] = {}
        self._hosts = {*LOOPBACK, *(host.lower() for host in limits.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and log it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status, number = time.perf_counter(), 500, secrets.token_hex(8)
        begun = False

        async def noted(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                begun, status = True, message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", number.encode()),
                ]
            await send(message)

        key: Key | None = None
        error = None
        try:
            refused, key = await self._admitted(scope)
            if refused is None:
                assert key is not None
                scope.setdefault("state", {})["owner"] = key.owner
                most = key.max_body_bytes or self._limits.max_body_bytes
                await self._app(scope, _bounded(receive, most), noted)
            else:
                await refused(scope, receive, noted)
        except Exception as raised:
            error = raised
            if not begun:
                await _refusal(500, "server_error", "the server failed.")(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "none")
            self._conversations.metrics.answered(route, status, seconds)
            _log(scope["method"], route, status, seconds, key, number, error)

    async def _admitted(
        self, scope: Scope
    ) -> tuple[Callable[..., Awaitable[None]] | None, Key | None]:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        host = headers.get("host", "").lower()
        if "*" not in self._hosts and _name(host) not in self._hosts:
            return _refusal(
                421, "wrong_host", "this server is not called by this name (--hosts)."
            ), None
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host:
            return _refusal(
                403, "wrong_origin", "pages of other sites may not ask this server."
            ), None
        if scope["path"] in _OPEN or scope["path"].startswith("/ui/"):
            return None, Key("none", "")
        kind, _, token = headers.get("authorization", "").partition(" ")
        token = token if kind.lower() == "bearer" else ""
        key = await self._key(token)
        if key is None:
            return _refusal(
                401, "invalid_api_key", "the key is missing or unknown: Authorization: Bearer KEY."
            ), None
        rate = key.requests_per_minute or self._limits.requests_per_minute
        if rate and (wait := self._rates.wait(key.id, rate)):
            return _refusal(
                429, "rate_limit_exceeded", f"this key may ask {rate} times a minute.", wait
            ), key
        return None, key

    async def _key(self, token: str) -> Key | None:
        known, ends = self._known.get(token, (None, 0.0))
        if known is not None and time.monotonic() < ends:
            return known
        if len(self._known) > 10_000:
            self._known.clear()
        key = await self._conversations.in_thread(self._keys.find, token)
        if key is not None:
            self._known[token] = key, time.monotonic() + KEY_SECONDS
        return key


def _bounded(receive: Receive, most: int) -> Receive:
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise HTTPException(413, "the request's body is too large.")
        return message

    return bounded


def _name(host: str) -> str:
    """A Host header without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _refusal(status: int, code: str, message: str, wait: float | None = None) -> Response:
    response = error_response(status, code, message)
    if wait is not None:
        response.headers["Retry-After"] = str(max(1, round(wait + 0.5)))
    return response


class JsonLines(logging.Formatter):
    """One JSON object a line. What was raised is told by its type and place: its words may be a user's."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        line |= record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
        return json.dumps(line)


def told(error: Exception) -> dict[str, Any]:
    """What was raised, and where."""
    places = traceback.extract_tb(error.__traceback__)
    return {
        "error": type(error).__name__,
        "at": [f"{place.filename}:{place.lineno}" for place in places[-5:]],
    }


def _log(
    method: str,
    route: str,
    status: int,
    seconds: float,
    key: Key | None,
    number: str,
    error: Exception | None,
) -> None:
    line: dict[str, Any] = {
        "event": "request",
        "id": number,
        "method": method,
        "route": route,
        "status": status,
    }
    line |= {"seconds": round(seconds, 4), "key": None if key is None else key.id}
    if error is not None:
        line |= told(error)
    LOGGER.log(logging.ERROR if error is not None else logging.INFO, line)

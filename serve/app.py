"""The application: routes, what guards them, and what errors become."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from atommem.errors import (
    AtomMemError,
    ConfigError,
    DataError,
    OutageError,
    PolicyError,
    PromptTooLongError,
)
from atommem.garbage import frozen_heap
from atommem.serve import memory_routes, openai_routes, ui_routes
from atommem.serve.conversations import Conversations
from atommem.serve.guard import Guard, Limits
from atommem.serve.log_rows import ConflictError, KeyReusedError, NotFoundError
from atommem.serve.logged_session import MovedError
from atommem.serve.mcp_server import make_mcp, mcp_routes
from atommem.serve.shared import BusyError
from atommem.serve.streaming import GoneError
from atommem.serve.wire import error_response
from atommem.session import TurnTimeoutError

_STATUS: list[tuple[type[Exception], int, str]] = [
    (NotFoundError, 404, "not_found"),
    (MovedError, 409, "checkpoint_differs"),
    (BusyError, 429, "too_busy"),
    (ConflictError, 409, "conflict"),
    (KeyReusedError, 422, "idempotency_key_reused"),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (DataError, 400, "invalid_request"),
    (ConfigError, 400, "invalid_request"),
    (OutageError, 503, "policy_out_of_reach"),
    (TurnTimeoutError, 503, "policy_too_slow"),
    (PolicyError, 502, "policy_refuses"),
]
"""The first that fits."""


def make_app(conversations: Conversations, limits: Limits | None = None) -> FastAPI:
    """The server of `conversations`, which are closed when it ends."""
    mcp = make_mcp(conversations)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with mcp.session_manager.run():
            app.state.ready = True
            yield
            app.state.ready = False
        await conversations.close()

    app = FastAPI(
        title="AtomMem",
        version=version("atommem"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.conversations = conversations
    app.state.ready = False
    for router in (
        openai_routes.router,
        memory_routes.router,
        memory_routes.others,
        ui_routes.router,
    ):
        app.include_router(router)
    app.router.routes.extend(mcp_routes(mcp))

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Whether it should get requests: not before it has started, and not while it drains."""
        return JSONResponse({"ready": app.state.ready}, 200 if app.state.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text."""
        return Response(conversations.metrics.text(), media_type="text/plain; version=0.0.4")

    for kind, status, code in _STATUS:
        app.add_exception_handler(kind, _handler(status, code))
    app.add_exception_handler(AtomMemError, _handler(500, "server_error"))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(GoneError, _gone)
    app.add_middleware(Guard, conversations=conversations, limits=limits or Limits())
    return app


def run(app: FastAPI, **options: Any) -> None:
    """Serve `app` in this process until it is told to end; `options` are uvicorn's."""
    import uvicorn

    sys.setswitchinterval(
        0.001
    )  # the thread that commits waits so long for the event loop's after each of its calls
    logging.getLogger("uvicorn.error").addFilter(_no_cancellation)
    with frozen_heap():
        uvicorn.run(app, access_log=False, **options)


def _no_cancellation(record: logging.LogRecord) -> bool:
    """Whoever presses Ctrl-C twice ends uvicorn before the app's own end, whose cancellation it would show in full."""
    return not record.getMessage().rstrip().endswith("asyncio.exceptions.CancelledError")


def _handler(status: int, code: str) -> Any:
    async def handle(request: Request, error: Exception) -> Response:
        # What a failing server of ours says may name machines of ours.
        message = str(error) if status < 500 else f"{code.replace('_', ' ')}: try again later."
        return error_response(status, code, message)

    return handle


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error_response(400, "invalid_request", f"{where}: {first['msg']}", where)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, "http_error", str(error.detail))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)

"""The application: routes, middleware, errors, and the page."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from atommem.process import frozen_heap
from atommem.serve import memory_routes, openai_routes
from atommem.serve.conversations import Conversations
from atommem.serve.mcp_server import make_mcp, mcp_routes
from atommem.serve.middleware import LOGGER, RequestMiddleware, error_location
from atommem.serve.schema import NotFoundError
from atommem.serve.streaming import ClientDisconnectedError
from atommem.serve.wire import SERVE_ERRORS, error_response, public_error

_PAGE = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_PAGE_HEADERS = {
    # No other origins, no inline scripts, and no script can turn text into markup.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def make_app(
    conversations: Conversations, keys: Mapping[str, str] | None = None, hosts: Sequence[str] = ()
) -> FastAPI:
    """Make the application; it closes `conversations` when it ends. See `RequestMiddleware`."""
    mcp = make_mcp(conversations)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with mcp.session_manager.run():
            yield
        await conversations.model.runtime.close()

    number = version("atommem")
    app = FastAPI(title="AtomMem", version=number, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.conversations = conversations
    app.include_router(openai_routes.router)
    app.include_router(memory_routes.router)
    app.include_router(memory_routes.general)
    app.router.routes.extend(mcp_routes(mcp))
    _add_page(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether this process accepts requests: it has started and is not draining."""
        return {"status": "ok"}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        """Whether its database answers, too."""
        with conversations.log.engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus's format."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    for kind in (*SERVE_ERRORS, RequestValidationError, HTTPException, ClientDisconnectedError):
        app.add_exception_handler(kind, _error)
    app.add_middleware(RequestMiddleware, keys=keys or {}, hosts=hosts)
    return app


def run(app: FastAPI, **options: Any) -> None:
    """Serve `app` until SIGTERM or Ctrl-C; `options` are uvicorn's."""
    import uvicorn

    sys.setswitchinterval(0.001)  # commits run in a thread that waits for the event loop's GIL
    with frozen_heap():
        uvicorn.run(app, access_log=False, **options)


def _add_page(app: FastAPI) -> None:
    folder = files("atommem.serve") / "ui"
    pages = {
        name: Response((folder / name).read_text(encoding="utf-8"), 200, _PAGE_HEADERS, kind)
        for name, kind in _PAGE.items()
    }

    @app.get("/", include_in_schema=False)
    @app.get("/ui", include_in_schema=False)
    @app.get("/ui/{name}", include_in_schema=False)
    def page(name: str = "index.html") -> Response:
        if name not in pages:
            raise NotFoundError(f"the page has no file {name!r}.")
        return pages[name]


async def _error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))  # behind body, query, path or header
        param = first.get("ctx", {}).get("name", place)
        if first["type"] == "extra_forbidden":
            first |= {"type": "unknown_parameter", "msg": "not a parameter. Leave it out."}
        if first["type"] == "json_invalid" or not param:
            return error_response(400, "invalid_json", "the body is not a JSON object.")
        code = first["type"] if first["type"].endswith("_parameter") else "invalid_request"
        message = f"{param}: {first['msg']}".replace(": [", "[", 1)  # the number of an item
        return error_response(400, code, message, param)
    if isinstance(error, HTTPException):
        return error_response(error.status_code, "http_error", str(error.detail))
    if isinstance(error, ClientDisconnectedError):
        return Response(status_code=499)
    if isinstance(error, OperationalError):  # its message may quote a client
        names = ("sqlstate", "sqlite_errorname")
        codes = [code for name in names if (code := getattr(error.orig, name, None))]
        LOGGER.error({"event": "database", "codes": codes, **error_location(error)})
    return error_response(*public_error(error))

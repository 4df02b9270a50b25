"""``/ui``: a page on the routes that every client has; its files are few, fixed, and hold nothing of anybody."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from atommem.page_assets import page_asset
from atommem.serve.log_rows import NotFoundError

router = APIRouter(include_in_schema=False)
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_OWN = ("index.html", "memory.css", "memory.js", "api.js", "rendering.js")
_SHARED = ("front.css", "front.js")
_HEADERS = {
    # Nothing from elsewhere, nothing in line; and no script can turn a text into markup, whatever the text is.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _files() -> dict[str, Response]:
    """All that can be had, by name: no name that a client sends opens a file."""
    folder = files("atommem.serve") / "ui"
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in _OWN}
    texts |= {name: page_asset(name) for name in _SHARED}
    return {
        name: Response(text, 200, _HEADERS, _KINDS[name.rpartition(".")[2]])
        for name, text in texts.items()
    }


_FILES = _files()


@router.get("/ui")
def ui() -> Response:
    """The page. It asks for a key itself, where the server has any."""
    return _FILES["index.html"]


@router.get("/ui/{name}")
def ui_file(name: str) -> Response:
    """What it is made of."""
    if name not in _FILES:
        raise NotFoundError("the page has no such file.")
    return _FILES[name]

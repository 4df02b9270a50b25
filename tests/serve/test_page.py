"""The page at ``/ui``: few files, nothing inline, nothing from other origins."""

from __future__ import annotations

import re

import httpx


def test_page_has_no_inline_code_and_no_other_origins(http: httpx.Client) -> None:
    pages = {name: http.get(f"/ui{name}") for name in ("", "/page.css", "/page.js")}
    assert {page.status_code for page in pages.values()} == {200}
    assert set(re.findall(r'(?:src|href)="ui/([^"]+)"', pages[""].text)) == {"page.css", "page.js"}
    (policy,) = {page.headers["content-security-policy"] for page in pages.values()}
    assert "unsafe" not in policy
    for directive in ("default-src 'none'", "script-src 'self'", "require-trusted-types-for"):
        assert directive in policy
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", pages[""].text)
    unsafe = r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\("
    assert not any(re.search(unsafe, page.text) for page in pages.values())
    assert http.get("/ui/..%2fapp.py").status_code == 404

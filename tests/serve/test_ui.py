"""The page's files: which there are, and what they may do."""

from __future__ import annotations

import re

import httpx


def test_nothing_is_in_line_or_from_elsewhere_and_there_are_no_other_files(
    http: httpx.Client,
) -> None:
    found = {"ui": http.get("/ui")}
    left = re.findall(r'(?:src|href)="ui/([^"]+)"', found["ui"].text)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = http.get(f"/ui/{name}")
            left += re.findall(r'from "\./([^"]+)"', found[name].text)
    assert set(found) == {
        "ui",
        "front.css",
        "front.js",
        "memory.css",
        "memory.js",
        "api.js",
        "rendering.js",
    }
    assert {item.status_code for item in found.values()} == {200}
    (policy,) = {item.headers["content-security-policy"] for item in found.values()}
    assert "unsafe" not in policy
    for directive in (
        "default-src 'none'",
        "script-src 'self'",
        "require-trusted-types-for 'script'",
    ):
        assert directive in policy
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", found["ui"].text)
    for item in found.values():
        assert not re.search(
            r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", item.text
        )
        assert item.headers["x-content-type-options"] == "nosniff"
    assert http.get("/ui/", follow_redirects=True).url.path == "/ui"
    for name in ("..%2fguard.py", "ui_routes.py", "%2e%2e/app.py", "x"):
        assert http.get(f"/ui/{name}").status_code == 404

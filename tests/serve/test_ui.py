"""The page's files, and the list of conversations: who gets them, and what they may do."""

from __future__ import annotations

import re

import httpx

from atommem.serve.api_keys import Keys
from atommem.serve.conversations import Conversations
from tests.serve.servers import running


def page_files(http: httpx.Client) -> dict[str, httpx.Response]:
    """Everything that the page asks for, by name."""
    page = http.get("/ui")
    found, left = {"ui": page}, re.findall(r'(?:src|href)="ui/([^"]+)"', page.text)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = http.get(f"/ui/{name}")
            left += re.findall(r'from "\./([^"]+)"', found[name].text)
    return found


def test_nothing_is_in_line_or_from_elsewhere_and_there_are_no_other_files(http: httpx.Client) -> None:
    found = page_files(http)
    assert set(found) == {"ui", "front.css", "front.js", "memory.css", "memory.js", "api.js", "rendering.js"}
    assert {item.status_code for item in found.values()} == {200}
    (policy,) = {item.headers["content-security-policy"] for item in found.values()}
    assert "unsafe" not in policy
    for directive in ("default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"):
        assert directive in policy
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", found["ui"].text)
    for item in found.values():
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", item.text)
        assert item.headers["x-content-type-options"] == "nosniff"
    assert http.get("/ui/", follow_redirects=True).url.path == "/ui"
    for name in ("..%2fguard.py", "ui_routes.py", "%2e%2e/app.py", "x"):
        assert http.get(f"/ui/{name}").status_code == 404


def test_the_page_needs_no_key_and_the_list_does(conversations: Conversations) -> None:
    keys = Keys(conversations.log)
    (_, ann), (_, bob) = keys.add("ann"), keys.add("bob")
    with running(conversations) as keyed:
        with keyed.http() as nobody:
            assert {item.status_code for item in page_files(nobody).values()} == {200}
            assert nobody.get("/v1/conversations").status_code == 401
        with keyed.http(ann) as http:
            mine = [http.post("/v1/conversations", json={"metadata": {"title": str(n)}}).json()["id"] for n in range(5)]
            first = http.get("/v1/conversations", params={"limit": 3}).json()
            rest = http.get("/v1/conversations", params={"limit": 3, "after": first["last_id"]}).json()
            assert (first["has_more"], rest["has_more"]) == (True, False)
            assert sorted(item["id"] for item in first["data"] + rest["data"]) == sorted(mine)
        with keyed.http(bob) as http:
            assert http.get("/v1/conversations").json()["data"] == []
            assert http.get("/v1/conversations", params={"after": mine[0]}).status_code == 404


def test_steps_are_had_from_either_end(http: httpx.Client) -> None:
    items = [{"content": text} for text in ("Ann lives in Rome.", "Bob lives in Oslo.")]
    made = http.post("/v1/conversations", json={"items": items}).json()
    steps = f"/v1/conversations/{made['id']}/steps"
    (last,) = http.get(steps, params={"before": 2**31 - 1, "limit": 1}).json()["data"]
    (before,) = http.get(steps, params={"before": last["version"]}).json()["data"]
    assert [last["index"], before["index"]] == [1, 0]

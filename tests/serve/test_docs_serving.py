"""Every snippet of docs/serving.md and of README's section on serving, run against a server."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.serve.servers import Running, make_conversations, running, scripted

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8765"


def blocks(name: str, kind: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [block for block in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if ADDRESS in block]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    policy = scripted()
    policy.name = "grpo"
    with running(make_conversations(tmp_path_factory.mktemp("serve") / "log.db", policy)) as found:
        yield found


@pytest.mark.parametrize("name", ["README.md", "docs/serving.md"])
def test_python_snippets_run_as_they_stand(name: str, server: Running) -> None:
    (snippet,) = blocks(name, "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet.replace(ADDRESS, server.url), name, "exec"), {})
    assert printed.getvalue().splitlines()[0] == "Ann lives in Rome."
    assert "README" in name or printed.getvalue().splitlines()[-1] == "Bob sings."


def test_curl_snippets_run_as_they_stand(server: Running, tmp_path: Path) -> None:
    (snippet,) = blocks("docs/serving.md", "bash")
    command = ["bash", "-euo", "pipefail", "-c", snippet.replace(ADDRESS, server.url).replace("curl -s", "curl -sf")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"deleted":true' in done.stdout
    assert "Ann lives in Rome." in (tmp_path / "kept.jsonl").read_text()


def test_the_routes_that_are_told_of_are_there(server: Running) -> None:
    with server.http() as http:
        paths = json.dumps(list(http.get("/openapi.json").json()["paths"]))
    text = (ROOT / "docs" / "serving.md").read_text()
    for route in re.findall(r"`(?:POST |DELETE |GET )?(?:\.\.\.|/v1)(/[a-z/]+)", text):
        assert route.rstrip("/") in paths, route


def test_the_compose_file_is_one() -> None:
    found = yaml.safe_load((ROOT / "docs" / "compose.yaml").read_text())
    assert set(found["services"]) == {"database", "policy", "gateway"}

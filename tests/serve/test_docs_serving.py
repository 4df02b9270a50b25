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
import sqlalchemy as sa
import yaml

from atommem.serve import serve_cli
from tests.pages import ADDRESS, ROOT, blocks
from tests.serve.servers import Running, make_conversations, running, scripted


def asked(page: str, kind: str) -> str:
    """The one block of a page that asks a server."""
    (block,) = (block for _, block in blocks(page, kind) if f"http://{ADDRESS}" in block)
    return block


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    policy = scripted()
    policy.name = "grpo"
    with running(make_conversations(tmp_path_factory.mktemp("serve") / "log.db", policy)) as found:
        yield found


@pytest.mark.parametrize("name", ["README.md", "docs/serving.md"])
def test_python_snippets_run_as_they_stand(name: str, server: Running) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(
            compile(asked(name, "python").replace(f"http://{ADDRESS}", server.url), name, "exec"),
            {},
        )
    first, *others = printed.getvalue().splitlines()
    said = (
        ("Copperclock Brenani made", [])
        if name == "README.md"
        else ("Ann lives in Rome.", ["Bob sings."])
    )
    assert (first, others[-1:]) == said


def test_curl_snippets_run_as_they_stand(server: Running, tmp_path: Path) -> None:
    snippet = asked("docs/serving.md", "bash").replace(f"http://{ADDRESS}", server.url)
    command = ["bash", "-euo", "pipefail", "-c", snippet.replace("curl -s", "curl -sf")]
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
    """There is no engine here: what its services refer to is there, and the command is parsed."""
    text = (ROOT / "docs" / "compose.yaml").read_text()
    names = ("CHECKPOINT", "PUBLIC_NAME", "POSTGRES_PASSWORD", "ATOMMEM_IMAGE")
    assert set(re.findall(r"\$\{(\w+)", text)) == set(names)
    assert all(f"${{{name}:?}}" in text for name in names), "unset, each is refused somewhere"
    found = yaml.safe_load(
        re.sub(r"\$\{(\w+)(?::\?)?\}", lambda match: f"/{match[1].lower()}.test", text)
    )
    services = found["services"]
    assert set(services) == {"database", "policy", "gateway"}
    for service in services.values():
        named = [volume.split(":")[0] for volume in service.get("volumes", ()) if volume[0] != "/"]
        assert {*named} <= {*found["volumes"]}
        assert all("healthcheck" in services[other] for other in service.get("depends_on", {}))
    program, room, *command = services["gateway"]["command"]
    assert (program, room) == ("atommem", "serve")
    arguments = serve_cli._arguments(command)
    assert arguments.policy == ["http://policy:8000"]
    assert arguments.hosts == ["/public_name.test"]
    assert f"gateway:{arguments.port}" in text
    assert int(services["gateway"]["stop_grace_period"].removesuffix("s")) > arguments.drain_seconds
    assert sa.make_url(services["gateway"]["environment"]["ATOMMEM_DATABASE"]).host == "database"

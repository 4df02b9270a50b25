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


FIELDS = {
    "image": str,
    "environment": dict,
    "volumes": list,
    "healthcheck": dict,
    "command": list,
    "deploy": dict,
    "depends_on": dict,
    "stop_grace_period": str,
    "restart": str,
}
"""Of a service in the Compose specification, as far as ours use them."""
DURATION = re.compile(r"(\d+(us|ms|s|m|h))+")


def test_the_compose_file_is_one() -> None:
    """Linted, as there is no engine here: the specification's fields and what they refer to; the command is parsed."""
    text = (ROOT / "docs" / "compose.yaml").read_text()
    assert "not run" in text.partition("services:")[0]
    given = {
        "CHECKPOINT": "/models/policy",
        "PUBLIC_NAME": "memory.test",
        "POSTGRES_PASSWORD": "x",
        "ATOMMEM_IMAGE": "a",
    }
    names = set(re.findall(r"\$\{(\w+)", text))
    assert names == set(given)
    assert all(f"${{{name}:?}}" in text for name in names), "unset, each is refused somewhere"
    found = yaml.safe_load(re.sub(r"\$\{(\w+)(?::\?)?\}", lambda match: given[match[1]], text))
    assert set(found) == {"services", "volumes"}
    services = found["services"]
    assert set(services) == {"database", "policy", "gateway"}
    for name, service in services.items():
        assert all(isinstance(value, FIELDS[field]) for field, value in service.items()), name
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            assert source in found["volumes"] or source.startswith("/")
            assert target.startswith("/")
            assert mode in ([], ["ro"])
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[other]
        check = service.get("healthcheck", {"test": ["CMD", "x"]})
        assert check.pop("test")[0] == "CMD"
        assert set(check) <= {"interval", "start_period"}
        lengths = [*check.values(), service.get("stop_grace_period", "1s")]
        assert all(DURATION.fullmatch(length) for length in lengths)
        assert all(isinstance(word, str) for word in service.get("command", ()))
    assert set(services["gateway"]["deploy"]) == {"replicas"}
    program, room, *command = services["gateway"]["command"]
    assert (program, room) == ("atommem", "serve")
    arguments = serve_cli._arguments(command)
    assert arguments.policy == ["http://policy:8000"]
    assert arguments.hosts == ["memory.test"]
    assert f"gateway:{arguments.port}" in text
    assert int(services["gateway"]["stop_grace_period"].removesuffix("s")) > arguments.drain_seconds
    assert sa.make_url(services["gateway"]["environment"]["ATOMMEM_DATABASE"]).host == "database"

"""Snippets of docs/serve.md."""

import re
import subprocess

import sqlalchemy as sa
import yaml

from atommem.serve import serve_cli
from tests.pages import ADDRESS, ROOT, blocks, run_python
from tests.serve.servers import Running

PAGE = "docs/serve.md"


def snippet(kind: str, server: Running) -> str:
    (block,) = (block for _, block in blocks(PAGE, kind) if f"http://{ADDRESS}" in block)
    block = block.replace(f"http://{ADDRESS}", server.url)
    return re.sub("grpo|smollm2", "scripted", block)


def test_python_snippet_runs(server):
    lines = run_python(snippet("python", server), {}, PAGE).splitlines()
    # The scripted policy answers with the entry nearest to the question, the older of two.
    assert lines[0] == lines[-1] == "Ann lives in Rome."


def test_curl_snippet_runs(server, tmp_path):
    text = snippet("bash", server).replace("curl -s", "curl -sf")
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"deleted":true' in done.stdout
    for comment in ('"written":{"create":1,"update":0,"delete":0}', '"text":"Ann lives in Rome."'):
        assert f"# {comment}" in text
        assert comment in done.stdout


def test_compose_file_parses_and_its_references_exist():
    text = (ROOT / "docs" / "compose.yaml").read_text()
    services = yaml.safe_load(re.sub(r"\$\{(\w+)(?::\?)?\}", r"/\1.test", text))["services"]
    assert set(services) == {"database", "policy", "gateway"}
    program, command, *flags = services["gateway"]["command"]
    assert (program, command) == ("atommem", "serve")
    arguments, _ = serve_cli._arguments(flags)
    assert arguments.policy == ["http://policy:8000"]
    assert f"gateway:{arguments.port}" in text
    assert sa.make_url(services["gateway"]["environment"]["ATOMMEM_DATABASE"]).host == "database"

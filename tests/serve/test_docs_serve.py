"""Snippets of docs/serve.md, the README's section on serving, and LangGraph's store."""

import contextlib
import io
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from atommem.serve import serve_cli
from tests.pages import ADDRESS, ROOT, blocks
from tests.serve.servers import Running, items

PAGE = "docs/serve.md"


def snippet(page: str, kind: str, server: Running) -> str:
    (block,) = (block for _, block in blocks(page, kind) if f"http://{ADDRESS}" in block)
    return block.replace(f"http://{ADDRESS}", server.url).replace("grpo", "scripted")


@pytest.mark.parametrize(
    ("page", "first", "last"),
    [
        ("README.md", "Copperclock Brenani made", "Copperclock Brenani made"),
        (PAGE, "Ann lives in Rome.", "Bob sings."),
    ],
)
def test_python_snippets_run(page: str, first: str, last: str, server: Running) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet(page, "python", server), page, "exec"), {})
    lines = printed.getvalue().splitlines()
    assert (lines[0], lines[-1]) == (first, last)


def test_curl_snippet_runs(server: Running, tmp_path: Path) -> None:
    text = snippet(PAGE, "bash", server).replace("curl -s", "curl -sf")
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"deleted":true' in done.stdout


def test_compose_file_parses_and_its_references_exist() -> None:
    text = (ROOT / "docs" / "compose.yaml").read_text()
    services = yaml.safe_load(re.sub(r"\$\{(\w+)(?::\?)?\}", r"/\1.test", text))["services"]
    assert set(services) == {"database", "policy", "gateway"}
    program, command, *flags = services["gateway"]["command"]
    assert (program, command) == ("atommem", "serve")
    arguments, _ = serve_cli._arguments(flags)
    assert arguments.policy == ["http://policy:8000"]
    assert f"gateway:{arguments.port}" in text
    database = services["gateway"]["environment"]["ATOMMEM_DATABASE"]
    assert sa.make_url(database).host == "database"


ANN, BOB = ("users", "ann"), ("users", "b/o-b")
VALUES: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (ANN, "home", {"text": "Ann lives in Rome."}),
    (ANN, "bees", {"text": "Ann keeps bees.", "hives": 3}),
    (BOB, "home", {"text": "Bob lives in Oslo."}),
    (("places",), "Oslo / north", {"country": "Norway", "size": {"people": 700_000}}),
]


def plain(found: Any) -> Any:
    if isinstance(found, list):
        return sorted((plain(item) for item in found), key=repr)
    return (found.namespace, found.key, found.value) if hasattr(found, "value") else found


async def test_langgraph_store_equals_langgraph_s_and_ranks_by_entries(server: Running) -> None:
    """Runs where langgraph-checkpoint is installed: pip install 'atommem[langgraph]'."""
    base = pytest.importorskip("langgraph.store.base")
    theirs: Any = pytest.importorskip("langgraph.store.memory").InMemoryStore()
    store = runpy.run_path(str(ROOT / "examples" / "langgraph" / "atommem_store.py"))
    ours: Any = store["AtomMemStore"](server.url)
    for value in VALUES:
        ours.put(*value)
        theirs.put(*value)
    with server.http() as http:  # a text of another client is not a value
        path = f"/v1/conversations/{ours.conversation}/items"
        http.post(path, json=items("Cid sings.", name="letter")).raise_for_status()
    for namespace, key, value in VALUES:
        assert plain(ours.get(namespace, key)) == (namespace, key, value)
    for prefix, settings in (((), {}), (("users",), {"filter": {"hives": {"$eq": 3}}})):
        mine, other = ours.search(prefix, **settings), theirs.search(prefix, **settings)
        assert plain(mine) == plain(other)
    for settings in ({"prefix": ("users",)}, {"max_depth": 1}):
        assert plain(ours.list_namespaces(**settings)) == plain(theirs.list_namespaces(**settings))
    found = ours.search(("users",), query="Who lives in Oslo?")
    assert (found[0].namespace, found[0].key) == (BOB, "home")
    put = base.PutOp(ANN, "home", {"text": "Ann lives in Bern."})
    _, again = await ours.abatch([put, base.GetOp(ANN, "home")])
    assert again.value == put.value
    ours.delete(ANN, "home")
    assert ours.get(ANN, "home") is None
    assert all("Bern" not in str(item.value) for item in ours.search((), query="Bern"))

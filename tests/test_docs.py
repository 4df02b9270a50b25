"""docs/tutorials followed page by page in one folder, and the claims of other pages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from atommem import completion, dialects
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from tests.fakes import load_script
from tests.pages import ROOT, Reader, blocks, run_python

FOLDER = "docs/tutorials"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader who has followed the first page."""
    with Reader(tmp_path_factory.mktemp("reader")) as reader:
        reader.known = reader.follow("docs/train.md")
        yield reader


def test_picture_shows_what_the_tutorial_prints():
    """tests/test_wheel.py compares the tutorial's print with what the shipped adapter does."""
    page = (ROOT / FOLDER / "letter.md").read_text(encoding="utf-8")
    picture = (ROOT / "docs" / "episode.svg").read_text(encoding="utf-8")
    changes = re.findall(r"^line \d+ (\w+) (.+) -> (.+)$", page, re.MULTILINE)
    shown = [text for change in changes for text in change if text != "None"]
    written = re.findall(r'<text class="\w*" x="(?:388|423)"[^>]*>([^<]+)</text>', picture)
    assert len(shown) == 5
    assert [text for text in written if text in shown] == shown


FLAG = r"(?<![\w=\"-])--([a-z]\w*)(?![\w-])"  # not those of others: --tensor-parallel-size
WITH_FLAGS = ["--environment web", *map("--benchmark {}".format, ("ruler", "told", "ledger"))]


def test_flags_that_pages_name_exist(capsys):
    completion.main([])
    flags = dict(re.findall(r'"([^"]*) "\*\) words="([^"]*)"', capsys.readouterr().out))
    more = [completion._help(f"data build {given} ", "--help-all") for given in WITH_FLAGS]
    more.append(completion._help("eval --environment web ", "--help-all"))
    code = [path for room in ("train", "scripts", "papers") for path in (ROOT / room).rglob("*")]
    more += [path.read_text() for path in code if path.is_file() and path.suffix in ("", ".py")]
    known = {*re.findall(FLAG, " ".join([*flags.values(), *more]))}
    # Of the page's own environment, of TRL and accelerate.
    known |= {"turns", "world", "dataset_name", "config_file", "machine_rank", "main_process_ip"}
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        text = path.read_text().replace("\\\n", " ")
        commands = " ".join(re.findall(r"`[^`\n]+`|^atommem .*", text, re.MULTILINE))
        assert {*re.findall(FLAG, commands)} - known == set(), path
        # What follows a command speaks of its flags.
        for block, prose in re.findall(r"```(?:bash)?\n([^`]*)```\n(.+(?:\n.+)*)", text):
            own = [flags[name] for name in flags if re.search(rf"atommem(\.cli)? {name}\b", block)]
            named = {*re.findall(FLAG, " ".join(re.findall(r"`--[^`\n]*`", prose)))}
            assert not own or named - {*re.findall(FLAG, " ".join(own))} == set(), path


INDEX = re.compile(r"pip install (?:-\S+ )*['\"]?atommem\b|`atommem\[|\bpypi\b", re.IGNORECASE)


def test_no_page_or_message_installs_atommem_from_an_index():
    """It is not published: the name could be somebody else's."""
    rooms = ("docs", "examples", "atommem", "envs", "train", "eval", "serve", "demo")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.*")]
    texts = [path for path in files if path.suffix in (".md", ".ipynb", ".py")]
    files = (ROOT / "README.md", *texts)
    assert [path for path in files if INDEX.search(path.read_text())] == []


@pytest.mark.slow
def test_notebook_runs(reader, undrawn):
    file = "examples/sixty_questions.ipynb"
    known: dict[str, Any] = {}
    for cell in json.loads((ROOT / file).read_text())["cells"]:
        if cell["cell_type"] == "code":
            run_python("".join(cell["source"]), known, file)
    assert [entry["step"] for entry in known["updates"]] == [1, 2]


@pytest.mark.slow
def test_examples_run(reader, monkeypatch, capsys):
    from atommem.serve.served_model import ServedModel
    from tests.serve.servers import make_conversations, running

    monkeypatch.syspath_prepend(ROOT / "examples")  # as for any script: it finds its own folder
    documents = reader.known["task"].documents
    Path("book.txt").write_text("\n\n".join(document.text for document in documents))
    policy = "runs/demo/grpo"
    lines = [
        f"read_and_answer.py {policy} book.txt 'Who ?' 'Where ?'",
        f"compare.py runs/demo/cold_start {policy} runs/demo/heldout.parquet 2",
        f"own_rule.py {policy} book.txt 1",
        "serve_client.py book.txt 'Who ?'",
    ]
    shipped = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {line.split()[0] for line in lines} == shipped
    with running(make_conversations(Path("log.db"), ServedModel.open(policy))) as server:
        for line in lines:
            address = f" {server.url}/v1" if line.startswith("serve") else ""
            reader.run(f"python {ROOT}/examples/{line}{address}")
    printed = capsys.readouterr().out
    last = f"chunk {len(documents)} of {len(documents)}"
    for text in (last, "Where ? - ", "EM 0.", "kept:", "ask again: "):
        assert text in printed


TASK: dict[str, Any] = {
    "id": "a",
    "source": "mine",
    "questions": [
        {"text": "Who?", "answers": ["Ida", "Ida Brook"], "id": "q", "metadata": {"hops": 2}}
    ],
    "documents": [{"title": "June", "text": "Ida writes.", "gold": True}, {"text": "It rains."}],
    "metadata": {},
}


def test_task_schema_accepts_what_the_reader_accepts(tmp_path):
    ((_, schema),) = blocks(f"{FOLDER}/own_questions.md", "json")
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    validator.check_schema(validator.schema)
    file = tmp_path / "tasks.jsonl"
    question, document = TASK["questions"][0], TASK["documents"][0]
    for changes, valid in (
        ({}, True),
        ({"id": None}, False),
        ({"questions": []}, False),
        ({"questions": [{**question, "answers": ["Ida", ""]}]}, False),
        ({"questions": [{**question, "text": None}]}, False),
        ({"documents": [{**document, "gold": "yes"}]}, False),
    ):
        task = {**TASK, **changes}
        file.write_text(json.dumps(task) + "\n")
        try:
            read = bool(load_tasks(file))
        except DataError:
            read = False
        assert validator.is_valid(task) == read == valid, changes
    save_tasks(generate(WorldConfig(), 3, 0), file)
    for line in file.read_text().splitlines():
        validator.validate(json.loads(line))


def test_dialect_of_the_extending_page_registers(monkeypatch):
    monkeypatch.setattr(dialects, "_REGISTERED", dict(dialects._REGISTERED))
    defined: dict[str, Any] = {}
    for _, block in blocks("docs/extending.md", "python"):
        exec(compile(block, "docs/extending.md", "exec"), defined)
    assert dialects.get_dialect("mine").tags["create"] == "remember"


@pytest.mark.slow
def test_step_of_the_design_page_equals_the_code_s(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    design_step = load_script("design_step")
    made, shown = design_step.blocks(), design_step.on_page()
    assert list(shown) == list(made)
    for name, text in made.items():
        assert shown[name] == text, f"{name}: run python scripts/design_step.py --write"

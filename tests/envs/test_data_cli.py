"""Task files and `atommem data`: saved tasks load equal; build, convert, show and refusals."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.envs import task_files
from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.long_texts import parse_locomo
from atommem.envs.benchmarks.rows import QARow, read_rows
from atommem.envs.longdoc.evidence import gold_documents
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from atommem.files import load_beside
from tests.envs.benchmark_rows import beam_row, sample, write_json, write_lines
from tests.envs.test_rows import write_csv
from tests.fakes import command

TABLES = load_beside(__file__, "data_cli.yaml")
DOCUMENT = Document("Orla", "A potter.\n", gold=True)
METADATA = {"type": "bridge", "documents": [0]}
QUESTIONS = (Question("Who?", ("Orla", "O\u2019Dea"), "q1", METADATA), Question("Yes?", ()))
DOCUMENTS = (DOCUMENT, Document("", "No title."))
TASKS = [
    Task("a", QUESTIONS, DOCUMENTS, None, "hotpotqa", {"split": "train"}),
    Task("b", (Question("Where?", ("Port",)),), (DOCUMENT,)),
    Task("c", (Question("What?", ("x",)),), context="Document 1:\nready joined"),
]


@pytest.mark.parametrize("name", ["x.jsonl", "new/folder/x.parquet"])
def test_saved_tasks_load_equal(tmp_path, name, monkeypatch):
    monkeypatch.setattr(task_files, "_TASKS_PER_GROUP", 2)
    path = tmp_path / name
    assert save_tasks(iter(TASKS), path) == 3
    assert load_tasks(path) == TASKS
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == [path.name]


DOCUMENT_ROW = {"title": "", "text": "A."}
ROW: dict[str, Any] = {"id": "a", "questions": [{"text": "Who?"}], "documents": [DOCUMENT_ROW]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no tasks"),
        ([{"_id": "1"}], r"row 1: field 'questions' is missing; the row has '_id'.*data build"),
        ([ROW, ROW], "row 2: field 'id' is 'a', as in row 1"),
        ([beam_row(probing_questions="__import__('os')")], r"row 1: Expected `object`.*`probing_q"),
        ([ROW | {"context": "x"}], "'documents' and 'context': give one of them"),
        ([{**ROW, "documents": None, "context": " "}], "'context': give one of them"),
    ],
)
def test_load_of_another_file_raises_with_row_and_field(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        load_tasks(write_json(tmp_path / "x.json", rows))


main = command("data")
BUILD = ["build", "--benchmark", "hotpotqa", "--split", "train"]


def qa_row(number: int) -> QARow:
    """A question with two gold and three other documents; it shares the last with the next one."""
    titles = [f"other {number}.0", f"other {number}.1", f"shared {number // 2}"]
    gold = [Document(f"gold {number}.{i}", f"text {number}", gold=True) for i in range(2)]
    documents = (*gold, *(Document(title, "text") for title in titles))
    return QARow(Question(f"Question {number}?", (f"answer {number}",), f"id{number}"), documents)


def tasks_of(rows: list[QARow], config: BuildConfig) -> list[Task]:
    return list(build_tasks(Pool(rows), config, "toy", "dev"))


ROWS = [qa_row(number) for number in range(12)]


def test_build_puts_gold_documents_anywhere_among_distractors():
    tasks = tasks_of(ROWS, BuildConfig(documents=20, n=30, questions=(1, 3)))
    positions = set()
    for task in tasks:
        titles = {document.title for document in task.documents}
        assert len(task.documents) == len(titles) == 20
        numbers = [question.id[2:] for question in task.questions]
        # The other documents of a question are not its distractors.
        assert not titles & {f"other {number}.{i}" for number in numbers for i in range(2)}
        positions |= {i for i, document in enumerate(task.documents) if document.gold}
        for number, question in zip(numbers, task.questions, strict=True):
            found = {document.title for document in gold_documents(task, question)}
            assert found == {f"gold {number}.0", f"gold {number}.1"}
    assert len(positions) == 20
    asked = [question.id for task in tasks for question in task.questions]
    assert len(set(asked[:12])) == 12, "every question comes before one repeats"


def test_show_checks_all_rows_and_names_the_broken_ones(tmp_path, capsys):
    row: dict[str, Any] = {"context": "a", "questions": [{"text": "b", "answers": ["c"]}]}
    broken = row | {"questions": [{"text": "b", "answers": [""]}]}
    file = tmp_path / "tasks.jsonl"
    rows = ({"id": "1", **row}, {"id": "2", **broken}, {"id": "1", **row}, {"id": "4", **row})
    file.write_text("\n".join(map(json.dumps, rows)))
    assert main(["show", str(file), "--limit", "1"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1  (no source)"
    assert lines[-3:] == [
        "tasks: 2, broken rows: 2",
        f"{file}: row 2: field 'answers' contains an empty answer. Correct the row.",
        f"{file}: row 3: field 'id' is '1', as in row 1; ids must differ. Correct the row.",
    ]
    file.write_text("\n".join(map(json.dumps, [{"id": "1", "person": "Ann"}] * 30)))
    assert main(["show", str(file)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (12, "tasks: 0, broken rows: 30", "and 20 more")


def test_build_with_own_distractors_takes_them_first():
    for task in tasks_of(ROWS, BuildConfig(12, 12, distractors="own")):
        row = ROWS[int(task.questions[0].id[2:])]
        assert {one.title for one in task.documents} >= {one.title for one in row.paragraphs}


def test_build_depends_on_the_seed_only():
    config = BuildConfig(documents=20, n=200, questions=(1, 3))
    tasks = tasks_of(ROWS, config)
    assert tasks_of(ROWS, replace(config, n=70)) == tasks[:70]
    other = tasks_of(ROWS, replace(config, seed=43))
    assert [t.documents for t in other] != [t.documents for t in tasks]
    first = [document.title for document in tasks[0].documents[:3]]
    assert first == ["gold 4.1", "gold 9.1", "gold 6.1"], "the same in every release"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A train file of HotpotQA; the last row lacks a gold document."""
    lost = sample("hotpot", 30, supporting_facts=[["Nowhere", 0]])
    return write_json(tmp_path / "train.json", [*(sample("hotpot", i) for i in range(10)), lost])


def test_build_writes_tasks_and_their_provenance(source):
    out = source.parent / "x.parquet"
    options = f"--documents 12 --questions 1-3 --n 9 --seed 5 --input {source} --out {out}"
    assert main([*BUILD, *options.split()]) == 0
    assert [len(task.documents) for task in load_tasks(out)] == [12] * 9
    provenance = json.loads(Path(f"{out}.json").read_text())
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    described = {"name": source.name, "bytes": source.stat().st_size, "sha256": digest}
    assert provenance["inputs"] == [described]
    assert provenance["output"]["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert (provenance["seed"], provenance["documents"], provenance["questions"]) == (5, 12, [1, 3])
    assert provenance["pool"]["rows_without_all_gold_documents"] == 1


@pytest.mark.parametrize(("options", "message"), TABLES["build"])
def test_build_with_an_invalid_option_leaves_no_file(source, capsys, options, message):
    folder, before = source.parent, source.read_bytes()
    (folder / "link.jsonl").symlink_to(source)
    common = f"--input {source} --documents 12 --n 3 --out {folder}/x.parquet "
    assert main([*BUILD, *(common + options.format(folder=folder)).split()]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "x.parquet").exists()
    assert source.read_bytes() == before


def test_build_for_the_web_selects_questions(tmp_path):
    gaia = {"Final answer": "17", "Level": 1, "file_name": ""}
    rows = [{**gaia, "task_id": f"g{i}", "Question": f"How many {i}?"} for i in (1, 2, 3)]
    listed = [{"task_id": "g3", "Question": "?"}, {"id": "x", "question": "how many 1"}]
    path, only = (tmp_path / name for name in ("metadata.jsonl", "only.jsonl"))
    out = tmp_path / "tasks.jsonl"
    flags = ["build", "--environment", "web", "--benchmark", "gaia", "--split", "validation"]
    flags += ["--input", str(write_lines(path, rows)), "--out", str(out)]
    assert main([*flags, "--n", "2"]) == 0
    assert len(load_tasks(out)) == 2
    assert main([*flags, "--only", str(write_lines(only, listed))]) == 0
    assert [question.id for task in load_tasks(out) for question in task.questions] == ["g1", "g3"]


def test_convert_writes_tasks_and_provenance(tmp_path):
    path = write_json(tmp_path / "locomo10.json", [sample("locomo")])
    out = tmp_path / "tasks.parquet"
    options = ["--out", str(out), "--wording", "official", "--questions", "1"]
    assert main(["convert", str(path), *options]) == 0
    (row,) = read_rows(path)
    assert load_tasks(out) == list(parse_locomo(row, 1, official=True))
    assert json.loads((tmp_path / "tasks.parquet.json").read_text())["wording"] == "official"
    assert main(["convert", str(path), "--out", str(path)]) == 2


def convert(path: Path, *flags: str) -> list[Task]:
    """Convert a table with the columns q, a and t, where `flags` name no others."""
    out = path.parent / "tasks.jsonl"
    columns = ["--question", "q", "--answer", "a", "--text", "t"]
    assert main(["convert", str(path), "--out", str(out), *columns, *flags]) == 0
    return load_tasks(out)


TABLE = [
    {"q": "Who?", "a": {"text": ["Orla", "Orla ", 1997]}, "passage": "Orla is a potter.", "n": "x"},
    {"q": "Where?", "a": {"text": []}, "passage": "Unknown.", "n": "y"},
    {"q": "When?", "a": '{"text": "1997"}', "passage": [{"title": "Kiln", "text": "In 1997."}]},
]


@pytest.mark.parametrize("write", [write_json, write_lines, write_csv])
def test_convert_reads_a_table_by_its_columns(tmp_path, capsys, write):
    path = write(tmp_path / "x", TABLE)
    first, second = convert(path, "--answer", "a.text", "--text", "passage")
    assert "1 rows left out: they have no answer" in capsys.readouterr().err
    kiln = Document("Kiln", "In 1997.")
    assert (first.context, second.documents) == ("Orla is a potter.", (kiln,))
    assert first.questions == (Question("Who?", ("Orla", "1997"), "table-00000"),)
    assert second.questions == (Question("When?", ("1997",), "table-00002"),)


@pytest.mark.parametrize(("cell", "golds"), TABLES["cells"])
def test_convert_reads_the_cells_of_pandas(tmp_path, cell, golds):
    path = tmp_path / "x.csv"
    # UTF-16 is Excel's "Unicode text".
    path.write_text(f"q| a| t\nWho?| x|One.\nWho?| {cell}| Text.\n", encoding="utf-16")
    found = [task.questions[0].answers for task in convert(path)]
    assert list(map(list, found)) == ([["x"]] if golds is None else [["x"], golds])


@pytest.mark.parametrize("passages", TABLES["passages"])
def test_convert_reads_passages_of_any_layout(tmp_path, passages):
    path = write_lines(tmp_path / "x", [{"q": "When?", "a": "1997", "t": passages}])
    documents = (Document("Kiln", "In 1997."), Document("", "Orla."))
    assert [task.documents for task in convert(path)] == [documents]


@pytest.mark.parametrize(("flags", "message"), TABLES["convert"])
def test_convert_of_a_table_without_these_columns_is_refused(tmp_path, capsys, flags, message):
    path, out = write_lines(tmp_path / "x", TABLE), tmp_path / "tasks.jsonl"
    assert main(["convert", str(path), "--out", str(out), *flags.split()]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_convert_reads_what_datasets_loads(tmp_path, capsys, monkeypatch):
    """A name of the hub (the folder of this name has its files), and `save_to_disk` in shards."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    columns = ["--question", "q", "--answer", "a", "--text", "t", "--out", "x.jsonl"]
    rows = [{"q": f"Who {i}?", "a": f"Orla {i}", "t": "Text."} for i in range(4)]
    (folder := tmp_path / "orla" / "kilns").mkdir(parents=True)
    for split in ("train", "test"):
        write_lines(folder / f"{split}.jsonl", rows)
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "disk", num_shards=2)
    found = convert(Path("orla/kilns"), "--split", "test")
    assert found == convert(Path("disk"))
    assert len(found) == 4
    for name, message in (
        ("orla/kilns", "has the splits train, test. Give one as --split"),
        ("orla/none", "orla/none: cannot be loaded"),
    ):
        assert main(["convert", name, *columns]) == 2
        assert message in capsys.readouterr().err

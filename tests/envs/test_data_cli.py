"""`atommem data`: tasks built from benchmarks, with provenance and refusals; convert and show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.locomo import OFFICIAL, read_locomo
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.longdoc.recall import gold_documents
from atommem.envs.task import Document, Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    columns,
    hotpot_row,
    locomo_row,
    longmemeval_row,
    musique_row,
    write_json,
    write_lines,
    write_parquet,
)
from tests.fakes import command

main = command("data")
Capture = pytest.CaptureFixture[str]


def qa_row(number: int, answer: str = "") -> QARow:
    """A question with two gold and three other documents; it shares the last with the next one."""
    documents = [Document(f"gold {number}.{i}", f"text {number}", gold=True) for i in range(2)]
    documents += [Document(f"other {number}.{i}", f"text {number}") for i in range(2)]
    documents.append(Document(f"shared {number // 2}", "text"))
    answers = (answer or f"answer {number}",)
    name = f"id{number}"
    return QARow(name, f"Question {number}?", answers, tuple(documents), "toy", place=name)


def tasks_of(rows: list[QARow], config: BuildConfig) -> list[Task]:
    return list(build_tasks(Pool(rows), config, "toy", "dev"))


ROWS = [qa_row(number) for number in range(12)]


def test_build_puts_gold_documents_anywhere_among_distractors() -> None:
    tasks = tasks_of(ROWS, BuildConfig(documents=20, n=30, questions=(1, 3)))
    assert [task.id for task in tasks] == [f"toy-dev-{i:05d}" for i in range(30)]
    positions = set()
    for task in tasks:
        titles = {document.title for document in task.documents}
        assert len(task.documents) == len(titles) == 20
        numbers = [question.id[2:] for question in task.questions]
        gold = {f"gold {number}.{i}" for number in numbers for i in range(2)}
        assert {document.title for document in task.documents if document.gold} == gold
        # The other documents of a question are not its distractors.
        assert not titles & {f"other {number}.{i}" for number in numbers for i in range(2)}
        positions |= {i for i, document in enumerate(task.documents) if document.gold}
        for number, question in zip(numbers, task.questions, strict=True):
            found = {document.title for document in gold_documents(task, question)}
            assert found == {f"gold {number}.0", f"gold {number}.1"}
    assert {len(task.questions) for task in tasks} == {1, 2, 3}
    assert len(positions) == 20


def test_build_asks_every_question_before_one_repeats() -> None:
    tasks = tasks_of(ROWS, BuildConfig(documents=12, n=12, questions=(2, 2)))
    asked = [question.id for task in tasks for question in task.questions]
    assert len(set(asked[:12])) == len(set(asked[12:])) == 12
    assert asked[:12] != asked[12:]
    assert all(len({q.text for q in task.questions}) == 2 for task in tasks)


def test_build_depends_on_the_seed_only() -> None:
    config = BuildConfig(documents=20, n=200, questions=(1, 3))
    tasks = tasks_of(ROWS, config)
    assert tasks_of(ROWS, replace(config, n=70)) == tasks[:70]
    other = tasks_of(ROWS, replace(config, seed=43))
    assert [t.documents for t in other] != [t.documents for t in tasks]
    first = [document.title for document in tasks[0].documents[:3]]
    assert first == ["gold 4.1", "gold 9.1", "gold 6.1"], (
        "a seed gives the same tasks in every release"
    )


@pytest.mark.parametrize("documents", [3, 12])
def test_own_distractors_come_before_those_of_the_pool(documents: int) -> None:
    own = {row.id: {document.title for document in row.paragraphs} for row in ROWS}
    for task in tasks_of(ROWS, BuildConfig(documents, 12, distractors="own")):
        titles, mine = {document.title for document in task.documents}, own[task.questions[0].id]
        assert len(titles) == documents
        assert titles <= mine if documents < len(mine) else mine <= titles
        assert sum(document.gold for document in task.documents) == 2


def test_build_from_a_pool_that_is_too_small_raises() -> None:
    with pytest.raises(
        DataError, match=r"12 different questions and 54 documents, too few .* and 55"
    ):
        tasks_of(ROWS, BuildConfig(documents=55, n=1))
    message = r"task 0: only 52 documents can be had \(2 gold, 50 distractors\), but 53"
    with pytest.raises(DataError, match=message):
        tasks_of(ROWS, BuildConfig(documents=53, n=70))
    few = [qa_row(0), qa_row(1), replace(qa_row(1), id="again")]
    with pytest.raises(
        DataError, match="2 different questions and 9 documents, too few for tasks of 3"
    ):
        tasks_of(few, BuildConfig(documents=2, n=1, questions=(1, 3)))
    with pytest.raises(DataError, match="again: field 'id' is 'id1', as in id1"):
        Pool([*ROWS, replace(qa_row(1), place="again")])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a train file and a dev file of HotpotQA."""
    folder = tmp_path / "data"
    (folder / "hotpotqa").mkdir(parents=True)
    lost = hotpot_row(30, supporting_facts=[["Nowhere", 0]])
    train = [*(hotpot_row(i) for i in range(10)), lost]
    write_json(folder / "hotpotqa" / "hotpot_train_v1.1.json", train)
    dev = [hotpot_row(i) for i in range(20, 30)]
    write_json(folder / "hotpotqa" / "hotpot_dev_distractor_v1.json", dev)
    return folder


def build(*arguments: Any, benchmark: str = "hotpotqa") -> int:
    return main(["build", "--benchmark", benchmark, "--split", "train", *map(str, arguments)])


def test_build_writes_tasks_and_their_provenance(data: Path) -> None:
    out = data / "x.parquet"
    common = ("--input", data, "--docs", 12, "--questions", "1-3", "--n", 9, "--seed", 5)
    assert build(*common, "--out", out) == 0
    tasks = load_tasks(out)
    assert len(tasks) == 9
    assert all(len(task.documents) == 12 and task.source == "hotpotqa" for task in tasks)
    provenance = json.loads((data / "x.parquet.json").read_text())
    source = data / "hotpotqa" / "hotpot_train_v1.1.json"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    described = {"name": source.name, "bytes": source.stat().st_size, "sha256": digest, "rows": 11}
    assert provenance["inputs"] == [described]
    assert provenance["output"]["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert provenance["command"][:3] == ["atommem", "data", "build"]
    assert (provenance["seed"], provenance["documents"], provenance["questions"]) == (5, 12, [1, 3])
    pool = {"questions": 10, "documents": 40, "rows_without_all_gold_documents": 1}
    assert provenance["pool"] == pool
    assert provenance["atommem"] == version("atommem")


SAME = hotpot_row(3, _id="elsewhere", question="where does the brother of  Orla 3 live")
OTHER = hotpot_row(40)
FORMS: dict[str, Callable[[Path], object]] = {
    "same id": lambda path: write_json(path, [hotpot_row(3, question="Other words?"), OTHER]),
    "same text": lambda path: write_json(path, [SAME, OTHER]),
    "hugging face": lambda path: write_parquet(path, [columns(hotpot_row(3)), columns(OTHER)]),
    "memagent": lambda path: write_json(
        path, [{"context": "x", "input": SAME["question"], "answers": ["Port"]}]
    ),
}
"""Files that ask question 3 of the train file and another one."""


@pytest.mark.parametrize("form", FORMS)
def test_build_with_questions_of_an_excluded_file_is_refused(
    data: Path, capsys: Capture, form: str
) -> None:
    file, out = data / form, data / "x.parquet"
    dev = data / "hotpotqa" / "hotpot_dev_distractor_v1.json"
    FORMS[form](file)
    common = ("--input", data, "--docs", 12, "--n", 40, "--out", out)
    excluded = ("--exclude", dev, "--exclude", file)
    assert build(*common, *excluded) == 2
    error = capsys.readouterr().err
    question = "Where does the brother of Orla 3 live?"
    assert f"{file}: has 1 questions of the input, too (id3: {question})" in error
    assert not out.exists()
    assert build(*common, *excluded, "--drop_overlap") == 0
    asked = {q.id for task in load_tasks(out) for q in task.questions}
    assert asked == {f"id{i}" for i in range(10) if i != 3}
    provenance = json.loads((data / "x.parquet.json").read_text())["excluded"]
    shared = [(one["name"], one["shared_questions"]) for one in provenance]
    assert shared == [(dev.name, 0), (file.name, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--docs", 3, "--questions", 2), "of this pool may need 4 gold documents, more than the"),
        (("--unanswerable",), "only musique (Full) has"),
        (("--aliases", "x"), "only 2wikimultihopqa has aliases"),
        (("--n", 0), "n=0: must be at least 1"),
        (("--out", "x.csv"), "the name must end in .parquet or .jsonl"),
        (("--out", "{data}/link.jsonl"), "would overwrite the input"),
        (("--benchmark", "2wikimultihopqa", "--input", "{data}/lines.jsonl"), "is one of hotpotqa"),
        (("--input", "{data}/page.html"), "starts with '<html>'"),
        (("--input", "{data}/empty.json"), "has no rows"),
    ],
)
def test_build_with_an_invalid_option_leaves_no_file(
    data: Path, capsys: Capture, arguments: tuple[Any, ...], message: str
) -> None:
    lines = write_lines(data / "lines.jsonl", [hotpot_row(i) for i in range(10)])
    before = lines.read_bytes()
    (data / "link.jsonl").symlink_to(lines)
    (data / "page.html").write_text("<html>")
    write_json(data / "empty.json", [])
    given = [str(argument).format(data=data) for argument in arguments]
    common = ("--input", lines, "--docs", 12, "--n", 3, "--out", data / "x.parquet")
    assert build(*common, *given) == 2
    error = capsys.readouterr().err
    assert "atommem data: " in error
    assert message in error
    assert not (data / "x.parquet").exists()
    assert lines.read_bytes() == before


def pair(number: int) -> list[dict[str, Any]]:
    """A row with all of its evidence, and the same row without its first supporting paragraph."""
    row = musique_row(number)
    missing = next(item for item in row["paragraphs"] if item["is_supporting"])
    rest = [item for item in row["paragraphs"] if item != missing]
    return [row, {**row, "answerable": False, "paragraphs": rest}]


def test_build_of_musique_full_pairs_unanswerable_questions(tmp_path: Path) -> None:
    rows = [row for number in range(0, 16, 2) for row in pair(number)]
    path, out = write_lines(tmp_path / "m.jsonl", rows), tmp_path / "o.jsonl"
    common = ("--input", path, "--docs", 6, "--out", out)
    assert build(*common, "--n", 16, "--unanswerable", benchmark="musique") == 0
    tasks = load_tasks(out)
    for first, second in zip(tasks[::2], tasks[1::2], strict=True):
        (one,), (two,) = first.questions, second.questions
        assert one.id == two.id == first.metadata["sample_id"] == second.metadata["sample_id"]
        assert {one.metadata["answerable"], two.metadata["answerable"]} == {True, False}
        assert one.text == two.text
        assert one.text.endswith('answer "not mentioned".)')
        lacking = first if not one.metadata["answerable"] else second
        evidence = f"Her brother is Bran. {one.id.split('_')[2]}"
        assert evidence not in {document.text for document in lacking.documents}
    assert build(*common, "--n", 4, benchmark="musique") == 0
    assert all("answerable" not in task.questions[0].metadata for task in load_tasks(out))


def gaia(number: int, level: int = 1, file: str = "") -> dict[str, Any]:
    row = {"task_id": f"g{number}", "Question": f"How many {number}?", "Final answer": "17"}
    return row | {"Level": level, "file_name": file}


def test_build_for_the_web_selects_and_groups_questions(tmp_path: Path, capsys: Capture) -> None:
    path, out = tmp_path / "metadata.jsonl", tmp_path / "tasks.jsonl"
    write_lines(path, [gaia(1), gaia(2, 2), gaia(3, 3, "a.xlsx")])
    flags = ["build", "--environment", "web", "--benchmark", "gaia", "--split", "validation"]
    call = [*flags, "--input", str(path), "--out", str(out)]

    def ids(*arguments: str) -> list[str]:
        assert main([*call, *arguments]) == 0
        return [question.id for task in load_tasks(out) for question in task.questions]

    assert ids() == ["g1", "g2", "g3"]
    assert "file_name=" in capsys.readouterr().out
    assert ids("--where", "file_name=", "--where", "level=2") == ["g2"]
    listed = [{"task_id": "g3", "Question": "?"}, {"id": "x", "question": "how many 1"}]
    only = write_lines(tmp_path / "only.jsonl", listed)
    assert ids("--only", str(only)) == ["g1", "g3"]
    assert len(ids("--n", "2")) == len(ids("--questions", "2")) == 2
    for arguments, message in (
        (("--where", "color=red"), "gaia has level, file_name, category"),
        (("--where", "level=9"), "0 are left"),
        (("--out", str(path)), "would overwrite"),
    ):
        assert main([*call, *arguments]) == 2
        assert message in capsys.readouterr().err


def test_convert_writes_tasks_and_provenance(tmp_path: Path, capsys: Capture) -> None:
    path, out = write_json(tmp_path / "locomo10.json", [locomo_row()]), tmp_path / "tasks.parquet"
    options = ["--out", str(out), "--wording", "official", "--questions", "1"]
    assert main(["convert", str(path), *options]) == 0
    assert load_tasks(out) == list(read_locomo(path, 1, OFFICIAL))
    assert json.loads((tmp_path / "tasks.parquet.json").read_text())["wording"] == "official"
    assert main(["convert", str(path), "--out", str(out)]) == 0
    assert load_tasks(out) == load_tasks(path)
    lines = write_lines(tmp_path / "x.jsonl", [longmemeval_row()])
    assert main(["convert", str(lines), "--out", str(lines)]) == 2
    assert main(["convert", str(lines), *options]) == 2
    assert "field 'sample_id' is missing" in capsys.readouterr().err


def test_show_prints_questions_answers_and_gold_documents(data: Path, capsys: Capture) -> None:
    assert build("--input", data, "--docs", 6, "--n", 5, "--out", data / "x.parquet") == 0
    capsys.readouterr()
    assert main(["show", str(data / "x.parquet"), "--n", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("hotpotqa-train-") == 2
    assert "  6 documents; gold:" in shown
    assert "    type: bridge" in shown
    assert "answer: Port " in shown
    assert ": Bran lives in Port" in shown

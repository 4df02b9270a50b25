"""`atommem data`: build with provenance, refusals, show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.task_files import load_tasks
from tests.envs.benchmark_rows import (
    columns,
    hotpot_row,
    twowiki_row,
    write_json,
    write_lines,
    write_parquet,
)
from tests.fakes import command

main = command("data")


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
    assert build(*common, "--workers", 2, "--out", out) == 0
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
    assert build(*common, "--workers", 1, "--out", data / "y.parquet") == 0
    assert out.read_bytes() == (data / "y.parquet").read_bytes()


def test_build_without_input_reads_atommem_data_or_the_folder_data(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOMMEM_DATA", str(data))
    assert build("--docs", 6, "--n", 2, "--out", data / "x.jsonl") == 0
    monkeypatch.delenv("ATOMMEM_DATA")
    monkeypatch.chdir(data.parent)
    assert build("--docs", 6, "--n", 2, "--out", "y.jsonl") == 0
    assert load_tasks("y.jsonl") == load_tasks(data / "x.jsonl")
    monkeypatch.chdir(data)
    assert build("--docs", 6, "--n", 2, "--out", "z.jsonl") == 2
    assert "data: no such file or folder" in capsys.readouterr().err


def test_build_with_aliases_adds_answers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [{"Q_id": f"Q{i}", "aliases": [f"Harbour {i}"], "demonyms": []} for i in range(10)]
    aliases = write_lines(data / "id_aliases.json", names)
    path = write_json(data / "train.json", [twowiki_row(i) for i in range(10)])
    common = ("--aliases", aliases, "--docs", 6, "--n", 3, "--out", data / "x.parquet")
    assert build("--input", path, *common, benchmark="2wikimultihopqa") == 0
    for task in load_tasks(data / "x.parquet"):
        number = task.questions[0].id[2:]
        assert task.questions[0].answers == (f"Port {number}", f"Harbour {number}")
    assert build("--input", data, *common) == 2
    assert "aliases is given for hotpotqa" in capsys.readouterr().err


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
    data: Path, capsys: pytest.CaptureFixture[str], form: str
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
    assert "--drop_overlap" in error
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
        (("--unanswerable",), "unanswerable is given for hotpotqa; only musique (Full)"),
        (("--n", 0), "n=0: must be at least 1"),
    ],
)
def test_build_with_an_invalid_option_leaves_no_file(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], message: str
) -> None:
    common = ("--input", data, "--docs", 12, "--n", 3, "--out", data / "x.parquet")
    assert build(*common, *arguments) == 2
    error = capsys.readouterr().err
    assert "atommem data: " in error
    assert message in error
    assert not (data / "x.parquet").exists()


def test_show_prints_questions_answers_and_gold_documents(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build("--input", data, "--docs", 6, "--n", 5, "--out", data / "x.parquet") == 0
    capsys.readouterr()
    assert main(["show", str(data / "x.parquet"), "--n", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("hotpotqa-train-") == 2
    assert "(hotpotqa: 1 questions, 6 documents, 2 of them gold, " in shown
    assert "[bridge, hard, 2 hops]" in shown
    assert "answer: Port " in shown
    assert ": Bran lives in Port" in shown

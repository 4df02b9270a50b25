"""`atommem data`: build with its provenance, refusals, show."""

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
    musique_row,
    twowiki_row,
    write_json,
    write_lines,
    write_parquet,
)
from tests.fakes import command

main = command("data")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a train and a dev file of HotpotQA, and a train file of 2Wiki."""
    for name in ("hotpotqa", "2wikimultihopqa"):
        (tmp_path / "data" / name).mkdir(parents=True)
    folder = tmp_path / "data"
    lost = hotpot_row(30, supporting_facts=[["Nowhere", 0]])
    write_json(
        folder / "hotpotqa" / "hotpot_train_v1.1.json", [*(hotpot_row(i) for i in range(10)), lost]
    )
    write_json(
        folder / "hotpotqa" / "hotpot_dev_distractor_v1.json",
        [hotpot_row(i) for i in range(20, 30)],
    )
    write_json(folder / "2wikimultihopqa" / "train.json", [twowiki_row(i) for i in range(10)])
    return folder


def build(*arguments: Any, benchmark: str = "hotpotqa") -> int:
    return main(["build", "--benchmark", benchmark, "--split", "train", *map(str, arguments)])


def test_build(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data / "x.parquet"
    common = ("--input", data, "--docs", 12, "--questions", "1-3", "--n", 9, "--seed", 5)
    assert build(*common, "--workers", 2, "--out", out) == 0
    tasks = load_tasks(out)
    assert len(tasks) == 9
    assert all(len(task.documents) == 12 and task.source == "hotpotqa" for task in tasks)
    assert {len(task.questions) for task in tasks} == {1, 2, 3}
    assert "9 tasks" in capsys.readouterr().out

    provenance = json.loads((data / "x.parquet.json").read_text())
    source = data / "hotpotqa" / "hotpot_train_v1.1.json"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    described = {"name": source.name, "bytes": source.stat().st_size, "sha256": digest, "rows": 11}
    assert provenance["inputs"] == [described]
    assert provenance["output"]["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert provenance["command"][:3] == ["atommem", "data", "build"]
    assert provenance["command"][-1] == str(out)
    assert (provenance["seed"], provenance["documents"], provenance["questions"]) == (5, 12, [1, 3])
    assert provenance["pool"] == {
        "questions": 10,
        "documents": 40,
        "rows_without_all_gold_documents": 1,
    }
    asked = sum(len(task.questions) for task in tasks)
    assert provenance["counts"] == {"tasks": 9, "questions": asked, "documents": 9 * 12}
    assert provenance["atommem"] == version("atommem")
    assert provenance["created"].endswith("+00:00")
    assert build(*common, "--workers", 1, "--out", data / "y.parquet") == 0
    assert out.read_bytes() == (data / "y.parquet").read_bytes(), (
        "the same command gives the same bytes"
    )


def test_the_folder_may_come_from_the_environment_or_be_called_data(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOMMEM_DATA", str(data))
    assert build("--docs", 6, "--n", 2, "--out", data / "x.jsonl") == 0
    monkeypatch.delenv("ATOMMEM_DATA")
    monkeypatch.chdir(data.parent)
    assert build("--docs", 6, "--n", 2, "--out", "y.jsonl") == 0
    assert load_tasks("y.jsonl") == load_tasks(data / "x.jsonl")
    monkeypatch.chdir(data)
    capsys.readouterr()
    assert build("--docs", 6, "--n", 2, "--out", "z.jsonl") == 2
    assert (
        capsys.readouterr().err
        == "atommem data: data: no such file or folder: give the benchmark's own files.\n"
    )


def test_aliases(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aliases = write_lines(
        data / "id_aliases.json",
        [{"Q_id": f"Q{i}", "aliases": [f"Harbour {i}"], "demonyms": []} for i in range(10)],
    )
    common = (
        "--input",
        data,
        "--aliases",
        aliases,
        "--docs",
        6,
        "--n",
        3,
        "--out",
        data / "x.parquet",
    )
    assert build(*common, benchmark="2wikimultihopqa") == 0
    for task in load_tasks(data / "x.parquet"):
        number = task.questions[0].id[2:]
        assert task.questions[0].answers == (f"Port {number}", f"Harbour {number}")
    assert json.loads((data / "x.parquet.json").read_text())["aliases"]["name"] == "id_aliases.json"
    assert build(*common) == 2
    assert "aliases is given for hotpotqa" in capsys.readouterr().err


SAME, OTHER = (
    hotpot_row(3, _id="elsewhere", question="where does the brother of  Orla 3 live"),
    hotpot_row(40),
)
FORMS: dict[str, Callable[[Path], object]] = {
    "official": lambda path: write_json(path, [hotpot_row(3, question="Other words?"), OTHER]),
    "text": lambda path: write_json(path, [SAME, OTHER]),
    "hugging face": lambda path: write_parquet(path, [columns(hotpot_row(3)), columns(OTHER)]),
    "built.parquet": lambda path: build(
        *(
            "--input",
            write_json(path.with_name("dev"), [SAME, OTHER]),
            "--docs",
            4,
            "--n",
            2,
            "--out",
            path,
        )
    ),
    "memagent": lambda path: write_json(
        path, [{"context": "x", "input": SAME["question"], "answers": ["Port"]}]
    ),
    "musique": lambda path: write_lines(
        path, [musique_row(answerable=False, question=SAME["question"])]
    ),
}
"""Evaluation files of any format that ask question 3 of the train file, and one that is not in it."""


@pytest.mark.parametrize("form", FORMS)
def test_questions_of_an_evaluation_file_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file, out, none_shared = (
        data / form,
        data / "x.parquet",
        data / "hotpotqa" / "hotpot_dev_distractor_v1.json",
    )
    FORMS[form](file)
    common = (
        "--input",
        data,
        "--docs",
        12,
        "--n",
        40,
        "--out",
        out,
        "--exclude",
        none_shared,
        "--exclude",
        file,
    )
    assert build(*common) == 2
    error = capsys.readouterr().err
    assert (
        f"{file}: has 1 questions of the input, too (id3: Where does the brother of Orla 3 live?)"
        in error
    )
    assert "--drop_overlap" in error
    assert not out.exists()
    assert build(*common, "--drop_overlap") == 0
    assert {q.id for task in load_tasks(out) for q in task.questions} == {
        f"id{i}" for i in range(10) if i != 3
    }
    excluded = json.loads((data / "x.parquet.json").read_text())["excluded"]
    shared = [(one["name"], one["shared_questions"]) for one in excluded]
    assert shared == [(none_shared.name, 0), (file.name, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--docs", 3, "--questions", 2),
            "tasks of 2 questions of this pool may need 4 gold documents, more than the",
        ),
        (("--unanswerable",), "unanswerable is given for hotpotqa; only musique (Full)"),
        (("--n", 0), "n=0: must be at least 1"),
        (
            ("--exclude", "{data}/hotpotqa/hotpot_train_v1.1.json"),
            "has 11 questions of the input, too (id0: Where",
        ),
        (("--exclude", "{none}"), "none.json: has no questions"),
        (("--exclude", "{odd}"), "row 1: field 'questions' must hold objects"),
    ],
)
def test_errors(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], message: str
) -> None:
    files = {
        "none": write_json(data / "none.json", []),
        "odd": write_json(data / "odd.json", [{"questions": ["x"]}]),
    }
    given = [str(argument).format(data=data, **files) for argument in arguments]
    assert build("--input", data, "--docs", 12, "--n", 3, "--out", data / "x.parquet", *given) == 2
    error = capsys.readouterr().err
    assert "atommem data: " in error
    assert message in error
    assert not (data / "x.parquet").exists()


def test_show(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--input", data, "--docs", 6, "--n", 5, "--out", data / "x.parquet") == 0
    capsys.readouterr()
    assert main(["show", str(data / "x.parquet"), "--n", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("hotpotqa-train-") == 2
    for said in (
        "(hotpotqa: 1 questions, 6 documents, 2 of them gold, ",
        *(
            "Where does the brother of Orla",
            "[bridge, hard, 2 hops]",
            "answer: Port ",
            ": Bran lives in Port",
        ),
    ):
        assert said in shown
    ready = [{"context": "Document 1:\n" + "text " * 50, "input": "Who?", "answers": ["Orla", "O"]}]
    assert main(["show", str(write_json(data / "eval_50.json", ready))]) == 0
    shown = capsys.readouterr().out
    assert "context: Document 1: text text" in shown
    assert "...\n" in shown
    assert "answer: Orla | O" in shown

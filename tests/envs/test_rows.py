"""Data files: damaged rows and files of other kinds are refused with file, row, field and fix."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    hotpot_row,
    musique_row,
    twowiki_row,
    write_json,
    write_lines,
)
from tests.envs.test_benchmarks_memagent import eval_row, train_row
from tests.envs.test_conversations import beam_row, longmemeval_row, memory_agent_bench_row
from tests.envs.test_locomo import conversation
from tests.fakes import command

main = command("data")
TASK = {
    "id": "t0",
    "questions": [{"text": "Who?", "answers": ["Orla"], "id": "q", "metadata": "{}"}],
    "documents": [{"title": "Orla", "text": "A potter."}],
}
ROWS: dict[str, dict[str, Any]] = {
    "hotpotqa": hotpot_row(2),
    "2wikimultihopqa": twowiki_row(2),
    "musique": musique_row(2),
    "tasks": TASK,
    "memagent": eval_row(),
    "memagent training": train_row(),
    "longmemeval": longmemeval_row(2),
    "memoryagentbench": memory_agent_bench_row(2),
    "beam": beam_row(2),
    "locomo": conversation(),
}


def read(form: str, path: Path) -> None:
    if form in ("hotpotqa", "2wikimultihopqa", "musique"):
        list(get_benchmark(form).read(path))
    else:
        load_tasks(path)


@pytest.mark.parametrize(
    ("form", "field", "value"),
    [
        ("2wikimultihopqa", "question", None),
        ("musique", "paragraphs", 7),
        ("hotpotqa", "supporting_facts", [["Orla", "first"]]),
        ("tasks", "documents", [{"text": "x", "gold": 1}]),
        ("memagent training", "reward_model", {"ground_truth": []}),
        ("locomo", "conversation", {"session_1": ["x"], "session_1_date_time": "now"}),
        ("longmemeval", "haystack_dates", ["2023"]),
        ("memoryagentbench", "answers", [["a"]] * 11),
        ("beam", "probing_questions", "__import__('os')"),
    ],
)
def test_row_with_a_wrong_field_raises_with_its_place(
    tmp_path: Path, form: str, field: str, value: Any
) -> None:
    path = write_json(tmp_path / "x.json", [{**ROWS[form], field: value}])
    with pytest.raises(DataError) as caught:
        read(form, path)
    message = str(caught.value)
    assert f"{path}: row 1" in message
    assert field in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"[]", mtime=0), "is an archive. Unpack it"),
        (b"", "expected a JSON list"),
        (b"<html>", "starts with '<html>'"),
        (b"[]", "has no rows"),
        (b'[{"a": "\xff"}]', "not JSON in UTF-8"),
        (b'[{"a": 1}, {"a', "truncated"),
    ],
)
def test_file_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert build("hotpotqa", path, tmp_path / "o.jsonl") == 2
    error = capsys.readouterr().err
    assert f"{path}: " in error
    assert message in error


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in (json.dumps([TASK]), json.dumps(TASK)):
        path.write_text(text, encoding="utf-8-sig")
        assert load_tasks(path)[0].id == "t0"


def build(benchmark: str, path: Path, out: Path, *more: Any) -> int:
    flags = ["--benchmark", benchmark, "--split", "train", "--input", path, "--out", out]
    return main(["build", *map(str, flags), "--docs", "8", "--n", "2", *map(str, more)])


def test_missing_shards_and_duplicate_ids_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, rows = tmp_path / "o.jsonl", [hotpot_row(number) for number in range(16)]
    write_json(tmp_path / "train-00000-of-00002.parquet", rows[:8])
    assert build("hotpotqa", tmp_path, out) == 2
    assert "lacks train-00001-of-00002.parquet" in capsys.readouterr().err
    write_json(tmp_path / "train-00001-of-00002.parquet", rows[8:])
    assert build("hotpotqa", tmp_path, out) == 0
    path = write_json(tmp_path / "x.json", [*rows, rows[3]])
    assert build("hotpotqa", path, out) == 2
    assert f"row 17: field 'id' is 'id3', as in {path}: row 4" in capsys.readouterr().err


def test_file_of_the_other_benchmark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_json(tmp_path / "x.json", [hotpot_row()])
    assert build("2wikimultihopqa", path, tmp_path / "o.jsonl") == 2
    error = capsys.readouterr().err
    assert "is one of hotpotqa, but the benchmark is 2wikimultihopqa. Give --benchmark" in error


def test_build_does_not_overwrite_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "x.jsonl", [hotpot_row(number) for number in range(8)])
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    for out in (path, tmp_path / "link.jsonl"):
        assert build("hotpotqa", path, out) == 2
        assert f"would overwrite the input {path}" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_each_question_has_its_own_gold_documents(tmp_path: Path) -> None:
    (task,) = load_tasks(write_json(tmp_path / "x.json", [conversation()]))
    assert [len(gold_documents(task, question)) for question in task.questions] == [2, 1, 0, 1, 1]
    shared = [musique_row(0), musique_row(2), *(musique_row(number) for number in range(4, 16, 2))]
    path, out = write_lines(tmp_path / "m.jsonl", shared), tmp_path / "o.jsonl"
    assert build("musique", path, out, "--questions", 2) == 0
    for task in load_tasks(out):
        for question in task.questions:
            number = question.text.split()[-2]
            texts = {document.text for document in gold_documents(task, question)}
            assert texts == {f"Her brother is Bran. {number}", f"Port. {number}"}


def test_locomo_evidence_without_turn_warns_and_is_kept(tmp_path: Path) -> None:
    asked = [{"question": "?", "answer": "x", "evidence": ["D2:1", "D4:36", "D"], "category": 1}]
    path = write_json(tmp_path / "x.json", [conversation(qa=asked)])
    with pytest.warns(UserWarning, match=r"row 1: field 'qa\[0\].evidence' names D4:36, D"):
        (task,) = load_tasks(path)
    assert task.questions[0].metadata["evidence_without_turn"] == ["D4:36", "D"]
    assert len(gold_documents(task, task.questions[0])) == 1

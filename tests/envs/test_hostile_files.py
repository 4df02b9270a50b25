"""Damaged, mistaken and hostile data files: a hundred, each refused with file, row, field and what to do."""

from __future__ import annotations

import functools
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    damaged,
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

Row = dict[str, Any]


def task_row(number: int = 0) -> Row:
    questions = [{"text": "Who?", "answers": ["Orla"], "id": "q", "metadata": "{}"}]
    return {
        "id": f"t{number}",
        "questions": questions,
        "documents": [{"title": "Orla", "text": "A potter."}],
    }


MAKERS: dict[str, Callable[[int], Row]] = {
    "hotpotqa": hotpot_row,
    "2wikimultihopqa": twowiki_row,
    "musique": musique_row,
    "tasks": task_row,
    "memagent": lambda number: {**eval_row(), "context": f"Document {number}: text"},
    "memagent training": lambda number: {**train_row(), "context": f"Document {number}: text"},
    "longmemeval": longmemeval_row,
    "memoryagentbench": memory_agent_bench_row,
    "beam": beam_row,
    "locomo": lambda number: conversation(sample_id=f"c{number}"),
}
REFUSED = {
    **{
        "hotpotqa": 320,
        "2wikimultihopqa": 307,
        "musique": 236,
        "tasks": 160,
        "memagent": 52,
        "locomo": 379,
    },
    **{"longmemeval": 355, "memoryagentbench": 224, "beam": 298, "memagent training": 134},
}
"""How many of the damaged rows are refused; what is wrong in the others is harmless: fields that nobody reads."""
BEAM_TURN = {"role": "user", "content": "x", "id": 0}
DEEP = functools.reduce(lambda inner, _: [inner], range(40), BEAM_TURN)


def read(form: str, path: Path) -> None:
    if form in ("hotpotqa", "2wikimultihopqa", "musique"):
        list(get_benchmark(form).read(path))
    else:
        load_tasks(path)


def refusal(form: str, path: Path, row: Row) -> str:
    """What is said of a file whose second row this is; nothing if it is read."""
    write_json(path, [MAKERS[form](1), row])
    message = ""
    try:
        read(form, path)
    except DataError as error:
        message = str(error)
    assert not message or f"{path}: row 2" in message
    assert not message or any(
        word in message for word in ("Mend the row", "use train or dev", "Make tasks")
    ), message
    return message


@pytest.mark.filterwarnings("ignore:.* names .*, which is no turn")
@pytest.mark.parametrize("form", MAKERS)
def test_hostile_rows_are_refused_with_their_place_and_the_remedy(
    tmp_path: Path, form: str
) -> None:
    """Hundreds of a form; nothing but a refusal comes of any, and it names the field, or the fields that there are."""
    said = [
        (field, refusal(form, tmp_path / "x.json", row)) for field, row in damaged(MAKERS[form](2))
    ]
    assert len([message for _, message in said if message]) >= REFUSED[form]
    for field, message in said:
        # Fields that are missing make another form of a row, and a single question answers of another form.
        named = (field, "the row has", "has the fields", "field 'answers[0][0]'")
        assert not message or any(words in message for words in named), message


@pytest.mark.parametrize(
    ("form", "field", "value"),
    [
        ("tasks", "id", "t1"),
        ("tasks", "context", "beside documents"),
        ("tasks", "documents", None),
        ("tasks", "documents", [{"text": "x", "gold": 1}]),
        ("tasks", "source", 3),
        *(
            (form, "supporting_facts", [["Orla", "first"]])
            for form in ("hotpotqa", "2wikimultihopqa")
        ),
        ("hotpotqa", "context", [["Orla", "x"]]),
        ("memagent", "answers", [["a"], ["b"]]),
        ("memagent training", "prompt", [{"role": "system", "content": "x"}]),
        (
            "memagent training",
            "prompt",
            [{"role": "user", "content": ["a?", "b?", "and c?"]}],
        ),  # answers for two
        ("memagent training", "reward_model", {"ground_truth": []}),
        ("locomo", "conversation", {"session_1": ["x"], "session_1_date_time": "now"}),
        ("longmemeval", "haystack_dates", ["2023"]),
        ("longmemeval", "haystack_sessions", [[], [], []]),
        ("memoryagentbench", "answers", [["a"]] * 11),
        ("memoryagentbench", "metadata", {"source": "s", "question_types": [1] * 12}),
        ("beam", "chat", [[BEAM_TURN, BEAM_TURN]]),
        ("beam", "chat", [{"turns": 3}]),
        ("beam", "chat", DEEP),
        *(
            ("beam", "probing_questions", value)
            for value in ("import os", "__import__('os')", "[" * 500)
        ),
    ],
)
def test_rows_that_contradict_themselves_are_refused(
    tmp_path: Path, form: str, field: str, value: Any
) -> None:
    assert refusal(form, tmp_path / "x.json", {**MAKERS[form](2), field: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"[]", mtime=0), "is packed (gzip). Unpack it"),
        (b"PK\x03\x04rest", "is packed (zip). Unpack it"),
        (b"", "is empty. Give one with tasks in it"),
        (b"[]", "has no rows. Give one that has"),
        (b'{\n"data": [1]}', "is one JSON object with the fields 'data', expected a list"),
        (b"<html>", "but it starts with '<html>'. Give the benchmark's own file"),
        (b'[{"a": "\xff"}]', "is not UTF-8"),
        ('[{"a": 1}]'.encode("utf-16"), "(UTF-16, or no text at all). Save the file as UTF-8"),
        ('[{"a": 1}]'.encode("utf-16-be"), "is not UTF-8 (UTF-16, or no text at all)"),
        (b"[1]", "row 1 is 1 (int), expected an object with named fields. Give a list"),
    ],
)
def test_files_of_other_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert build("hotpotqa", path, tmp_path / "o.jsonl") == 2
    error = capsys.readouterr().err
    assert f"{path}: " in error
    assert message in error
    assert "Traceback" not in error
    for text in (json.dumps([task_row()]), json.dumps(task_row())):
        path.write_text(text, encoding="utf-8-sig")
        assert load_tasks(path)[0].id == "t0", "a byte order mark is nothing"


def build(benchmark: str, path: Path, out: Path, *more: Any) -> int:
    common = [
        "build",
        "--benchmark",
        benchmark,
        "--split",
        "train",
        "--input",
        str(path),
        "--out",
        str(out),
    ]
    return main([*common, "--docs", "8", "--n", "2", *map(str, more)])


def rows(make: Callable[[int], Row] = hotpot_row) -> list[Row]:
    return [make(number) for number in range(8)]


def test_missing_and_mixed_shards_and_duplicate_ids_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, good = tmp_path / "o.jsonl", write_json(tmp_path / "train-00000-of-00002.parquet", rows())
    assert build("hotpotqa", tmp_path, out) == 2
    assert (
        f"{tmp_path}: lacks train-00001-of-00002.parquet beside train-00000-of-00002"
        in capsys.readouterr().err
    )
    write_json(
        tmp_path / "train-00001-of-00002.parquet", [hotpot_row(number) for number in range(8, 16)]
    )
    assert build("hotpotqa", tmp_path, out) == 0
    write_json(tmp_path / "train-00000-of-00001.parquet", rows())
    assert build("hotpotqa", tmp_path, out) == 2
    path = write_json(tmp_path / "x.json", [*rows(), hotpot_row(3)])
    capsys.readouterr()
    assert build("hotpotqa", path, out) == 2
    assert (
        f"{path}: row 9: field 'id' is 'id3', as in {path}: row 4. Give every row once"
        in capsys.readouterr().err
    )
    assert build("hotpotqa", good, out, "--input", good) == 2, "the same file twice"


def test_the_wrong_benchmark_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("hotpotqa", "2wikimultihopqa")
    for name, wrong in (names, names[::-1]):
        path = write_json(tmp_path / "x.json", rows(MAKERS[name]))
        assert build(wrong, path, tmp_path / "o.jsonl") == 2
        assert f"{path}: row 1: field " in (error := capsys.readouterr().err)
        assert f"is one of {name}, but the benchmark is {wrong}. Give --benchmark {name}" in error
        assert build("musique", path, tmp_path / "o.jsonl") == 2


def test_an_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "x.jsonl", rows())
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    for out in (path, tmp_path / "link.jsonl", tmp_path / "." / "x.jsonl"):
        assert build("hotpotqa", path, out) == 2
        assert f"would overwrite the input {path}: give another name" in capsys.readouterr().err
    beside = write_json(tmp_path / "o.jsonl.json", rows())
    assert build("hotpotqa", beside, tmp_path / "o.jsonl") == 2, (
        "where the file came from is written beside it"
    )
    assert path.read_bytes() == before


@pytest.mark.slow
def test_show_into_a_closed_pipe(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [task_row(number) for number in range(3000)])
    command = f"{sys.executable} -m atommem.cli data show {path} --n 3000 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout[:2]) == (0, "", "t0")


def test_each_question_has_its_own_gold_documents(tmp_path: Path) -> None:
    """LoCoMo: its own evidence, not that of ten questions. MuSiQue: not every paragraph of the same title."""
    (task,) = load_tasks(write_json(tmp_path / "x.json", [conversation()]))
    assert [len(gold_documents(task, question)) for question in task.questions] == [2, 1, 0, 1, 1]
    shared = [musique_row(0), musique_row(2), *(musique_row(number) for number in range(4, 16, 2))]
    assert (
        build(
            "musique",
            write_lines(tmp_path / "m.jsonl", shared),
            tmp_path / "o.jsonl",
            "--questions",
            2,
        )
        == 0
    )
    for task in load_tasks(tmp_path / "o.jsonl"):
        for question in task.questions:
            number = question.text.split()[-2]
            texts = {document.text for document in gold_documents(task, question)}
            assert texts == {f"Her brother is Bran. {number}", f"Port. {number}"}


def test_evidence_that_names_no_turn_is_said_and_kept(tmp_path: Path) -> None:
    asked = [{"question": "?", "answer": "x", "evidence": ["D2:1", "D4:36", "D"], "category": 1}]
    path = write_json(tmp_path / "x.json", [conversation(qa=asked)])
    with pytest.warns(
        UserWarning,
        match=r"x\.json: row 1: field 'qa\[0\].evidence' names D4:36, D, which is no turn",
    ):
        (task,) = load_tasks(path)
    assert task.questions[0].metadata["evidence_without_turn"] == ["D4:36", "D"]
    assert len(gold_documents(task, task.questions[0])) == 1

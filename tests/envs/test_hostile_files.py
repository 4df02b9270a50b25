"""Damaged, mistaken and hostile data files: a hundred, each refused with file, row, field and what to do."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.registry import get_benchmark
from atommem.envs.longdoc.fact_recall import gold_documents
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import hotpot_row, musique_row, twowiki_row, write_json, write_lines
from tests.envs.conversation_rows import beam_row, longmemeval_row, memory_agent_bench_row
from tests.envs.test_locomo import conversation, turn
from tests.fakes import command

main = command("data")

Row = dict[str, Any]


def task_row(number: int = 0, **changes: Any) -> Row:
    questions = [{"text": "Who?", "answers": ["Orla"], "id": "q"}]
    return {
        "id": f"t{number}",
        "questions": questions,
        "documents": [{"title": "Orla", "text": "A potter."}],
        **changes,
    }


def memagent_row(number: int = 0, **changes: Any) -> Row:
    return {"context": f"Document {number}: text", "input": "Who?", "answers": ["Orla"], "num_docs": 1, **changes}


MAKERS: dict[str, Callable[..., Row]] = {
    "hotpotqa": hotpot_row,
    "2wikimultihopqa": twowiki_row,
    "musique": musique_row,
    "tasks": task_row,
    "memagent": memagent_row,
    "longmemeval": longmemeval_row,
    "memoryagentbench": memory_agent_bench_row,
    "beam": beam_row,
    "locomo": lambda number=0, **changes: conversation(sample_id=f"c{number}", **changes),
}
MISSING = object()
_PAIR = ["Orla 0", ["A potter."]]


@dataclass(frozen=True)
class Fault:
    """A field of the second row, and what stands in it; `inner` is what the message calls the field."""

    form: str
    field: str
    value: Any
    inner: str


def faults() -> Iterator[Fault]:
    for form in ("hotpotqa", "2wikimultihopqa"):
        for value in (MISSING, None, 7, "  ", []):
            yield Fault(form, "_id", value, "_id")
            yield Fault(form, "question", value, "question")
            yield Fault(form, "answer", value, "answer")
        for value in (
            MISSING,
            None,
            [],
            "not json",
            [["Orla"]],
            [["Orla", "x"]],
            [[" ", ["x"]]],
            [["Orla", [1]]],
            {"title": ["a"]},
        ):
            yield Fault(form, "context", value, "context")
        for value in (MISSING, None, [], [["Orla", "first"]], [[3, 0]], {"title": ["a", "b"], "sent_id": [1]}):
            yield Fault(form, "supporting_facts", value, "supporting_facts")
    for value in (MISSING, None, 7, " "):
        yield Fault("musique", "id", value, "id")
        yield Fault("musique", "question", value, "question")
        yield Fault("musique", "answer", value, "answer")
    for field, values in (
        ("answer_aliases", (MISSING, "x", [1])),
        ("answerable", (MISSING, "true", None)),
        ("paragraphs", (MISSING, [], ["x"], [{"title": "x", "paragraph_text": "y"}], [{"title": 1}])),
        ("question_decomposition", (MISSING, "{", 3)),
    ):
        for value in values:
            yield Fault("musique", field, value, field)
    for field, values in (
        ("id", (MISSING, None, 7, "t1")),
        ("questions", ([], ["x"], [{"text": 1}], [{"text": "x", "answers": "y"}])),
        ("documents", (MISSING, None, ["x"], [{"title": "a", "text": None}])),
        ("metadata", ([1],)),
    ):
        for value in values:
            yield Fault("tasks", field, value, field)
    for field, values in (
        ("input", (None, [], 4)),
        ("answers", (None, [], [1], [["a"], ["b"]])),
        ("context", (None, " ")),
    ):
        for value in values:
            yield Fault("memagent", field, value, field)
    for value in ([], ["x"], [{"question": "?", "answer": None, "category": 1}], [{"question": "?", "category": 9}]):
        yield Fault("locomo", "qa", value, "qa")
    for value in ([], {}, {"session_1": [turn("D1:1", "a", "b")]}, {"session_1": ["x"], "session_1_date_time": "now"}):
        yield Fault("locomo", "conversation", value, "conversation")
    yield Fault("locomo", "sample_id", None, "sample_id")
    yield from faults_of_conversations()


def faults_of_conversations() -> Iterator[Fault]:
    for name in ("question_id", "question_type", "question", "question_date", "answer"):
        for value in (None, " ", ["x"]):
            yield Fault("longmemeval", name, value, name)
    for name in ("question_type", "question", "question_date", "answer", "haystack_dates", "answer_session_ids"):
        yield Fault("longmemeval", name, MISSING, name)
    for name in ("haystack_dates", "haystack_session_ids", "answer_session_ids"):
        for value in (None, "s1", [1, 2, 3]):
            yield Fault("longmemeval", name, value, name)
    yield Fault("longmemeval", "haystack_dates", ["2023"], "haystack_sessions")
    for value in (None, "x", [], [[]], [[], [], []], ["x", "y", "z"], [["x"], [], []], [[{"role": "user"}], [], []]):
        yield Fault("longmemeval", "haystack_sessions", value, "haystack_sessions")
    for value in ([[{"content": "x"}], [], []], [[{"role": "", "content": "x"}], [], []]):
        yield Fault("longmemeval", "haystack_sessions", value, "haystack_sessions[0][0].role")
    for value in (None, "Q?", [], [1], [" "]):
        yield Fault("memoryagentbench", "questions", value, "questions")
    yield Fault("memoryagentbench", "questions", ["only one?", "and two"], "answers")
    for value in (None, "blue", [], [[]] * 12, [[1]] * 12, [["a"]] * 11, [None] * 12):
        yield Fault("memoryagentbench", "answers", value, "answers")
    for value in (MISSING, None, "{", 3, [], {}, {"source": 3}):
        yield Fault("memoryagentbench", "metadata", value, "metadata")
    for name in ("qa_pair_ids", "question_types"):
        for value in ("x", [1] * 12):
            yield Fault("memoryagentbench", "metadata", {"source": "s", name: value}, f"metadata.{name}")
    for value in (None, " ", 7):
        yield Fault("memoryagentbench", "context", value, "context")
    for value in (MISSING, None, "", 7):
        yield Fault("beam", "conversation_id", value, "conversation_id")
    good = {"role": "user", "content": "x", "id": 0}
    for value in (None, "x", [], [["x"]], [[good, good]], [[{**good, "id": "0"}]], {"turns": []}, [{"turns": 3}]):
        yield Fault("beam", "chat", value, "chat")
    for name in ("role", "content"):
        for value in (None, " ", 3):
            yield Fault("beam", "chat", [[{**good, name: value}]], f"chat[0][0].{name}")
    nested: Any = good
    for _ in range(40):
        nested = [nested]
    yield Fault("beam", "chat", nested, "chat[0]")
    for value in (None, 3, "", "{", "import os", "__import__('os')", "[" * 500, {}, {"abstention": 3}):
        yield Fault("beam", "probing_questions", value, "probing_questions")
    asked = {"question": "?", "answer": "x"}
    for item in ("x", {"question": "?"}, {**asked, "answer": None}, {**asked, "question": " "}, {**asked, "rubric": 3}):
        yield Fault("beam", "probing_questions", {"knowledge_update": [item]}, "probing_questions.knowledge_update[0]")


def read(form: str, path: Path) -> None:
    if form in ("hotpotqa", "2wikimultihopqa", "musique"):
        list(get_benchmark(form).read(path))
    else:
        load_tasks(path)


def test_a_hundred_hostile_files_of_a_hundred(tmp_path: Path) -> None:
    found = list(faults())
    assert len(found) >= 200
    assert {fault.form for fault in found} == MAKERS.keys()
    for number, fault in enumerate(found):
        make = MAKERS[fault.form]
        row = make(2)
        if fault.value is MISSING:
            del row[fault.field]
        else:
            row[fault.field] = fault.value
        path = (write_json, write_lines)[number % 2](tmp_path / f"file{number}.json", [make(1), row])
        with pytest.raises(DataError) as raised:
            read(fault.form, path)
        message = str(raised.value)
        assert f"{path}: row 2" in message, (fault, message)
        assert fault.inner in message, (fault, message)
        assert any(word in message for word in ("Mend the row", "use train or dev", "Make tasks")), (fault, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"[]", mtime=0), "is packed (gzip). Unpack it"),
        (b"PK\x03\x04rest", "is packed (zip). Unpack it"),
        (b"", "is empty. Get the file again"),
        (b"[]", "has no rows. Get the file again"),
        (
            json.dumps({"data": [hotpot_row()]}, indent=2).encode(),
            "is one JSON object with the fields 'data', expected a list",
        ),
        (b"<html>", "but it starts with '<html>'. Give the benchmark's own file"),
        (b'[{"a": "\xff"}]', "is not UTF-8"),
        (b'[{"a": 1}, {"b"', "Get it again"),
        (b"[1]", "row 1 is 1 (int), expected an object with named fields. Give a list"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert build("hotpotqa", path, tmp_path / "o.jsonl") == 2
    error = capsys.readouterr().err
    assert f"{path}: " in error
    assert message in error
    assert "Traceback" not in error


def test_a_byte_order_mark_is_nothing(tmp_path: Path) -> None:
    for text in (json.dumps([task_row()]), json.dumps(task_row())):
        (tmp_path / "x.json").write_text(text, encoding="utf-8-sig")
        assert load_tasks(tmp_path / "x.json")[0].id == "t0"


def build(benchmark: str, path: Path, out: Path, *more: Any) -> int:
    common = ["build", "--benchmark", benchmark, "--split", "train", "--input", str(path), "--out", str(out)]
    return main([*common, "--docs", "8", "--n", "2", *map(str, more)])


def rows(make: Callable[[int], Row] = hotpot_row) -> list[Row]:
    return [make(number) for number in range(8)]


def test_missing_and_mixed_shards_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "train-00000-of-00002.parquet", rows())
    assert build("hotpotqa", tmp_path, tmp_path / "o.jsonl") == 2
    assert f"{tmp_path}: lacks train-00001-of-00002.parquet beside train-00000-of-00002" in capsys.readouterr().err
    write_json(tmp_path / "train-00001-of-00002.parquet", [hotpot_row(number) for number in range(8, 16)])
    assert build("hotpotqa", tmp_path, tmp_path / "o.jsonl") == 0
    write_json(tmp_path / "train-00000-of-00001.parquet", rows())
    assert build("hotpotqa", tmp_path, tmp_path / "o.jsonl") == 2


def test_duplicate_ids_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_json(tmp_path / "x.json", [*rows(), hotpot_row(3)])
    assert build("hotpotqa", path, tmp_path / "o.jsonl") == 2
    assert f"{path}: row 9: field 'id' is 'id3', as in {path}: row 4. Give every row once" in capsys.readouterr().err
    good = write_json(tmp_path / "y.json", rows())
    assert build("hotpotqa", good, tmp_path / "o.jsonl", "--input", good) == 2, "the same file twice"


@pytest.mark.parametrize(("make", "benchmark"), [(hotpot_row, "2wikimultihopqa"), (twowiki_row, "hotpotqa")])
def test_the_wrong_benchmark_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[int], Row], benchmark: str
) -> None:
    path = write_json(tmp_path / "x.json", rows(make))
    assert build(benchmark, path, tmp_path / "o.jsonl") == 2
    other = "hotpotqa" if benchmark != "hotpotqa" else "2wikimultihopqa"
    assert f"{path}: row 1: field " in (error := capsys.readouterr().err)
    assert f"is one of {other}, but the benchmark is {benchmark}. Give --benchmark {other}" in error
    assert build("musique", path, tmp_path / "o.jsonl") == 2


def test_an_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "x.jsonl", rows())
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    for out in (path, tmp_path / "link.jsonl", tmp_path / "." / "x.jsonl"):
        assert build("hotpotqa", path, out) == 2
        assert f"would overwrite the input {path}: give another name" in capsys.readouterr().err
    beside = write_json(tmp_path / "o.jsonl.json", rows())
    assert build("hotpotqa", beside, tmp_path / "o.jsonl") == 2, "where the file came from is written beside it"
    assert path.read_bytes() == before


def test_rows_that_are_left_out_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = hotpot_row(30, supporting_facts=[["Nowhere", 0]])
    assert build("hotpotqa", write_json(tmp_path / "x.json", [*rows(), lost]), tmp_path / "o.jsonl") == 0
    assert "; 1 rows left out, as a supporting paragraph is missing" in capsys.readouterr().out


def test_a_stray_dev_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "2wikimultihopqa").mkdir()
    own = write_json(tmp_path / "2wikimultihopqa" / "dev.json", rows(twowiki_row))
    write_json(tmp_path / "dev.json", [{"question": "of another benchmark"}])
    assert get_benchmark("2wikimultihopqa").find("dev", tmp_path) == [own]


def test_show_into_a_closed_pipe(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [task_row(number) for number in range(3000)])
    command = f"{sys.executable} -m atommem.cli data show {path} --n 3000 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("t0")


def test_each_question_has_its_own_gold_documents(tmp_path: Path) -> None:
    """LoCoMo: its own evidence, not that of ten questions. MuSiQue: not every paragraph of the same title."""
    (task,) = load_tasks(write_json(tmp_path / "x.json", [conversation()]))
    assert [len(gold_documents(task, question)) for question in task.questions] == [2, 1, 0, 1, 1]
    shared = [musique_row(0), musique_row(2), *(musique_row(number) for number in range(4, 16, 2))]
    assert build("musique", write_lines(tmp_path / "m.jsonl", shared), tmp_path / "o.jsonl", "--questions", 2) == 0
    for task in load_tasks(tmp_path / "o.jsonl"):
        for question in task.questions:
            number = question.text.split()[-2]
            texts = {document.text for document in gold_documents(task, question)}
            assert texts == {f"Her brother is Bran. {number}", f"Port. {number}"}


def test_evidence_that_names_no_turn_is_said_and_kept(tmp_path: Path) -> None:
    asked = [{"question": "?", "answer": "x", "evidence": ["D2:1", "D4:36", "D"], "category": 1}]
    path = write_json(tmp_path / "x.json", [conversation(qa=asked)])
    with pytest.warns(UserWarning, match=r"x\.json: row 1: field 'qa\[0\].evidence' names D4:36, D, which is no turn"):
        (task,) = load_tasks(path)
    assert task.questions[0].metadata["evidence_without_turn"] == ["D4:36", "D"]
    assert len(gold_documents(task, task.questions[0])) == 1

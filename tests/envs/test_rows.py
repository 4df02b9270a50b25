"""Files of the same rows give the same tasks, however they were written."""

import csv
import json
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from atommem.envs.benchmarks.long_texts import parse_locomo
from atommem.envs.benchmarks.questions import BENCHMARKS
from atommem.envs.benchmarks.rows import Row, Text, read_rows
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    beam_row,
    qa,
    real_data,
    sample,
    turn,
    twowiki_row,
    write_json,
    write_lines,
    write_parquet,
)

Rows = list[dict[str, Any]]


def json_columns(rows: Rows, kind: Any) -> Any:
    """Return a table whose lists have items of JSON, of an Arrow type, as `datasets` makes them."""

    def column(values: list[Any]) -> Any:
        lists = [value for value in values if isinstance(value, list)]
        if any(isinstance(item, list | dict) for value in lists for item in value):
            texts = [value and [*map(json.dumps, value)] for value in values]
            return pyarrow.array(texts, pyarrow.list_(pyarrow.string())).cast(pyarrow.list_(kind))
        if any(isinstance(value, dict) for value in values):
            texts = [None if value is None else json.dumps(value) for value in values]
            return pyarrow.array(texts, pyarrow.string()).cast(kind)
        return pyarrow.array(values)

    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: column([row.get(name) for row in rows]) for name in names})


def write_datasets(path: Path, rows: Rows, kind: Any = None) -> Path:
    parquet.write_table(json_columns(rows, kind or pyarrow.json_()), path)
    return path


def write_without_types(path: Path, rows: Rows) -> Path:
    """Write what is left of it after pandas: JSON in plain strings."""
    return write_datasets(path, rows, pyarrow.string())


def write_stream(path: Path, rows: Rows) -> Path:
    table = json_columns(rows, pyarrow.json_())
    with pyarrow.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)
    return path


def write_csv(path: Path, rows: Rows) -> Path:
    path = path.with_suffix(".csv")
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
        writer.writeheader()
        for row in rows:
            nested = {k: json.dumps(v) for k, v in row.items() if not isinstance(v, str | None)}
            writer.writerow({**row, **nested})
    return path


WRITERS = (write_lines, write_datasets, write_without_types, write_stream, write_csv)
TURN = {"role": "user", "content": "No mark."}
SHORT = {"session_1_date_time": "May", "session_1": [turn("D1:1", "Orla", "Hi.")]}
OURS = Task(
    "a",
    (Question("Who?", ("Orla", "1997"), "q1", {"documents": [0], "type": "bridge"}),),
    (Document("Orla", "A potter.", True), Document("", "No title.")),
    metadata={"split": "train"},
)
CASES: dict[str, Rows] = {
    "hotpotqa": [sample("hotpot"), {k: v for k, v in sample("hotpot", 1).items() if k != "level"}],
    "2wikimultihopqa": [twowiki_row(), twowiki_row(2)],
    "musique": [sample("musique"), sample("musique", 2, answer="1997")],
    "locomo": [
        sample("locomo"),
        sample("locomo", sample_id="c2", conversation=SHORT, qa=[qa(4, "When?", 3.0)]),
    ],
    "longmemeval": [
        sample("longmemeval", haystack_sessions=[[TURN], [TURN, TURN]]),
        sample("longmemeval", question_id="b"),
    ],
    "beam": [
        beam_row(probing_questions=sample("probing")) | {"conversation_id": name} for name in "01"
    ],
    "ours": [asdict(OURS), asdict(Task("b", OURS.questions, context="Text."))],
}


def read(name: str, path: Path) -> list[Any]:
    return [*BENCHMARKS[name].read(path)] if name in BENCHMARKS else load_tasks(path)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", CASES)
def test_every_writer_gives_the_tasks_of_the_json(tmp_path, name, write):
    wanted = read(name, write_json(tmp_path / "x.json", CASES[name]))
    assert len(wanted) == 2
    assert read(name, write(tmp_path / "y", CASES[name])) == wanted


def test_sources_of_beam_may_be_json_in_texts(tmp_path):
    found = []
    for sources in ([0, [2]], ["0", "[2]"]):  # the second, of `datasets` through pandas
        probes = {"summarization": [{**sample("probing")["summarization"][0]}]}
        probes["summarization"][0]["source_chat_ids"] = sources
        found += load_tasks(write_json(tmp_path / "x.json", [beam_row(probing_questions=probes)]))
    assert found[0] == found[1]
    assert found[0].questions[0].metadata["documents"] == [0, 2]


def test_arrow_nulls_are_absent(tmp_path):
    """Arrow gives all objects the names of all: of a longer conversation, of other questions."""
    rows = [
        sample("locomo", qa=[qa(4, "What?", "The kiln", "D10:1"), qa(5, "Who?", "Bran")]),
        sample("locomo", sample_id="c2", conversation=SHORT, qa=[qa(4, "Who?", "Orla")]),
        {**sample("locomo", sample_id="c3", conversation=SHORT), "qa": [qa(5, "Where?", "Brent")]},
    ]
    wanted = load_tasks(write_json(tmp_path / "x.json", rows))
    assert load_tasks(write_parquet(tmp_path / "x.parquet", rows)) == wanted
    plans = [beam_row(probing_questions=sample("probing"))]
    plans.append({**plans[0], "conversation_id": "1"})
    del plans[1]["probing_questions"]["summarization"]
    wanted = load_tasks(write_json(tmp_path / "y.json", plans))
    assert load_tasks(write_parquet(tmp_path / "y.parquet", plans)) == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (7, "7"),
        (1e21, "1" + "0" * 21),
        (Decimal("1.50"), "1.50"),
        (date(1997, 5, 2), "1997-05-02"),
        (datetime(1997, 5, 2), "1997-05-02"),
        ("3.0", "3.0"),
    ],
)
def test_number_where_text_is_wanted_is_written_as_people_do(value, text):
    assert Row(Path("x"), 1, {"a": value}).text("a") == text
    assert Row(Path("x"), 1, {}).convert("a", [value], list[Text]) == [text]


@pytest.mark.parametrize(
    "row",
    [
        sample("longmemeval", answer=3.0),
        {"context": "Text.", "input": "How many?", "answers": [3.0]},
        {"input": "Text.\nHow many?", "outputs": [3]},
        {"id": "a", "questions": [{"text": "How many?", "answers": [3.0]}], "context": "Text."},
        sample("locomo", qa=[qa(1, "How many?", 3.0)]),
    ],
)
def test_every_reader_takes_numbers_as_golds(tmp_path, row):
    (task,) = load_tasks(write_json(tmp_path / "x.json", [row]))
    assert task.questions[0].answers == ("3",)


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_quotes_that_pandas_keeps_around_mixed_values_go(tmp_path, write):
    rows = [{"a": '"Orla"', "b": '"Kiln" is', "c": "1"}, {"a": "3", "b": "x", "c": "2"}]
    found = [row.values for row in read_rows(write(tmp_path / "x.parquet", rows))]
    assert found == [{"a": "Orla", "b": '"Kiln" is', "c": "1"}, {"a": 3, "b": "x", "c": "2"}]


def test_objects_in_columns_are_read(tmp_path):
    row = sample("musique")
    wanted = read("musique", write_json(tmp_path / "x.json", [row]))
    names = row["paragraphs"][0]
    row["paragraphs"] = {name: [one[name] for one in row["paragraphs"]] for name in names}
    assert read("musique", write_json(tmp_path / "y.json", [row])) == wanted


def test_locomo_without_a_wrong_option_cannot_be_asked_officially():
    row = Row(Path("x"), 1, sample("locomo", qa=[{"question": "What?", "category": 5}]))
    (task,) = parse_locomo(row)
    assert task.questions[0].answers == ("not mentioned",)
    with pytest.raises(DataError, match="has no adversarial_answer to conv-1-000"):
        list(parse_locomo(row, official=True))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi ->-> 5,14)", "Hi"),
        ("Hi ->-> 7,Goals & Progress Labels:Health Goals", "Hi"),
        ("A -> B ->-> C\n\n->-> 1,2", "A -> B ->-> C"),
        ("Hi", "Hi"),
    ],
)
def test_beam_turn_of_a_user_ends_at_its_last_mark(tmp_path, content, text):
    roles = enumerate(("user", "assistant"))
    chat = [[{"role": role, "content": content, "id": number} for number, role in roles]]
    (task,) = load_tasks(write_json(tmp_path / "x.json", [beam_row(chat=chat)]))
    assert [one.text for one in task.documents] == [f"user: {text}", f"assistant: {content}"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "pointer of Git LFS.*pull"),
        (b"\x1f\x8b\x08", "is compressed. Unpack it: gunzip x.json"),
        (b'{\n "data": []}', "is one JSON object. Give the list in it"),
        (b'[{"a": 1}] {"b": 2}', "is damaged .*Extra data"),
        (b'{"a": 1}\n\n{"a": ', "x.json: row 3 is damaged"),
        (b'{"a": 1}\n' * 50 + b'{"a": "\xff"}\n', "row 51 is damaged .*not in UTF-8, convert"),
        (b'[{"a": 1}, {"a": 1}', "x.json: row 1 is damaged .*truncated, download"),
        (b'[{"a": 1},\n {"a": NaN}]', "NaN is not JSON: write null"),
        (b'{"a": 1}\n{"a": -Infinity}\n', "-Infinity is not JSON: write null"),
    ],
)
def test_a_file_that_is_no_table_of_rows_is_refused_with_a_fix(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_rows(tmp_path / "x.json"))


REAL = (
    ("hotpotqa", "hotpotqa/hotpot_dev_distractor_v1.json"),
    ("2wikimultihopqa", "2wikimultihopqa/dev.json"),
    ("musique", "musique/musique_full_v1.0_train.jsonl"),
    ("locomo", "locomo/locomo10.json"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), REAL)
def test_real_files_survive_datasets_and_pandas(tmp_path, name, file):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    path = real_data(*file.split("/"))
    wanted = read(name, path)
    loaded = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    loaded.to_parquet(tmp_path / "x.parquet")
    loaded.to_json(tmp_path / "x.jsonl")
    pandas.read_parquet(tmp_path / "x.parquet").to_parquet(tmp_path / "y.parquet")
    loaded.save_to_disk(tmp_path / "disk")
    for written in ("x.parquet", "x.jsonl", "y.parquet", "disk/data-00000-of-00001.arrow"):
        assert read(name, tmp_path / written) == wanted, written

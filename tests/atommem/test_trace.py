import json
from pathlib import Path

import pytest

from atommem.episode import Episode
from atommem.errors import TraceError
from atommem.trace import read_trace, write_trace
from tests.atommem.test_episode import ANSWER, TASK, runner

TEXTS = [
    "<create_memory>Ann \u2028 lives \ud800 in Rome</create_memory><read_memory>Ann</read_memory>",
    "<update_memory>Memory 1: Ann moved</update_memory><delete_memory>7</delete_memory></create_memory>",
    ANSWER,
]


async def episode() -> Episode:
    return await runner(list(TEXTS)).run(TASK, 2)


async def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = await episode()
    path = write_trace(tmp_path / "deep" / "t.jsonl", written, {"id": "t1"}, {"layout": "prefix"})
    trace = read_trace(path)
    assert (trace.complete, trace.task, trace.config) == (True, {"id": "t1"}, {"layout": "prefix"})
    for step in written.steps:
        step.prompt_ids, step.logprobs = [], []
        step.seconds = round(step.seconds, 4)
    written.seconds = round(written.seconds, 4)
    assert trace.episode == written
    assert not list(path.parent.glob("*.part"))


async def test_a_cut_trace_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", await episode(), {})
    lines = path.read_text().split("\n")
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:50])
    trace = read_trace(path)
    assert (trace.complete, len(trace.episode.steps)) == (False, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1 is not JSON"),
        ("hello", "line 1 is not JSON"),
        ('{"question": "?"}', "not an episode header"),
        ("[1]", "not an episode header"),
        ('{"type": "episode", "format": 99}', "trace format 99"),
        ('{"type": "episode", "format": 2}', "broken trace"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


async def test_a_trace_with_a_wrong_record_is_named(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", await episode(), {})
    path.write_text(path.read_text() + json.dumps({"type": "surprise"}) + "\n")
    with pytest.raises(TraceError, match="surprise"):
        read_trace(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "b")

"""Traces: reading, writing, and rendering."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atommem.actions import Action, Problem, ProblemReason
from atommem.episode import Episode, Step
from atommem.errors import ConfigError, TraceError
from atommem.memory.log import MemoryView, Operation, Outcome, Retrieved
from atommem.observation import Observation, StopReason
from atommem.trace import read_trace, write_trace
from atommem.trace_view import render_trace
from tests.atommem import test_episode
from tests.fakes import answering, reading

QUESTION = "Who runs the [old] mill?"
LONG_CHUNK = "Start of the chunk. " + "x " * 3000 + "End of the chunk."
TASK = {
    "id": "task-7",
    "source": "hotpotqa",
    "questions": [{"text": QUESTION, "golds": ["Ada", "Ada L."]}],
}


def step(
    index: int, observation: Observation, view: MemoryView, text: str, **settings: Any
) -> Step:
    count = 3 - 2 * index
    tokens: Any = ([1] * 9, [1] * count, [-1.0] * count)
    defaults = {
        "finish_reason": "stop",
        "actions": (),
        "problems": (),
        "operations": (),
        "store_size": 1,
    }
    return Step(index, observation, view, *tokens, text, **{**defaults, **settings})


def make_episode() -> Episode:
    written = "Notes. <create_memory>The mill is Ada's</create_memory> <read_memory>mill owner"
    first = step(
        0,
        reading(QUESTION, chunk=LONG_CHUNK, count=2),
        MemoryView(capacity=20),
        written,
        finish_reason="length",
        actions=(Action("create", "The mill is Ada's", start=7, end=55),),
        problems=(Problem(ProblemReason.UNCLOSED, "read_memory", 56, len(written)),),
        operations=(
            Operation(0, "create", entry_id=1, after="The mill is Ada's"),
            Operation(0, "retrieve", actor="memory", scores=((1, 0.875),)),
        ),
        seconds=1.25,
    )
    second = step(
        1,
        answering(QUESTION, 1),
        MemoryView(
            "keep going", "mill owner", (Retrieved(1, 1, "The mill is Ada's", 0.875),), 1, 20
        ),
        "\x1b[31mred\x1b[0m <final_answer>\\boxed{Bob}</final_answer>",
        actions=(Action("answer", "Bob", start=13, end=52),),
        operations=(
            Operation(
                1,
                "update",
                Outcome.APPLIED,
                1,
                1,
                "The mill is Ada's",
                "The mill is Bob's",
                reason="cut",
            ),
            Operation(1, "delete", Outcome.UNKNOWN_HANDLE, handle=4),
        ),
    )
    notes = {
        "question_notes": ("judge: INCORRECT",),
        "metrics": {"em": 0.0, "f1": 0.25},
        "reward": 0.0,
    }
    return Episode(
        "task-7",
        3,
        [first, second],
        ("Bob",),
        stop_reason=StopReason.ANSWERED,
        seconds=4.0,
        **notes,
    )


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write_trace(
        tmp_path / "trace.jsonl", make_episode(), TASK, {"memory": {"dialect": "paper"}}
    )


def shown(path: Path, **options: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(render_trace(read_trace(path), **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_render_trace_shows_the_whole_episode(trace_file: Path) -> None:
    text = shown(trace_file)
    for expected in (
        "task-7, sample 3 (hotpotqa)",
        QUESTION,  # square brackets are text, not rich markup
        "Ada | Ada L.",
        "step 1/2, reading, chunk 1/2",
        "step 2/2, answering, question 1/1, 1 read left",
        "wrote (3 tokens, length, 1.2 s)",
        "unclosed: <read_memory>mill owner",
        "create (entry 1)",
        "+ The mill is Ada's",
        "Memory 1: The mill is Ada's  [entry 1, score 0.875, created at step 1, shown 1 time]",
        "update Memory 1 (entry 1): cut",
        "- The mill is Ada's",
        "+ The mill is Bob's",
        "delete Memory 4: no such entry was shown",
        "store 0 -> 1 of 20 entries",
        "stop reason: answered",
    ):
        assert expected in text, expected
    assert "retrieve" not in text  # what it found is shown at the next step
    assert "\x1b" not in text  # escape sequences of a model do not reach the terminal


def test_render_trace_shortens_long_texts_unless_full(trace_file: Path) -> None:
    short, full = shown(trace_file), shown(trace_file, full=True)
    assert "Start of the chunk." in short
    assert "End of the chunk." in short
    assert (
        f"[... {len(LONG_CHUNK) - 600:,} characters left out, --full shows them ...]"
        in " ".join(short.split())
    )
    assert short.count("x") < 1000
    assert full.count("x") > 3000
    second = shown(trace_file, step=2)
    assert "step 2/2" in second
    assert not any(other in second for other in ("step 1/2", "stop reason"))
    with pytest.raises(ConfigError, match="step is 3: this trace has 2 steps"):
        render_trace(read_trace(trace_file), step=3)


def test_render_trace_of_cut_or_failed_episode(trace_file: Path) -> None:
    lines = trace_file.read_text().splitlines(keepends=True)
    trace_file.write_text("".join(lines[:2]) + lines[2][:40])
    trace = read_trace(trace_file)
    assert (trace.complete, len(trace.episode.steps)) == (False, 1)
    text = shown(trace_file)
    assert "step 1, reading" in text
    assert "The file ends here, after 1 step: it was cut off." in text
    assert "stop reason" not in text
    failed = Episode("t", 0, error="server gone", stop_reason=StopReason.FAILED)
    text = shown(write_trace(trace_file, failed, {"questions": ["Who?"]}))
    for expected in ("question 1: Who?", "error: server gone", "reward: none"):
        assert expected in text


TEXTS = [
    "<create_memory>Ann \u2028 lives \ud800 in Rome</create_memory><read_memory>Ann</read_memory>",
    "<update_memory>Memory 1: Ann moved</update_memory><delete_memory>7</delete_memory>",
    test_episode.ANSWER,
]


async def test_read_trace_returns_the_written_episode(tmp_path: Path) -> None:
    written = await test_episode.runner(list(TEXTS)).run(test_episode.TASK, 2)
    path = write_trace(tmp_path / "deep" / "t.jsonl", written, {"id": "t1"}, {"layout": "prefix"})
    trace = read_trace(path)
    assert (trace.complete, trace.task, trace.config) == (True, {"id": "t1"}, {"layout": "prefix"})
    for step in written.steps:
        step.prompt_ids, step.logprobs = [], []
        step.seconds = round(step.seconds, 4)
    written.seconds = round(written.seconds, 4)
    assert trace.episode == written
    assert [item.name for item in path.parent.iterdir()] == ["t.jsonl"]
    whole = path.read_text()
    path.write_text(whole + json.dumps({"type": "surprise"}) + "\n")
    with pytest.raises(TraceError, match="damaged"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"hello", "not an episode header"),
        (b'{"type": "episode", "format": 99}', "format=99"),
        (b'{"type": "episode", "format": 2}', "is damaged"),
    ],
)
def test_read_trace_invalid_file_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)

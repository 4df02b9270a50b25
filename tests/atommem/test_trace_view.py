"""`atommem trace`: what it shows, and what it says of files that it cannot show."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from atommem.actions import Action, Problem, ProblemReason
from atommem.episode import Episode, Step
from atommem.errors import ConfigError
from atommem.memory.entries import MemoryView, Retrieved
from atommem.memory.operations import Operation, Outcome
from atommem.observation import StopReason
from atommem.trace import read_trace, write_trace
from atommem.trace_view import main, render_trace
from tests.fakes import answering, reading

QUESTION = "Who runs the [old] mill?"
LONG_CHUNK = "Start of the chunk. " + "x " * 3000 + "End of the chunk."
TASK = {"id": "task-7", "source": "hotpotqa", "questions": [{"text": QUESTION, "golds": ["Ada", "Ada L."]}]}


def make_episode() -> Episode:
    written = "Notes. <create_memory>The mill is Ada's</create_memory> <read_memory>mill owner"
    first = Step(
        index=0,
        observation=reading(QUESTION, chunk=LONG_CHUNK, count=2),
        view=MemoryView(capacity=20),
        prompt_ids=[1] * 9,
        token_ids=[1, 2, 3],
        logprobs=[-1.0, -1.0, -1.0],
        text=written,
        finish_reason="length",
        actions=(Action("create", "The mill is Ada's", start=7, end=55),),
        problems=(Problem(ProblemReason.UNCLOSED, "read_memory", 56, len(written)),),
        operations=(
            Operation(0, "create", entry_id=1, after="The mill is Ada's"),
            Operation(0, "read", after="mill owner"),
            Operation(0, "retrieve", actor="memory", scores=((1, 0.875),)),
        ),
        store_size=1,
        seconds=1.25,
    )
    view = MemoryView("keep going", "mill owner", (Retrieved(1, 1, "The mill is Ada's", 0.875),), 1, 20)
    second = Step(
        index=1,
        observation=answering(QUESTION, 1),
        view=view,
        prompt_ids=[1] * 5,
        token_ids=[4],
        logprobs=[-1.0],
        text="\x1b[31mred\x1b[0m <final_answer>\\boxed{Bob}</final_answer>",
        finish_reason="stop",
        actions=(Action("answer", "Bob", start=13, end=52),),
        problems=(),
        operations=(
            Operation(1, "update", Outcome.APPLIED, 1, 1, "The mill is Ada's", "The mill is Bob's", reason="cut"),
            Operation(1, "delete", Outcome.UNKNOWN_HANDLE, handle=4),
            Operation(
                1, "create", Outcome.REJECTED, after="One too many", reason="retention:reject: the store is full"
            ),
            Operation(1, "delete", entry_id=1, before="The mill is Bob's", actor="retention:lru", reason="unused"),
            Operation(1, "create", entry_id=5, after="New"),
            Operation(1, "scratchpad", before="same", after="same"),
            Operation(1, "retrieve", actor="memory", scores=((5, 0.5),)),
            Operation(1, "outcome", actor="user", scores=((5, 0.25),)),
        ),
        store_size=1,
    )
    return Episode(
        "task-7",
        3,
        [first, second],
        answers=("Bob",),
        reward=0.0,
        metrics={"em": 0.0, "f1": 0.25},
        question_notes=("judge: INCORRECT",),
        stop_reason=StopReason.ANSWERED,
        seconds=4.0,
    )


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", make_episode(), TASK, {"memory": {"dialect": "paper"}})


def shown(path: Path, **options: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(render_trace(read_trace(path), **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_shows_the_whole_episode(trace_file: Path) -> None:
    text = shown(trace_file)
    for expected in (
        "task-7, sample 3 (hotpotqa)",
        QUESTION,  # square brackets are text, not rich markup
        "Ada | Ada L.",
        "note: judge: INCORRECT",
        "dialect paper",
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
        "create: rejected (retention:reject: the store is full)",
        "lost: One too many",
        "delete (entry 1) by retention:lru: unused",
        "create (entry 5)",
        "outcome by user",
        "entry 5: 0.25",
        "(unchanged)",
        "store 0 -> 1 of 20 entries",
        "answer 1: Bob",
        "f1: 0.25",
        "stop reason: answered",
    ):
        assert expected in text, expected
    assert "retrieve" not in text  # what it found is shown at the next step


def test_abbreviates_chunks_unless_told_not_to(trace_file: Path) -> None:
    short, full = shown(trace_file), shown(trace_file, full=True)
    assert "Start of the chunk." in short
    assert "End of the chunk." in short
    assert f"[... {len(LONG_CHUNK) - 600:,} characters left out, --full shows them ...]" in " ".join(short.split())
    assert short.count("x") < 1000
    assert full.count("x") > 3000


def test_long_completion_is_abbreviated(tmp_path: Path) -> None:
    episode = make_episode()
    episode.steps[0].text = "y" * 5000
    path = write_trace(tmp_path / "t.jsonl", episode, TASK)
    assert 2000 <= shown(path).count("y") < 2200
    assert shown(path, full=True).count("y") >= 5000


def test_one_step(trace_file: Path) -> None:
    text = shown(trace_file, step=2)
    assert "step 2/2" in text
    assert "step 1/2" not in text
    assert "stop reason" not in text
    for wrong in (0, 3, -1):
        with pytest.raises(ConfigError, match=f"step is {wrong}: this trace has 2 steps"):
            render_trace(read_trace(trace_file), step=wrong)


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(trace_file: Path) -> None:
    assert "\x1b" not in shown(trace_file)


def test_cut_off_trace_is_shown_as_far_as_it_goes(trace_file: Path) -> None:
    lines = trace_file.read_text().splitlines(keepends=True)
    trace_file.write_text("".join(lines[:2]) + lines[2][:40])
    text = shown(trace_file)
    assert "step 1, reading" in text
    assert "The file ends here, after 1 step: it was cut off." in text
    assert "stop reason" not in text


def test_failed_episode_and_bare_questions(tmp_path: Path) -> None:
    episode = Episode("t", 0, error="server gone", stop_reason=StopReason.FAILED)
    path = write_trace(tmp_path / "t.jsonl", episode, {"questions": ["Who?"]})
    text = shown(path)
    assert "question 1: Who?" in text
    assert "error: server gone" in text
    assert "reward: none" in text


def test_pages_on_a_terminal(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list[str] = []
    monkeypatch.setattr("pydoc.pager", paged.append)
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    monkeypatch.setattr(
        "atommem.trace_view.Console",
        lambda **options: Console(file=io.StringIO(), force_terminal=True, color_system="standard", **options),
    )
    monkeypatch.setenv("LESS", "-R")
    assert main([str(trace_file)]) == 0
    assert "stop reason" in paged[0]
    assert "\x1b[" in paged[0]
    assert main([str(trace_file), "--no-pager"]) == 0
    assert len(paged) == 1

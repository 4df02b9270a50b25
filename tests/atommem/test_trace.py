"""Traces: reading, writing, and rendering."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from atommem.envs.task import Document
from atommem.episode import Episode
from atommem.trace import read_trace, write_trace
from atommem.trace_view import render_trace
from tests.atommem.sessions import ANSWER, TASK, runner, saying

LONG = Document("", "y " * 3000)
DATA = {"id": "t1", "questions": [{"text": "Who runs the [old] mill?", "golds": ["Ada"]}]}
TEXTS = [
    "<create_memory>Ann \u2028 lives \ud800</create_memory><read_memory>Ann</read_memory>",
    "\x1b[31mred <update_memory>Memory 1: Ann moved</update_memory>"
    "<delete_memory>7</delete_memory></create_memory>",
    ANSWER,
]


async def run_episode() -> Episode:
    task = replace(TASK, documents=(LONG, *TASK.documents[1:]))
    return await runner(saying(*TEXTS)).run(task, 3)


def rendered(path: Path, **options: object) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(render_trace(read_trace(path), **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_render_trace_shows_whole_and_cut_episodes(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.jsonl", await run_episode(), DATA)
    text = rendered(path)
    for expected in (
        "Who runs the [old] mill?",  # square brackets are not rich markup
        "update Memory 1: Ann \u2028 lives",
        "delete Memory 7: unknown_handle",
        "stray_close: </create_memory>",
        "stop_reason: answered",
    ):
        assert expected in text, expected
    for clutter in ("None", "()", "',)", ":\n", ": \n", "->  "):
        assert clutter not in text, clutter
    assert "answers: " in text
    assert "\x1b" not in text  # escape sequences of a model do not reach the terminal
    assert text.count("y ") < 1000
    assert rendered(path, step=1).count("y") >= 3000
    assert "step 1, reading" not in rendered(path, step=2)
    episode = await run_episode()
    episode.steps[0].prompt = "THE WHOLE PROMPT"
    path = write_trace(path, episode, DATA)
    assert "THE WHOLE PROMPT" not in rendered(path)  # it would begin with the same words every time
    assert "THE WHOLE PROMPT" in rendered(path, step=1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:40])
    trace = read_trace(path)
    assert (trace.complete, len(trace.episode.steps)) == (False, 1)
    assert "the file was cut off here" in rendered(path)


async def test_read_trace_returns_the_written_episode(tmp_path: Path) -> None:
    written = await run_episode()
    path = write_trace(tmp_path / "deep" / "t.jsonl", written, DATA, {"layout": "prefix"})
    trace = read_trace(path)
    assert (trace.complete, trace.task, trace.config) == (True, DATA, {"layout": "prefix"})
    for step in written.steps:
        step.prompt_ids, step.logprobs = [], []
        step.seconds = round(step.seconds, 4)
    written.seconds = round(written.seconds, 4)
    assert trace.episode == written

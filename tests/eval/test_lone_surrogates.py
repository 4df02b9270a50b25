"""Half a surrogate pair, which JSON can escape and UTF-8 cannot hold, ends nothing wherever it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.cli import main
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.eval.output import parse_records
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import evaluate
from atommem.policy.scripted import ScriptedPolicy
from atommem.trace import read_trace
from tests.eval.toys import make_runner

HALF = "\ud83d"
GOOD = "\ufffd"


def test_task_files_are_cleaned_as_they_are_read(tmp_path: Path) -> None:
    row = {
        "id": f"t{HALF}",
        "questions": [{"text": f"Who {HALF}?", "answers": [HALF, "\U0001f600"], "metadata": {HALF: [HALF]}}],
        "documents": [{"title": HALF, "text": f"One {HALF} two."}],
    }
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row))
    expected = Task(
        f"t{GOOD}",
        (Question(f"Who {GOOD}?", (GOOD, "\U0001f600"), metadata={GOOD: [GOOD]}),),
        (Document(GOOD, f"One {GOOD} two."),),
    )
    assert load_tasks(path) == [expected]
    for name in ("again.jsonl", "again.parquet"):
        save_tasks(load_tasks(path), tmp_path / name)
        assert load_tasks(tmp_path / name) == [expected]


async def test_an_episode_full_of_them_is_run_recorded_traced_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    runner, policy = make_runner()

    def answer(prompt: str) -> str:
        return policy._answer(prompt).replace("seen", f"seen {HALF}").replace("{", f"{{{HALF}")

    policy._inner = ScriptedPolicy(policy.tokenizer, answer)
    question, document = Question(f"{HALF} say-x-0", (HALF,)), Document(f"A {HALF}", f"document. {HALF}")
    out = tmp_path / "eval"
    task = Task(f"t{HALF}", (question,), (document,), source=f"toy {HALF}")
    result = await evaluate([task], runner, out, progress=False)
    assert result.failed == 0
    (record,) = parse_records((out / "episodes.jsonl").read_bytes(), out / "episodes.jsonl").values()
    assert record == result.records[0]
    (path,) = (out / "traces").iterdir()
    assert "seen \ufffd" in read_trace(path).episode.steps[0].text
    write_report([read_evaluation(out)], tmp_path / "report", title=f"with {HALF}")
    assert (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert main(["trace", str(path)]) == 0
    assert b"seen" in capsys.readouterr().out.encode()

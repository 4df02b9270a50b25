"""Logs of inspect_ai: their fields, and that its own reader takes them.

The reader is asked where ``INSPECT_PYTHON`` names a Python that has inspect_ai (an environment of its own: it brings
some sixty packages with it).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.records import summarize
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.inspect_export import inspect_log
from tests.eval.toys import evaluated, make_task

pytestmark = pytest.mark.usefixtures("undrawn")

READ = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
found = []
for info in list_eval_logs(sys.argv[1]):
    log = read_eval_log(info)
    found.append({
        "status": log.status, "task": log.eval.task, "model": log.eval.model,
        "scores": {s.name: {key: metric.value for key, metric in s.metrics.items()} for s in log.results.scores},
        "samples": [
            [s.id, s.epoch, len(s.messages), s.error is not None, s.messages[-1].text if s.messages else ""]
            for s in log.samples
        ],
    })
print(json.dumps(found))
"""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await evaluated([make_task(f"t{number}") for number in range(4)], tmp_path / "ours", wrong=["t1"], gone=["t2"])
    return tmp_path


def exported(folder: Path) -> dict[str, Any]:
    assert main(["report", f"AtomMem={folder / 'ours'}", "--out", str(folder / "out"), "--export", "inspect"]) == 0
    (path,) = (folder / "out" / "inspect").iterdir()
    found: dict[str, Any] = json.loads(path.read_text())
    assert path.name.startswith(found["eval"]["created"][:10]), "Inspect knows logs by a name that begins with a time"
    return found


def test_a_log_has_every_episode_and_our_own_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = exported(folder)
    records = read_evaluation(folder / "ours").records
    assert (log["version"], log["status"], log["eval"]["task"]) == (2, "success", "AtomMem on hotpotqa")
    em = next(score for score in log["results"]["scores"] if score["name"] == "em")
    mean = summarize(records)["metrics"]["em"]
    assert {name: item["value"] for name, item in em["metrics"].items()} == {
        "mean": mean["mean"],
        "ci_low": mean["low"],
        "ci_high": mean["high"],
        "questions": mean["n"],
    }
    assert [sample["id"] for sample in log["samples"]] == ["t0", "t1", "t2", "t3"]
    right, wrong, failed, _ = log["samples"]
    assert (right["scores"]["em"]["value"], wrong["scores"]["em"]["value"]) == (1.0, 0.0)
    assert failed["scores"] == {}
    assert failed["error"]["message"], "an outage is no wrong answer there either"
    assert right["messages"][0]["role"] == "user"
    assert right["messages"][-1]["role"] == "assistant"
    assert "final_answer" in right["messages"][-1]["content"]
    assert "inspect view --log-dir" in capsys.readouterr().out


@pytest.mark.skipif(not os.environ.get("INSPECT_PYTHON"), reason="INSPECT_PYTHON names no Python with inspect_ai")
def test_its_own_reader_takes_them(folder: Path) -> None:
    log = exported(folder)
    done = subprocess.run(
        [os.environ["INSPECT_PYTHON"], "-c", READ, str(folder / "out" / "inspect")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (read,) = json.loads(done.stdout)
    assert (read["status"], read["task"], read["model"]) == ("success", "AtomMem on hotpotqa", log["eval"]["model"])
    assert read["scores"]["em"]["mean"] == next(
        score["metrics"]["mean"]["value"] for score in log["results"]["scores"] if score["name"] == "em"
    )
    assert [sample[:4] for sample in read["samples"]] == [
        [sample["id"], 1, len(sample["messages"]), "error" in sample] for sample in log["samples"]
    ]


def test_samples_that_failed_or_overflowed_are_not_scored(folder: Path) -> None:
    ours = read_evaluation(folder / "ours")
    ended = {"t3": "context_overflow"}
    records = (replace(record, stop_reason=ended.get(record.task_id, record.stop_reason)) for record in ours.records)
    log = inspect_log(replace(ours, records=tuple(records)))
    assert {score["scored_samples"] for score in log["results"]["scores"]} == {2}
    assert [bool(sample["scores"]) for sample in log["samples"]] == [True, True, False, False]

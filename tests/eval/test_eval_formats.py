"""Files of other projects are evaluated as they are: MemAgent's, the multi-question parquet, LoCoMo's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.task_files import load_tasks
from atommem.eval import eval_cli, workbench
from atommem.eval.console_report import breakdown_table
from atommem.eval.methods import make_method
from atommem.eval.runner import evaluate
from atommem.trace import read_trace
from tests.envs.benchmark_rows import write_json, write_parquet
from tests.envs.test_benchmarks_memagent import eval_row, train_row
from tests.envs.test_locomo import conversation
from tests.eval.methods.toys import make_setup

ANSWERS = {"Where does Bran live?": "in Port", "Who is a potter?": "Bran"}


def answer(prompt: str) -> str:
    """Replies to the questions in the prompt, in their order."""
    asked = sorted((question for question in ANSWERS if question in prompt), key=prompt.rfind)
    return "".join(f"<final_answer>\\boxed{{{ANSWERS[question]}}}</final_answer>" for question in asked)


@pytest.mark.parametrize("method", ["atommem", "memagent", "rag"])
@pytest.mark.parametrize("name", ["eval_200.json", "test.parquet"])
def test_the_command_takes_memagents_files_unchanged(
    tmp_path: Path, name: str, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, golds = [*ANSWERS], [["Port", "in Port"], ["Orla"]]
    if name.endswith(".json"):
        data = write_json(
            tmp_path / name, [eval_row(input=q, answers=a) for q, a in zip(questions, golds, strict=True)]
        )
    else:
        data = write_parquet(tmp_path / name, [train_row(questions, golds)])
    before = data.read_bytes()
    _, policy = make_setup(answer)
    monkeypatch.setattr(workbench, "open_policy", lambda config: policy)
    out = tmp_path / "out"
    command = ["--policy", "toy", "--data", str(data), "--out", str(out), "--method", method]
    assert eval_cli.main([*command, "--embedder", "hashing", "--max_reads", "0", "--max_in_flight", "2"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    em = summary["metrics"]["em"]
    assert (em["mean"], em["n"], summary["metrics"]["sub_em"]["mean"]) == (0.5, 2, 0.5)
    assert "sub-EM" in capsys.readouterr().out
    traces = [read_trace(path) for path in sorted((out / "traces").iterdir())]
    assert [trace.complete for trace in traces] == [True] * (2 if name.endswith(".json") else 1)
    assert [answer for trace in traces for answer in trace.episode.answers] == ["in Port", "Bran"]
    assert data.read_bytes() == before


async def test_locomo_reports_its_categories_apart(tmp_path: Path) -> None:
    tasks = load_tasks(write_json(tmp_path / "locomo10.json", [conversation()]))
    setup, _ = make_setup(lambda prompt: "\\boxed{The kiln is not mentioned}" * 5)
    result = await evaluate(tasks, make_method("rag", setup), progress=False)
    rows = [row for row in breakdowns(result.records, ["em"]) if row["by"] == "category"]
    found = {row["value"]: row["mean"] for row in rows}
    assert found == {"adversarial": 1, "multi_hop": 0, "open_domain": 0, "single_hop": 0, "temporal": 0}
    assert "  adversarial" in breakdown_table(rows).columns[0].cells

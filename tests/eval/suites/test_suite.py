"""`atommem eval --suite` from beginning to end, over a toy policy."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, PolicyError
from atommem.eval import eval_cli
from tests.eval.toys import GONE, ToyPolicy, make_task

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tasks([make_task(name) for name in ("a", "b", "c", "d")], tmp_path / "one.jsonl")
    save_tasks([make_task(name, questions=2) for name in ("e", "f")], tmp_path / "two.jsonl")
    return tmp_path


def run(folder: Path, *flags: str, **fields: Any) -> int:
    suite = {
        "title": "Toys",
        "reference": "no_memory",
        "settings": {
            "policy": "toy",
            "embedder": "hashing",
            "chunking": "documents",
            "max_in_flight": 3,
        },
        "data": [{"name": name, "file": str(folder / f"{name}.jsonl")} for name in ("one", "two")],
        "rows": [{"method": "atommem"}, {"method": "no_memory"}],
        **fields,
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    return eval_cli.main(
        ["--suite", str(folder / "suite.yaml"), "--out", str(folder / "out"), *flags]
    )


def results(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "out" / "report" / "results.json").read_text())
    return loaded


def scores(folder: Path) -> dict[tuple[str, str], float]:
    return {
        (cell["row"], cell["dataset"]): cell["metrics"]["em"]["mean"]
        for cell in results(folder)["cells"]
    }


def test_runs_everything_once_and_reports(
    folder: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.wrong = {"a"}
    assert run(folder) == 0
    rows = ("atommem", "no_memory")
    assert scores(folder) == {
        (row, data): em for row in rows for data, em in (("one", 0.75), ("two", 1.0))
    }
    assert (results(folder)["title"], results(folder)["reference"]) == ("Toys", "no_memory")
    captured = capsys.readouterr()
    assert "75.0 [" in captured.out
    assert "atommem on two, seed 0: 2/2, EM 1.000, done" in captured.err
    assert "4 of 4 cells, 12 of 12 episodes, 0 failed" in captured.err
    for name in ("report.html", "tables.md", "tables.tex"):
        assert (folder / "out" / "report" / name).is_file()
    # Two documents and as many answers as questions in atommem, one answer otherwise; four tasks of one, two of two.
    assert (
        "estimate of what is to run, at 140 tokens a document and up to 500 a completion: 26 calls"
        in captured.err
    )
    asked = len(policy.asked)
    assert run(folder) == 0
    assert len(policy.asked) == asked
    assert "a completion: 0 calls" in capsys.readouterr().err, (
        "an earlier run's episodes cost nothing again"
    )


def test_cells_run_side_by_side_under_one_bound(folder: Path, policy: ToyPolicy) -> None:
    policy.until["a"] = lambda: len({*policy.asked}) >= 3
    policy.until["d"] = lambda: not {"e", "f"}.isdisjoint(policy.asked)
    assert run(folder, "--rows", "atommem") == 0
    assert policy.most == 3
    # The second cell fills the places that the last episode of the first one leaves.
    first = min(policy.asked.index(name) for name in "ef")
    assert first < len(policy.asked) - policy.asked[::-1].index("d")


def test_every_ending_has_its_status_and_the_same_command_goes_on(
    folder: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(status: int, *flags: str) -> str:
        assert run(folder, "--max_in_flight", "1", *flags) == status
        return capsys.readouterr().err

    assert "the budget is spent" in said(4, "--budget_tokens", "400")
    assert "incomplete" in results(folder)["title"]
    done = len(policy.asked)
    assert "the budget is spent" in said(4, "--budget_tokens", "400")
    assert len(policy.asked) == done
    policy.until["e"] = lambda: os.kill(os.getpid(), signal.SIGINT) is not None
    assert "the same command continues from there" in said(130)
    policy.until.clear()
    # A cell that is refused does not stop the others.
    policy.errors = {"e": PolicyError("refused")}
    assert "atommem on two, seed 0 could not run: refused" in said(2)
    assert scores(folder)[("no_memory", "one")] == 1.0
    policy.errors = {"f": GONE}
    assert (
        "atommem on two, seed 0: 1 of 2 episodes failed, more than --max_failed_fraction 0.05"
        in said(3)
    )
    assert {cell["failed"] for cell in results(folder)["cells"] if cell["dataset"] == "two"} == {1}
    said(0, "--max_failed_fraction", "0.5")
    asked, policy.errors, policy.asked = policy.asked, {}, []
    said(0)
    assert results(folder)["title"] == "Toys"
    assert set(policy.asked) == {"f"}, "what failed is run again"
    assert sorted(name for name in asked if name in "abcd") == sorted([*"aaabbbcccddd", *"abcd"]), (
        "and nothing else"
    )


def test_other_settings_are_refused_before_anything_runs(folder: Path, policy: ToyPolicy) -> None:
    assert run(folder, "--columns", "two") == 0
    policy.asked.clear()
    with pytest.raises(ConfigError, match=r"two.*environment\.max_reads is 3 there and 2 now"):
        run(folder, "--max_reads", "2")
    assert policy.asked == []


def test_cells_are_listed_without_a_policy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optional = {"benchmark": "musique", "documents": 5, "n": 3, "optional": True}
    data = [{"name": "world", "synthetic": {}, "n": 7}, optional]
    settings = {"max_in_flight": 3}
    assert run(folder, "--list", "--limit", "5", data=data, settings=settings) == 0
    captured = capsys.readouterr()
    assert "2 cells, 10 episodes" in captured.out
    assert "left out without --benchmarks: musique-5" in captured.err
    assert run(folder, "--list", settings=settings) == 0
    assert "4 cells, 0 episodes and those of all tasks in files" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no column is left: give --benchmarks"):
        run(folder, "--list", "--columns", "musique", data=data, settings=settings)
    assert run(folder, "--list", "--rows", "atommem", "--policies", "more=x", **NAMED) == 0, (
        "a row not chosen"
    )


NAMED: dict[str, Any] = {
    "rows": [{"method": "atommem", "policy": "base"}, {"method": "no_memory", "policy": "more"}],
    "policies": {"base": "toy", "more": "toy"},
    "settings": {},
}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--data x", "--data is for a single evaluation: .* --columns"),
        ("--method=rag", "--method is for a single evaluation: .* --rows"),
        ("--seed 1", "give --seeds"),
        ("--config x", "the suite's file holds the settings"),
        ("--benchmarks /none", "benchmarks is /none: there is no such folder"),
        ("--seeds 1 1", "give different ones"),
        ("--rows magic", "no row 'magic'"),
        ("--magic 1", "magic"),
        ("--policies bas=x", "policies has 'bas=x': the suite's rows name base, more"),
        ("--policies trained=x", "policies has 'trained=x': give --policy, which is `trained`"),
        ("--policies base=", "policies has 'base=': give NAME=WHERE"),
        ("--policies base=x base=y", "policies has base=x and base=y: give one of them"),
    ],
)
def test_wrong_flags_are_named(flags: str, message: str, folder: Path, policy: ToyPolicy) -> None:
    with pytest.raises(ConfigError, match=message):
        run(folder, *flags.split(), **NAMED)

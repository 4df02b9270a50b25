"""`atommem judge check`: a judge held against labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.judge_cli import kappa, main
from atommem.errors import ConfigError, DataError
from tests.envs.benchmark_rows import write_lines
from tests.loopback import serving


def test_kappa_by_hand() -> None:
    # Agreement 3 of 4; by chance 1/2 * 3/4 + 1/2 * 1/4 = 1/2.
    assert kappa([True, True, False, False], [True, True, True, False]) == pytest.approx(0.5)
    assert kappa([True, True], [True, True]) is None
    assert kappa([True, False], [False, True]) == pytest.approx(-1.0)


def labelled(path: Path, **changes: Any) -> Path:
    rows = [
        {"question": f"Where is {n}?", "golds": ["Port"], "answer": answer, "label": label} | changes
        for n, (answer, label) in enumerate([("the port", True), ("inland", False), ("a port", "correct"), ("?", 0)])
    ]
    return write_lines(path, rows)


def test_the_command_holds_a_judge_against_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(text: str) -> str:
        if "> ?" in text:
            return "hm"
        return "CORRECT" if "the port" in text or "inland" in text else "INCORRECT"

    out = tmp_path / "report.json"
    with serving(script) as url:
        call = ["check", str(labelled(tmp_path / "l.jsonl")), "--judge_url", url, "--judge_model", "m"]
        assert main([*call, "--repeats", "2", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["n"] == 4
    assert report["accuracy"]["mean"] == 0.5  # right on "the port" and, by its silence, on "?"
    assert report["kappa"] == pytest.approx(0.0)
    assert report["unreadable"] == 0.25
    assert report["self_consistency"] == 1.0
    assert report["confusion"]["correct"] == {"correct": 1, "incorrect": 1, "not_attempted": 0, "unreadable": 0}
    assert report["confusion"]["incorrect"]["unreadable"] == 1
    assert report["usage"]["requests"] == 3 * (3 + 3)
    assert "agrees with itself 1.000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "maybe"}, "row 1: field 'label' is 'maybe', expected true, false"),
        ({"golds": []}, "row 1: field 'golds' is empty"),
        ({"question": " "}, "row 1: field 'question' is empty"),
    ],
)
def test_hostile_labels(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    call = ["check", str(labelled(tmp_path / "l.jsonl", **changes)), "--judge_url", "http://x", "--judge_model", "m"]
    with pytest.raises(DataError, match=re.escape(message)):
        main(call)
    with pytest.raises(ConfigError, match="judge_url and judge_model are not set"):
        main(call[:2])

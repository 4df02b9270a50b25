"""`atommem compare`: pairs, significance and flips of two evaluation folders."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from atommem.cli import main
from atommem.errors import ConfigError
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.trace import read_trace
from tests.eval.toys import evaluated, make_task

NAMES = "abcdefgh"


async def run(out: Path, right: str, *, gone: str = "", names: str = NAMES) -> Path:
    """An evaluation in which the policy is right on the tasks `right` and out of reach on `gone`."""
    await evaluated([make_task(name) for name in names], out, wrong=set(names) - set(right), gone=gone)
    return out


async def test_wins_losses_and_flips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = await run(tmp_path / "A", "abch", gone="f")
    second = await run(tmp_path / "B", "abdefg", gone="h")
    # On both sides: a to e and g. Better: d, e, g; worse: c.
    assert main(["compare", str(first), str(second), "--json", str(tmp_path / "c.json"), "--show", "2"]) == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["wins"], found["losses"], found["ties"], found["tasks"]) == (3, 1, 2, 6)
    assert found["left_out"] == 2
    assert found["failed"] == [1, 1]
    assert found["p_value"] == pytest.approx(2 * (1 / 16 + 0.5 * 4 / 16))
    assert found["difference"] == pytest.approx(2 / 6)
    assert found["low"] < 2 / 6 < found["high"]
    assert [flip["task_id"] for flip in found["flips"]] == ["d", "e", "g", "c"]
    traces = found["flips"][0]["traces"]
    assert [read_trace(paths[0]).episode.reward for paths in traces] == [0.0, 1.0]
    assert found["flips"][0]["answers"] == [[["wrong"]], [["d-0"]]]
    printed = capsys.readouterr().out
    assert "B - A: +0.333" in printed
    assert "Better in B (3, the first 2; --show -1 prints all)" in printed
    assert str(tmp_path / "B" / "traces" / "c.0.jsonl") in printed
    assert "/g.0.jsonl" not in printed


async def test_the_means_shown_are_those_whose_difference_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two episodes of a task and one of another: each task's question counts once, as in the difference."""
    for name, wrong in (("A", "b"), ("B", "")):
        await evaluated([make_task(task) for task in "ab"], tmp_path / name, wrong=wrong, samples_per_task=2)
    episodes = tmp_path / "A" / "episodes.jsonl"
    *kept, last = episodes.read_text().splitlines(keepends=True)
    assert '"task_id": "b"' in last
    episodes.write_text("".join(kept))
    assert main(["compare", str(tmp_path / "A"), str(tmp_path / "B")]) == 0
    printed = capsys.readouterr().out
    assert "B - A: +0.500" in printed
    assert re.search(r"A[ │]+0\.500.*B[ │]+1\.000", printed, re.DOTALL)


async def test_every_score_that_is_there_is_compared_where_tasks_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golds = {name: replace(make_task(name).questions[0], answers=(f"{name}-0 exactly",)) for name in NAMES}
    tasks = [replace(make_task(name), questions=(gold,)) for name, gold in golds.items()]
    for name, right in (("A", 2), ("B", 7)):
        await evaluated(tasks, tmp_path / name, wrong=NAMES[right:])
    call = ["compare", str(tmp_path / "A"), str(tmp_path / "B"), "--json", str(tmp_path / "c.json"), "--metric"]
    for metric, wins in (("em", 0), ("sub_em", 5)):
        assert main([*call, metric]) == 0
        assert json.loads((tmp_path / "c.json").read_text())["wins"] == wins
    assert "sub-EM on the 8 tasks" in capsys.readouterr().out
    assert main([*call, "judge"]) == 2
    assert re.search(r"'judge': .* has em, f1, sub_em", capsys.readouterr().err)
    other, failed = await run(tmp_path / "other", "a", names="abcdefgi"), await run(tmp_path / "f", "a", gone=NAMES)
    assert main(["compare", str(failed), str(other)]) == 2
    same = await run(tmp_path / "same", "a")
    assert main(["compare", str(failed), str(same)]) == 0
    assert "nothing to compare" in capsys.readouterr().out


async def test_reading_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    folder = await run(tmp_path / "A", "a")
    with (folder / "episodes.jsonl").open("ab") as file:
        file.write(b'{"task_id": "half')  # as if its evaluation were writing right now
    before = (folder / "episodes.jsonl").read_bytes()
    assert len(read_evaluation(folder).records) == len(NAMES)
    assert (folder / "episodes.jsonl").read_bytes() == before


def test_no_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no evaluation .* give the --out of `atommem eval`"):
        read_evaluation(tmp_path)
    (tmp_path / "before").mkdir()
    with pytest.raises(ConfigError, match=r"did you mean \S+/before\?"):
        read_evaluation(tmp_path / "befor")
    (tmp_path / "cells").mkdir()
    with pytest.raises(ConfigError, match=rf"give {tmp_path}/report to atommem report, or .* below {tmp_path}/cells"):
        read_evaluation(tmp_path)

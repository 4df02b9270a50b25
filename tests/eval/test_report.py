"""Reports on and comparisons of small evaluations that ran: the page, what it may hold, that it is made so again."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.errors import ConfigError, DataError
from atommem.eval.reporting.charts import make_charts
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.page import PageData, choose_episodes, render_page
from atommem.eval.reporting.report_cli import read_evaluations
from atommem.eval.reporting.results import make_cells, make_results
from atommem.text_safety import clean
from atommem.trace import read_trace
from tests.eval.toys import evaluated, make_task, results_of
from tests.test_stopped import contents

NAMES = [f"t{index}" for index in range(12)]


async def run(
    out: Path, right: int, row: str, *, gone: int = 0, dataset: str = "toy"
) -> Evaluation:
    """The first `right` tasks are answered right, the last `gone` fail."""
    await evaluated(
        [make_task(name) for name in NAMES],
        out,
        wrong=NAMES[right:],
        gone=NAMES[len(NAMES) - gone :],
    )
    return read_evaluation(out, row, dataset)


@pytest.mark.slow
async def test_the_same_evaluations_give_the_same_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run anew, elsewhere, with episodes that ended in another order; and from an earlier report's results file."""
    found = []
    for place in (tmp_path / "one", tmp_path / "another" / "place"):
        for row, right, gone in (("one", 9, 0), ("two", 3, 1)):
            await run(place / row, right, "x", gone=gone)
            lines = (place / row / "episodes.jsonl").read_text().splitlines(keepends=True)
            (place / row / "episodes.jsonl").write_text(
                "".join(lines if found else reversed(lines))
            )
        (place / "metrics.jsonl").write_text(
            '{"step": 1, "reward": 0.5, "actions/create": 0.2}\n{"step": 2}\n'
        )
        more = ["--out", str(place / "out"), "--training", str(place), "--title", "<T>"]
        assert main(["report", f"left={place / 'one'}", str(place / "two"), *more]) == 0
        found.append(contents(place / "out"))
        # From the results file, under the labels that stand in it, byte for byte.
        assert main(["report", str(place / "out"), *more]) == 0
        found.append(contents(place / "out"))
    assert found[1:] == found[:1] * 3
    assert "report.html" in capsys.readouterr().out
    files = found[0]
    assert {"report.html", "results.json", "tables.md", "tables.tex"} <= files.keys()
    assert {"store_size.png", "store_size.svg", "actions.svg", "lost.png"} <= {
        Path(name).name for name in files
    }
    text = b"".join(files[name] for name in files if not name.endswith((".png", ".html")))
    assert b"seconds" not in text
    text += files["report.html"]
    assert " s · traces/".encode() not in text
    assert str(tmp_path).encode() not in text
    results = json.loads(files["results.json"])
    assert [cell["row"] for cell in results["cells"]] == ["left", "two"]
    # The toy's tasks mark no gold documents: it is told by words, of which "seen" holds none.
    lost = results["cells"][0]["lost"]
    assert (lost["by"], lost["right_otherwise"], lost["never_entered"]) == ("words", 9, 3)
    assert results["evaluations"][0]["folder"] == "../one"


@pytest.mark.usefixtures("undrawn")
async def test_seconds_are_shown_when_asked_for(tmp_path: Path) -> None:
    await run(tmp_path / "a", 3, "a")
    assert (
        main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "out"), "--efficiency"]) == 0
    )
    assert "| seconds |" in (tmp_path / "out" / "tables.md").read_text()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["cells"][0]["means"]["seconds"] > 0
    assert re.search(r"[\d.]+ s · traces/", (tmp_path / "out" / "report.html").read_text())


def page_of(
    evaluations: list[Evaluation], charts: bool = False, **settings: Any
) -> tuple[str, Any, Any]:
    """The page, the data inside it, and the results that it shows."""
    cells = make_cells(evaluations)
    page = PageData(cells, **settings)
    results = make_results(cells, title="</title><script>")
    text = render_page(page, results, make_charts(results) if charts else [])
    content = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    assert content is not None
    return text, json.loads(content[1]), results


@pytest.mark.usefixtures("undrawn")
async def test_the_page_holds_its_data_safely_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- & \u2028 \ud83d {{ 7 * 7 }}<img src=x onerror=alert(2)>"
    evaluation = await run(tmp_path / "one", 3, evil, dataset=evil)
    trace = evaluation.trace(evaluation.records[0])
    trace.write_text(trace.read_text().replace("seen", json.dumps(evil)[1:-1]))
    page, data, _ = page_of([evaluation], charts=True)
    clean(page).encode("utf-8")
    assert (
        page.count("<script") == page.count("</script>") == 4
    )  # the data, Vega, what pages share, and our own
    assert "<img src=x" not in re.sub(
        r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL
    )
    # An episode is put into the page as markup; what the model wrote stands in it as text.
    assert "<img src=x" not in "".join([*data["episodes"], *data["pairs"]])
    assert "&lt;img src=x onerror=alert(2)&gt;" in data["episodes"][0]
    assert "<ins>" in data["episodes"][0]
    assert evil in data["texts"]
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in page
    assert len(data["episodes"]) == 12
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert len(hashes) == 3
    assert html.unescape(policy[1]).endswith(f"script-src {allowed} 'unsafe-eval'")


@pytest.mark.usefixtures("undrawn")
async def test_embedded_episodes_are_of_every_kind_paired_and_compared_as_in_the_tables(
    tmp_path: Path,
) -> None:
    evaluations = [await run(tmp_path / "one", 9, "a", gone=2), await run(tmp_path / "two", 3, "b")]
    # t10, t11 failed in one; t3 to t8 differ; t9 is wrong in both; t0 to t2 right.
    first, second = choose_episodes(evaluations, 8)
    assert first == second == {("t10", 0), ("t3", 0), ("t9", 0), ("t0", 0)}
    page, data, _ = page_of(evaluations, max_episodes=3)
    assert len(data["episodes"]) == 3
    assert "3 of 24 episodes are embedded here" in page
    assert 0 < len(page_of(evaluations, max_characters=3000)[1]["episodes"]) < 4
    page, data, results = page_of(evaluations, charts=True)
    assert "EM against model calls per task" in page
    (pair,) = data["pairs"]
    (item,) = (item for item in results["comparisons"] if item["metric"] == "em")
    assert f"p = {item['p_value']:.2g}" in pair
    # Of b against a: worse on t3 to t8, and no score of a on t10 and t11.
    assert "worse on 6" in pair
    assert "2 have a score on one side only" in pair
    assert re.findall(r'<th scope="row">(t\d+)</th>', pair) == [f"t{n}" for n in range(3, 9)]
    evaluations[1].trace(evaluations[1].records[0]).unlink()
    cell = page_of(evaluations)[2]["cells"][1]
    assert (cell["traces_missing"], cell["lost"]["questions"], cell["lost"]["counted"]) == (
        1,
        12,
        11,
    )
    assert cell["metrics"]["em"]["n"] == 12


async def test_what_is_no_evaluation_or_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "one").mkdir(parents=True)
    (tmp_path / "a" / "b" / "one" / "run.json").touch()
    with pytest.raises(
        ConfigError, match=r"holds no evaluation .* give one of those in it \(.*b/one\)"
    ):
        read_evaluation(tmp_path / "a" / "b")
    with pytest.raises(
        ConfigError, match=r"holds no evaluation .* give the --out of `atommem eval`"
    ):
        read_evaluation(tmp_path)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "episodes.jsonl").touch()
    for text in ("null", '{"sampling": {"seed": 1e400}}'):
        (tmp_path / "before" / "run.json").write_text(text)
        with pytest.raises(DataError, match=r"run\.json is none of `atommem eval`"):
            read_evaluation(tmp_path / "before")
    with pytest.raises(ConfigError, match=r"did you mean \S+/before\?"):
        read_evaluation(tmp_path / "befor")
    (tmp_path / "cells").mkdir()
    with pytest.raises(
        ConfigError,
        match=rf"give {tmp_path}/report to atommem report, or .* below {tmp_path}/cells",
    ):
        read_evaluation(tmp_path)
    (tmp_path / "results.json").write_text('{"evaluations": [{}]}')
    with pytest.raises(DataError, match="does not list evaluations"):
        read_evaluations([str(tmp_path)])
    assert main(["report", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    one = await run(tmp_path / "a", 3, "a")
    with pytest.raises(ConfigError, match="with seed 0"):
        make_cells([one, one])
    with pytest.raises(ConfigError, match="no evaluation"):
        make_cells([])
    with pytest.raises(ConfigError, match="one of the rows 'a'"):
        results_of(one, reference="z")


# `atommem compare`: pairs, significance and flips of two folders

LETTERS = "abcdefgh"


async def answered(out: Path, right: str, *, gone: str = "", names: str = LETTERS) -> Path:
    """An evaluation in which the policy is right on the tasks `right` and out of reach on `gone`."""
    await evaluated(
        [make_task(name) for name in names], out, wrong=set(names) - set(right), gone=gone
    )
    return out


async def test_wins_losses_and_flips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = await answered(tmp_path / "A", "abch", gone="f")
    second = await answered(tmp_path / "B", "abdefg", gone="h")
    # On both sides: a to e and g. Better: d, e, g; worse: c.
    assert (
        main(
            ["compare", str(first), str(second), "--json", str(tmp_path / "c.json"), "--show", "2"]
        )
        == 0
    )
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
        await evaluated(
            [make_task(task) for task in "ab"], tmp_path / name, wrong=wrong, samples_per_task=2
        )
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
    golds = {
        name: replace(make_task(name).questions[0], answers=(f"{name}-0 exactly",))
        for name in LETTERS
    }
    tasks = [replace(make_task(name), questions=(gold,)) for name, gold in golds.items()]
    for name, right in (("A", 2), ("B", 7)):
        await evaluated(tasks, tmp_path / name, wrong=LETTERS[right:])
    call = [
        "compare",
        str(tmp_path / "A"),
        str(tmp_path / "B"),
        "--json",
        str(tmp_path / "c.json"),
        "--metric",
    ]
    for metric, wins in (("em", 0), ("sub_em", 5)):
        assert main([*call, metric]) == 0
        assert json.loads((tmp_path / "c.json").read_text())["wins"] == wins
    assert "sub-EM on the 8 tasks" in capsys.readouterr().out
    assert main([*call, "judge"]) == 2
    assert re.search(r"'judge': .* has em, f1, sub_em", capsys.readouterr().err)
    other = await answered(tmp_path / "other", "a", names="abcdefgi")
    failed = await answered(tmp_path / "f", "a", gone=LETTERS)
    assert main(["compare", str(failed), str(other)]) == 2
    same = await answered(tmp_path / "same", "a")
    assert main(["compare", str(failed), str(same)]) == 0
    assert "nothing to compare" in capsys.readouterr().out


async def test_reading_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    folder = await answered(tmp_path / "A", "a")
    with (folder / "episodes.jsonl").open("ab") as file:
        file.write(b'{"task_id": "half')  # as if its evaluation were writing right now
    before = (folder / "episodes.jsonl").read_bytes()
    assert len(read_evaluation(folder).records) == len(LETTERS)
    assert (folder / "episodes.jsonl").read_bytes() == before

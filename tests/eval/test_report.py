"""results.json, tables and the page's data from small evaluations."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.statistics import holm
from atommem.errors import ConfigError, DataError
from atommem.eval.reporting.charts import make_charts
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.page import PageData, choose_episodes, render_page
from atommem.eval.reporting.report_cli import read_evaluations
from atommem.eval.reporting.results import best_rows, make_cells, make_results
from atommem.eval.reporting.templates import latex_tables, markdown_tables
from atommem.untrusted import clean
from tests.eval.toys import evaluated, make_task

NAMES = [f"t{index}" for index in range(12)]


async def run(
    out: Path, right: int, row: str, *, gone: int = 0, seed: int = 0, documents: int | None = None, dataset: str = "toy"
) -> Evaluation:
    """The first `right` tasks are answered right, the last `gone` fail."""
    await evaluated([make_task(name) for name in NAMES], out, wrong=NAMES[right:], gone=NAMES[len(NAMES) - gone :])
    return read_evaluation(out, row, dataset, documents=documents, seed=seed)


async def test_bold_needs_a_corrected_test(tmp_path: Path) -> None:
    best, second, last = (
        await run(tmp_path / "a", 12, "a"),
        await run(tmp_path / "b", 3, "b", gone=2),
        await run(tmp_path / "c", 2, "c"),
    )
    results = make_results(make_cells([best, second, last]), reference="c")
    em = [item for item in results["comparisons"] if item["metric"] == "em"]
    # a against b on the ten tasks that b has; then a and b against c.
    assert [(item["second"], item["first"], item["wins"], item["losses"]) for item in em] == [
        ("a", "b", 7, 0),
        ("a", "c", 10, 0),
        ("b", "c", 1, 0),
    ]
    # McNemar's mid-p: all of 7, 10 and 1 on one side.
    assert [item["p_holm"] for item in em] == holm([0.5**7, 0.5**10, 0.5])
    assert best_rows(results, "em") == {("toy", None): "a"}
    text = markdown_tables(results)
    assert "| a | **100.0** [" in text
    assert "| b | 30.0 [" in text
    assert "**2 failed**" in text
    tex = latex_tables(results)
    assert "\\textbf{100.0}" in tex
    assert "\\textbf{2 failed}" in tex

    # One task apart: the same best number is no longer bold.
    close = make_results(make_cells([best, await run(tmp_path / "d", 11, "d")]))
    assert best_rows(close, "em") == {}
    scores = markdown_tables(close).split("## Comparisons")[0]
    assert "**" not in scores


async def test_seeds_are_one_cell_with_a_spread(tmp_path: Path) -> None:
    cells = make_cells([await run(tmp_path / str(seed), 3 + 3 * seed, "a", seed=seed) for seed in range(3)])
    (cell,) = make_results(cells)["cells"]
    assert cell["seeds"] == [0, 1, 2]
    assert cell["metrics"]["em"]["mean"] == pytest.approx(0.5)
    assert cell["metrics"]["em"]["between_seeds"] == pytest.approx(
        {"mean": 0.5, "sd": 0.25, "low": 0.25, "high": 0.75, "seeds": 3}
    )
    # The same twelve tasks three times: not 36 independent ones.
    assert (cell["metrics"]["em"]["n"], cell["metrics"]["em"]["clusters"]) == (36, 12)
    assert "sd 25.0 over 3 seeds" in markdown_tables(make_results(cells))


@pytest.mark.slow
async def test_report_writes_everything_and_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await run(tmp_path / "one", 9, "x")
    await run(tmp_path / "two", 3, "x", gone=1)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "actions/create": 0.2}\n{"step": 2}\n')
    call = ["report", f"left={tmp_path / 'one'}", str(tmp_path / "two"), "--out", str(tmp_path / "out")]
    assert main([*call, "--training", str(tmp_path), "--title", "<T>"]) == 0
    assert "report.html" in capsys.readouterr().out
    out = tmp_path / "out"
    results = json.loads((out / "results.json").read_text())
    assert [cell["row"] for cell in results["cells"]] == ["left", "two"]
    # The toy's tasks mark no gold documents: it is told by words, of which "seen" holds none.
    assert results["cells"][0]["lost"]["by"] == "words"
    assert (results["cells"][0]["lost"]["right_otherwise"], results["cells"][0]["lost"]["never_entered"]) == (9, 3)
    assert results["evaluations"][0]["folder"] == "../one"
    files = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {"store_size.png", "store_size.svg", "actions.svg", "lost.png"} <= {path.name for path in files}
    # From the results file, under the labels that stand in it, byte for byte.
    assert main(["report", str(out), "--out", str(out), "--training", str(tmp_path), "--title", "<T>"]) == 0
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == files


def page_of(evaluations: list[Evaluation], **settings: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The page, the data inside it, and the results that it shows."""
    cells = make_cells(evaluations)
    page = PageData(cells, **settings)
    results = make_results(cells, title="</title><script>")
    text = render_page(page, results, make_charts(results))
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert content is not None
    return text, json.loads(content[1]), results


@pytest.mark.usefixtures("undrawn")
async def test_the_page_holds_its_data_safely(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- & \u2028 \ud83d {{ 7 * 7 }}<img src=x onerror=alert(2)>"
    evaluation = await run(tmp_path / "one", 3, evil, dataset=evil)
    trace = evaluation.trace(evaluation.records[0])
    trace.write_text(trace.read_text().replace("seen", json.dumps(evil)[1:-1]))
    page, data, _ = page_of([evaluation])
    clean(page).encode("utf-8")
    assert page.count("<script") == page.count("</script>") == 4  # the data, Vega, what pages share, and our own
    assert "<img src=x" not in re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    # An episode is put into the page as markup; what the model wrote stands in it as text.
    assert "<img src=x" not in "".join([*data["episodes"], *data["pairs"]])
    assert "&lt;img src=x onerror=alert(2)&gt;" in data["episodes"][0]
    assert "<ins>" in data["episodes"][0]
    assert evil in data["texts"]
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in page
    assert len(data["episodes"]) == 12
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)


@pytest.mark.usefixtures("undrawn")
async def test_only_the_pages_own_scripts_may_run(tmp_path: Path) -> None:
    page, _, _ = page_of([await run(tmp_path / "one", 3, "x")])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert len(hashes) == 3
    assert html.unescape(policy[1]).endswith(f"script-src {allowed} 'unsafe-eval'")


@pytest.mark.usefixtures("undrawn")
async def test_embedded_episodes_are_of_every_kind_and_paired(tmp_path: Path) -> None:
    evaluations = [await run(tmp_path / "one", 9, "a", gone=2), await run(tmp_path / "two", 3, "b")]
    # t10, t11 failed in one; t3 to t8 differ; t9 is wrong in both; t0 to t2 right.
    first, second = choose_episodes(evaluations, 8)
    assert first == second == {("t10", 0), ("t3", 0), ("t9", 0), ("t0", 0)}
    page, data, _ = page_of(evaluations, max_episodes=3)
    assert len(data["episodes"]) == 3
    assert "3 of 24 episodes are embedded here" in page
    _, data, _ = page_of(evaluations, max_characters=3000)
    assert 0 < len(data["episodes"]) < 4


@pytest.mark.usefixtures("undrawn")
async def test_two_rows_are_compared_by_the_test_of_the_tables(tmp_path: Path) -> None:
    rows = [await run(tmp_path / "one", 9, "a", gone=2), await run(tmp_path / "two", 3, "b")]
    _, data, results = page_of(rows)
    (pair,) = data["pairs"]
    (item,) = (item for item in results["comparisons"] if item["metric"] == "em")
    assert f"p = {item['p_value']:.2g}" in pair
    # Of b against a: worse on t3 to t8, and no score of a on t10 and t11.
    assert "worse on 6" in pair
    assert "2 have a score on one side only" in pair
    assert re.findall(r'<th scope="row">(t\d+)</th>', pair) == [f"t{n}" for n in range(3, 9)]


@pytest.mark.usefixtures("undrawn")
async def test_a_missing_trace_is_counted(tmp_path: Path) -> None:
    evaluation = await run(tmp_path / "one", 3, "a")
    evaluation.trace(evaluation.records[0]).unlink()
    (cell,) = page_of([evaluation])[2]["cells"]
    assert cell["traces_missing"] == 1
    assert (cell["lost"]["questions"], cell["lost"]["counted"]) == (12, 11)
    assert cell["metrics"]["em"]["n"] == 12


def test_files_that_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"evaluations": [{}]}')
    with pytest.raises(DataError, match="does not list evaluations"):
        read_evaluations([str(tmp_path)])
    assert main(["report", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2


async def test_what_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    one = await run(tmp_path / "a", 3, "a")
    with pytest.raises(ConfigError, match="with seed 0"):
        make_cells([one, one])
    with pytest.raises(ConfigError, match="no evaluation"):
        make_cells([])
    with pytest.raises(ConfigError, match="one of the rows 'a'"):
        make_results(make_cells([one]), reference="z")

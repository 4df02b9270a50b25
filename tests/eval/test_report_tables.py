"""What a report's tables and charts rank, test and show, from scores that are made up."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from atommem.envs.scoring.records import summarize
from atommem.envs.scoring.statistics import holm
from atommem.envs.synthetic.world import WorldConfig
from atommem.eval.console_report import breakdown_table, report_table, report_tables
from atommem.eval.eval_config import parse_arguments
from atommem.eval.reporting.charts import grids, make_charts, setting_lines, write_charts
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import Fate
from atommem.eval.reporting.page import PageData
from atommem.eval.reporting.results import best_rows, make_cells, make_results
from atommem.eval.reporting.templates import latex_tables, markdown_tables
from atommem.eval.suites.cells import Cell
from atommem.eval.suites.outcome import main_table
from atommem.eval.suites.suite import Column, Row, SyntheticData
from tests.eval.toys import made, ones, results_of

NOWHERE = {"fact_entered": 0.0, "fact_kept": 0.0, "fact_retrieved": 0.0}
ENTERED = {**NOWHERE, "fact_entered": 1.0}


def test_bold_needs_a_corrected_test() -> None:
    best, second = (
        made("a", ones(12, 12)),
        made("b", ones(3, 12), endings={10: "failed", 11: "failed"}),
    )
    results = results_of(best, second, made("c", ones(2, 12)), reference="c")
    em = [item for item in results["comparisons"] if item["metric"] == "em"]
    # a against b on the ten tasks that b has; then a and b against c.
    counts = [(item["second"], item["first"], item["wins"], item["losses"]) for item in em]
    assert counts == [("a", "b", 7, 0), ("a", "c", 10, 0), ("b", "c", 1, 0)]
    # McNemar's mid-p: all of 7, 10 and 1 on one side.
    assert [item["p_holm"] for item in em] == holm([0.5**7, 0.5**10, 0.5])
    assert best_rows(results, "em") == {("toy", None): "a"}
    text, tex = markdown_tables(results), latex_tables(results)
    assert [
        shown
        for shown in ("| a | **100.0** [", "| b | 30.0 [", "**2 failed**")
        if shown not in text
    ] == []
    assert "\\textbf{100.0}" in tex
    assert "\\textbf{2 failed}" in tex
    # One task apart: the same best number is no longer bold.
    close = results_of(best, made("d", ones(11, 12)))
    assert best_rows(close, "em") == {}
    assert "**" not in markdown_tables(close).split("## Comparisons")[0]


def test_other_scores_are_tested_and_bold_like_em() -> None:
    good = made(
        "good", [{"em": 0.0, "sub_em": 1.0, "judge": float(n < 9), **ENTERED} for n in range(20)]
    )
    poor = made("poor", [{"em": 0.0, "sub_em": 0.0, "judge": float(n < 8)} for n in range(20)])
    results = results_of(good, poor)
    assert [item["metric"] for item in results["comparisons"]] == ["em", "f1", "sub_em", "judge"]
    assert best_rows(results, "sub_em") == {("toy", None): "good"}
    assert best_rows(results, "judge") == best_rows(results, "em") == {}
    text = markdown_tables(results)
    assert "|  | EM | F1 | sub-EM | Judge | n | episodes |" in text
    assert (
        "| good | 0.0 [0.0, 16.1] | 0.0 [0.0, 16.1] | **100.0** [83.9, 100.0] | 45.0 [25.8, 65.8] | 20 | 20 |"
        in text
    )
    # The best of the facts has no test behind it.
    assert "| good | 100.0 [83.9, 100.0] | 0.0 [0.0, 16.1] | 0.0 [0.0, 16.1] |" in text
    assert "| poor | - | - | - |" in text


def test_seeds_are_one_cell_with_a_spread() -> None:
    results = results_of(*(made("a", ones(3 + 3 * seed, 12), seed=seed) for seed in range(3)))
    (cell,) = results["cells"]
    assert cell["seeds"] == [0, 1, 2]
    em = cell["metrics"]["em"]
    spread = {"mean": 0.5, "sd": 0.25, "low": 0.25, "high": 0.75, "seeds": 3}
    assert (em["mean"], em["between_seeds"]) == (pytest.approx(0.5), pytest.approx(spread))
    assert (em["n"], em["clusters"]) == (36, 12), (
        "the same twelve tasks three times: not 36 independent ones"
    )
    assert "sd 25.0 over 3 seeds" in markdown_tables(results)


def test_categories_and_numbers_of_episodes() -> None:
    scores = [{"em": float(n % 2)} for n in range(8)]
    numbers = {"truncated": 1.0, "context_kept": 0.25}
    results = results_of(made("a", scores, categories=("odd", "even"), episode=numbers))
    text = markdown_tables(results)
    assert "## EM by category: toy" in text
    assert "|  | even (n 4) | odd (n 4) |" in text
    assert "| a | 100.0 [51.0, 100.0] | 0.0 [0.0, 49.0] |" in text
    assert results["cells"][0]["episode_metrics"]["context_kept"]["mean"] == 0.25
    assert "| Truncated | Context kept |" in text
    assert "100.0 [67.6, 100.0] | 25.0" in text


def test_an_evaluation_that_is_not_finished_is_named() -> None:
    results = results_of(made("a", ones(4, 4), planned=9), made("b", ones(0, 4)))
    assert [cell["planned"] for cell in results["cells"]] == [9, 4]
    text = markdown_tables(results)
    assert "**1 of 2 evaluations are not finished" in text
    assert "| 4 | 4 **4 of 9 episodes** |" in text
    assert "\\textbf{4 of 9 episodes}" in latex_tables(results)


def test_where_answers_are_lost_is_told_of_methods_with_a_memory_and_prompts_that_fit() -> None:
    overflowing = made("a", [{"em": 0.0, **NOWHERE}] * 4, endings={1: "context_overflow"})
    reader = replace(
        made("reader", [{"em": 0.0, **NOWHERE}]), manifest={"method": {"name": "full_context"}}
    )
    cells = make_cells([overflowing, reader])
    PageData(cells)
    first, second = make_results(cells)["cells"]
    assert (first["lost"]["by"], first["lost"]["never_entered"], second["lost"]) == (
        "facts",
        3,
        None,
    )
    assert cells[0].inspection is not None
    assert cells[0].inspection.fates == {Fate.NEVER_ENTERED: 3}


def grid() -> list[Evaluation]:
    points = [(rule, capacity) for rule in ("reject", "fifo") for capacity in (20, 5, "unlimited")]
    return [
        made(
            "m",
            ones(1, 1),
            setting=f"{capacity} {rule}",
            parameters={"capacity": capacity, "retention": rule},
        )
        for rule, capacity in points
    ]


def test_a_grid_of_settings_is_an_axis_and_lines() -> None:
    cells = results_of(*grid())["cells"]
    (values,) = setting_lines(cells).values()
    wanted = [(x, row) for x in ("5", "20", "unlimited") for row in ("reject", "fifo")]
    assert [(value["x"], value["row"]) for value in values] == wanted
    assert grids(cells) == {}
    points = [(chunk, k) for chunk in (1, 2) for k in (3, 6)]
    numbers = (
        {"setting": f"{chunk}{k}", "parameters": {"chunk": chunk, "k": k}} for chunk, k in points
    )
    results = results_of(*(made("m", ones(1, 1), **labels) for labels in numbers))
    values = grids(results["cells"])["chunk", "k"]
    assert [(value["x"], value["y"], value["mean"]) for value in values] == [
        (c, k, 100.0) for c, k in points
    ]
    # A heat map shows both parameters, so that lines of each would say the same again.
    assert [chart.name for chart in make_charts(results) if chart.section == "settings"] == [
        "chunk_k"
    ]


def test_a_file_of_a_chart_is_the_pages_chart(tmp_path: Path) -> None:
    (chart, *_) = make_charts(results_of(*grid(), made("rag", ones(0, 1))))
    write_charts([chart], tmp_path, ("svg", "pdf", "png"))
    found = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert (found[".pdf"][:5], found[".png"][1:4]) == (b"%PDF-", b"PNG")
    assert found[".svg"].decode() == chart.svg


def test_names_are_text_in_markdown_and_latex() -> None:
    """A row that LaTeX takes for an argument of the end of the row before, a blank line, HTML, links, split cells."""
    names = ("[2] ours", "*ours", "a\\|b", "<img src=x>", "x\n\ny ![z](http://z) `c`")
    results = results_of(*(made(name, ones(2, 2)) for name in names), title="one\n\ntwo")
    tex, text = latex_tables(results), markdown_tables(results)
    assert re.findall(r"^(?:\[|\*).*", tex, re.MULTILINE) == []
    assert "\n{}[2] ours & " in tex
    assert "(one two)" in tex
    assert "\n{}x y ![z]" in tex
    cells = ("\\[2] ours", "\\*ours", "a\\\\\\|b", "\\<img src=x>", "x y !\\[z](http://z) \\`c\\`")
    assert [cell for cell in cells if f"\n| {cell} |" not in text] == []


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_tables_compile(tmp_path: Path) -> None:
    more = {"categories": ("one & two",), "planned": 3}
    wide = [
        made(row, [{"em": 1.0, **ENTERED}], dataset=dataset, documents=size, **more)
        for row in ("50% of $x_1$ & {more} #2", "a~b^c\\d <e> | f", "[1] x\n\ny", "* z")
        for dataset in ("x_y", "z")
        for size in (200, 400, 800, 1600)
    ]
    (tmp_path / "tables.tex").write_text(latex_tables(results_of(*wide, title="T & T")))
    (tmp_path / "main.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\usepackage{graphicx}\\extrafloats{100}"
        "\\begin{document}\\input{tables}\\end{document}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_provenance_tells_checkpoints_apart_and_names_nobody() -> None:
    evaluation = made("a", ones(1, 1))
    for path, shown in {
        "Qwen/Qwen3-8B@v1.0": "Qwen/Qwen3-8B@v1.0",
        "runs/hotpot/checkpoint-300/": "hotpot/checkpoint-300",
        "/data/runs/hotpot/checkpoint-300": "hotpot/checkpoint-300",
        "/home/someone/hotpot": "hotpot",
        "/root/hotpot": "hotpot",
    }.items():
        evaluation.manifest["policy"] = {"path": path, "commit": "c0ffee"}
        (cell,) = results_of(evaluation)["cells"]
        assert (cell["provenance"]["checkpoint"], cell["provenance"]["commit"]) == (shown, "c0ffee")


def test_bounds_are_in_no_test_and_never_bold() -> None:
    oracle, best = made("oracle", ones(20, 20)), made("ours", ones(15, 20))
    results = results_of(
        oracle, made("no_memory", ones(0, 20)), best, made("rag", ones(0, 20)), reference="ours"
    )
    assert {(item["first"], item["second"]) for item in results["comparisons"]} == {("rag", "ours")}
    assert best_rows(results, "em") == {("toy", None): "ours"}
    assert "| oracle | 100.0 [" in markdown_tables(results)
    # By whatever name its row goes: the method stands in run.json.
    named = replace(
        oracle, method="gold", manifest={**oracle.manifest, "method": {"name": "oracle"}}
    )
    assert make_cells([named])[0].bound


def test_prompts_that_do_not_fit_are_no_score(capsys: pytest.CaptureFixture[str]) -> None:
    def overflowing(row: str, count: int) -> Evaluation:
        endings = dict.fromkeys(range(count), "context_overflow")
        return made(row, [{"em": float(n >= count)} for n in range(16)], endings=endings)

    results = results_of(made("ours", ones(4, 16)), overflowing("mem0", 16), overflowing("some", 2))
    _, none, some = results["cells"]
    assert (none["overflow"], none["metrics"], some["overflow"]) == (16, {}, 2)
    assert none["metric"] == "em", "what has no score does not say that another one is the main one"
    assert (some["metrics"]["em"]["mean"], some["metrics"]["em"]["n"]) == (1.0, 14)
    assert results["comparisons"] == []
    assert best_rows(results, "em") == {}
    text = markdown_tables(results)
    assert "| mem0 | overflow **16 of 16 episodes overflow** |" in text
    assert "| some | overflow, 100.0 in those that fit **2 of 16 episodes overflow** |" in text
    assert text.count("| mem0 | 16 **16 of 16 episodes overflow** |") == 1, (
        "nor are its costs a task's"
    )
    alone = markdown_tables(results_of(overflowing("mem0", 16)))
    assert "| mem0 | overflow **16 of 16 episodes overflow** | 0 |" in alone
    Console(width=200).print(main_table(results))
    assert "16 of 16 episodes overflow" in capsys.readouterr().out
    cells = [str(cell) for column in report_table({"all": none}).columns for cell in column.cells]
    assert "no score" in cells
    assert "  prompt did not fit (not scored)" in cells


def test_a_prompt_that_does_not_fit_does_not_rename_the_score_of_those_that_do() -> None:
    configs = parse_arguments(["--policy", "p", "--data", "d", "--out", "o"])
    (record,) = made("ours", ones(1, 1)).records
    for scored, name in ((record, "em"), (replace(record, questions=()), "reward")):
        cell = Cell(Row("ours"), Column("x", SyntheticData(WorldConfig(), 2, 0)), 0, configs)
        for item in (scored, replace(scored, task_id="t1", stop_reason="context_overflow")):
            cell.take(item)
        assert (cell.metric, cell.done, cell.score) == (name, 2, 1.0)


def test_the_unit_is_found_in_the_records() -> None:
    """Questions that come again are one unit; so are the tasks of one conversation."""
    evaluation = made("a", [{"em": float(n % 2)} for n in range(20)])
    assert results_of(evaluation)["cells"][0]["metrics"]["em"]["unit"] == "group"
    (question,) = evaluation.records[0].questions
    talks = [
        replace(record, group=f"talk {number % 2}")
        for number, record in enumerate(evaluation.records)
    ]
    again = [
        replace(record, questions=(replace(question, id=f"q{number % 5}"),))
        for number, record in enumerate(evaluation.records)
    ]
    for records, unit, units in ((again, "question", 5), (talks, "group", 2)):
        (cell,) = results_of(replace(evaluation, records=tuple(records)))["cells"]
        em = cell["metrics"]["em"]
        assert (em["unit"], em["clusters"], em["n"]) == (unit, units, 20)
    headings, values = (
        [str(value) for value in column.cells] for column in report_table({"all": cell}).columns
    )
    assert values[headings.index("independent units / questions")] == "2 / 20", (
        "20 tasks, of two conversations"
    )


SOURCES = ("hotpotqa", "2wikimultihopqa", "musique", "squad", "locomo")


@pytest.mark.parametrize(("sources", "overflow"), [(0, 0), (1, 0), (5, 0), (3, 2)])
def test_no_line_is_broken_at_80_columns(sources: int, overflow: int) -> None:
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system=None, soft_wrap=True
    )
    item = {**summarize(made("a", ones(2, 3)).records), "overflow": overflow}
    score = item["metrics"]["em"]
    for table in report_tables(
        {**item, "by_source": dict.fromkeys(SOURCES[:sources], item)}, console
    ):
        console.print(table)
    console.print(
        breakdown_table(
            [{"by": "type", "value": "bridge", **score, "metric": m} for m in ("em", "f1")]
        )
    )
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\u2026" in line for line in lines)
    assert all(sum(name in line.split() for line in lines) == 1 for name in SOURCES[:sources])
    scores = [line for line in lines if "EM [95%" in line]
    interval = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**score)
    wanted = "no score, 0.667 in those that fit" if overflow else interval
    assert sum(line.count(wanted) for line in scores) == sources + 1

"""What a report says beyond EM and F1, what it says of evaluations that are not finished, and that it is repeatable."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord
from atommem.envs.task import Question, Task
from atommem.episode_stats import episode_sums
from atommem.errors import ConfigError
from atommem.eval.reporting.charts import grids, make_charts, setting_lines, write_charts
from atommem.eval.reporting.comparison import main as compare
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.page import PageData
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.reporting.results import best_rows, make_cells, make_results
from atommem.eval.reporting.templates import latex_tables, markdown_tables
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from tests.eval.toys import ToyPolicy, make_runner, make_task

NAMES = [f"t{index}" for index in range(10)]


class Slow:
    """A policy that takes its time, longer for earlier tasks or for later ones."""

    def __init__(self, inner: ToyPolicy, *, backwards: bool) -> None:
        self._inner = inner
        self._backwards = backwards

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        completion = await self._inner.complete(prompt_ids, sampling)
        place = int(self._inner.asked[-1].removeprefix("t"))
        await asyncio.sleep(0.004 * (len(NAMES) - place if self._backwards else place))
        return completion

    async def close(self) -> None:
        return None


async def run(out: Path, right: int, *, backwards: bool = False, tasks: list[Task] | None = None) -> Path:
    """The first `right` tasks are answered right."""
    _, policy = make_runner()
    policy.wrong, policy.garbled = set(NAMES[right:]), {"t1"}
    runner, _ = make_runner(policy=Slow(policy, backwards=backwards), tokenizer=policy.tokenizer, max_in_flight=None)
    await evaluate(tasks or [make_task(name) for name in NAMES], runner, out, progress=False)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def report(root: Path, *, backwards: bool, efficiency: bool = False) -> dict[str, bytes]:
    """Two evaluations and the report on them."""
    found = []
    for row, right, size in (("a", 8, 2), ("a", 6, 4), ("b", 3, 2), ("b", 2, 4)):
        folder = await run(root / "runs" / f"{row}{size}", right, backwards=backwards)
        found.append(read_evaluation(folder, row, "toy", documents=size, parameters={"k": size}, setting=f"k {size}"))
    (root / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "actions/create": 0.2}\n')
    write_report(found, root / "report", training=root, efficiency=efficiency)
    return contents(root / "report")


@pytest.mark.slow
async def test_the_same_evaluation_gives_the_same_files(tmp_path: Path) -> None:
    first = await report(tmp_path / "one", backwards=False)
    (tmp_path / "another" / "place").mkdir(parents=True)
    second = await report(tmp_path / "another" / "place", backwards=True)
    ended = [
        [json.loads(line)["task_id"] for line in (place / "runs/a2/episodes.jsonl").read_text().splitlines()]
        for place in (tmp_path / "one", tmp_path / "another" / "place")
    ]
    assert sorted(ended[0]) == sorted(ended[1])
    assert ended[0] != ended[1]
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert {"report.html", "results.json", "tables.md", "tables.tex", "plots/lost-toy-2.svg"} <= first.keys()
    text = b"".join(first[name] for name in first if not name.endswith((".png", ".html")))
    assert b"seconds" not in text
    text += first["report.html"]
    assert " s · traces/".encode() not in text
    assert str(tmp_path).encode() not in text


async def test_seconds_are_shown_when_asked_for(tmp_path: Path) -> None:
    await run(tmp_path / "a", 3)
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "out"), "--efficiency"]) == 0
    assert "| seconds |" in (tmp_path / "out" / "tables.md").read_text()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["cells"][0]["means"]["seconds"] > 0
    assert re.search(r"[\d.]+ s · traces/", (tmp_path / "out" / "report.html").read_text())


def made(
    row: str,
    scores: list[dict[str, float]],
    *,
    categories: tuple[str, ...] = ("",),
    dataset: str = "toy",
    documents: int | None = None,
    planned: int | None = None,
    episode: dict[str, float] | None = None,
    **more: Any,
) -> Evaluation:
    """An evaluation with one question a task, from its scores."""
    records = []
    for number, given in enumerate(scores):
        metrics = dict(given)
        em = metrics["em"]
        question = QuestionRecord(
            f"q{number}", "?", "a", ("b",), categories[number % len(categories)], {"f1": em, **metrics}
        )
        sums = {"episodes": 1.0, "failed": 0.0, "reward_squared": 0.0}
        records.append(
            EpisodeRecord(f"t{number}", 0, dataset, "answered", None, em, dict(episode or {}), (question,), sums, 1.0)
        )
    manifest = {"tasks": {"count": planned or len(scores), "sha256": "s"}, "samples_per_task": 1, "memory": {}}
    return Evaluation(Path(row), row, dataset, documents=documents, manifest=manifest, records=tuple(records), **more)


def complete_sums(evaluation: Evaluation) -> Evaluation:
    """With all the totals that an episode has."""
    return replace(
        evaluation,
        records=tuple(replace(record, sums={**episode_sums([]), **record.sums}) for record in evaluation.records),
    )


def results_of(*evaluations: Evaluation, **more: Any) -> dict[str, Any]:
    return make_results(make_cells([complete_sums(item) for item in evaluations]), **more)


def test_other_scores_are_tested_and_bold_like_em() -> None:
    facts = {"fact_entered": 1.0, "fact_kept": 0.0, "fact_retrieved": 0.0}
    good = made("good", [{"em": 0.0, "sub_em": 1.0, "judge": float(n < 9), **facts} for n in range(20)])
    poor = made("poor", [{"em": 0.0, "sub_em": 0.0, "judge": float(n < 8)} for n in range(20)])
    results = results_of(good, poor)
    assert [item["metric"] for item in results["comparisons"]] == ["em", "f1", "sub_em", "judge"]
    assert best_rows(results, "sub_em") == {("toy", None): "good"}
    assert best_rows(results, "judge") == best_rows(results, "em") == {}
    text = markdown_tables(results)
    assert "|  | EM | F1 | sub-EM | Judge | n | episodes |" in text
    assert (
        "| good | 0.0 [0.0, 16.1] | 0.0 [0.0, 16.1] | **100.0** [83.9, 100.0] | 45.0 [25.8, 65.8] | 20 | 20 |" in text
    )
    # The best of the facts has no test behind it.
    assert "| good | 100.0 [83.9, 100.0] | 0.0 [0.0, 16.1] | 0.0 [0.0, 16.1] |" in text
    assert "| poor | - | - | - |" in text


def test_categories_and_numbers_of_episodes() -> None:
    scores = [{"em": float(n % 2)} for n in range(8)]
    results = results_of(
        made("a", scores, categories=("odd", "even"), episode={"truncated": 1.0, "context_kept": 0.25})
    )
    text = markdown_tables(results)
    assert "## EM by category: toy" in text
    assert "|  | even (n 4) | odd (n 4) |" in text
    assert "| a | 100.0 [51.0, 100.0] | 0.0 [0.0, 49.0] |" in text
    assert results["cells"][0]["episode_metrics"]["context_kept"]["mean"] == 0.25
    assert "| Truncated | Context kept |" in text
    assert "100.0 [67.6, 100.0] | 25.0" in text


def test_an_evaluation_that_is_not_finished_is_named() -> None:
    parts = [made("a", [{"em": 1.0}] * 4, planned=9), made("b", [{"em": 0.0}] * 4)]
    results = results_of(*parts)
    assert [cell["planned"] for cell in results["cells"]] == [9, 4]
    text = markdown_tables(results)
    assert "**1 of 2 evaluations are not finished" in text
    assert "| 4 | 4 **4 of 9 episodes** |" in text
    assert "\\textbf{4 of 9 episodes}" in latex_tables(results)


def test_lost_answers_of_methods_without_memory_are_not_counted_as_lost() -> None:
    facts = {"fact_entered": 0.0, "fact_kept": 0.0, "fact_retrieved": 0.0}
    reader = replace(made("reader", [{"em": 0.0, **facts}]), manifest={"method": {"name": "full_context"}})
    cells = make_cells([complete_sums(made("a", [{"em": 0.0, **facts}])), complete_sums(reader)])
    PageData(cells)
    first, second = make_results(cells)["cells"]
    assert (first["lost"]["by"], first["lost"]["never_entered"], second["lost"]) == ("facts", 1, None)


def grid() -> list[Evaluation]:
    found = []
    for rule in ("reject", "fifo"):
        for capacity in (20, 5, "unlimited"):
            parameters = {"capacity": capacity, "retention": rule}
            found.append(made("m", [{"em": 1.0}], setting=f"{capacity} {rule}", parameters=parameters))
    return found


def test_a_grid_of_settings_is_an_axis_and_lines() -> None:
    cells = results_of(*grid())["cells"]
    (values,) = setting_lines(cells).values()
    assert [(value["x"], value["row"]) for value in values] == [
        (x, row) for x in ("5", "20", "unlimited") for row in ("reject", "fifo")
    ]
    assert grids(cells) == {}
    numbers = [
        made("m", [{"em": 1.0}], setting=f"{c}{k}", parameters={"chunk": c, "k": k}) for c in (1, 2) for k in (3, 6)
    ]
    results = results_of(*numbers)
    (values,) = (found[1] for found in grids(results["cells"]).items() if found[0] == ("chunk", "k"))
    assert [(value["x"], value["y"], value["mean"]) for value in values] == [
        (c, k, 100.0) for c in (1, 2) for k in (3, 6)
    ]
    # A heat map shows both parameters, so that lines of each would say the same again.
    assert [chart.name for chart in make_charts(results) if chart.section == "settings"] == ["chunk_k"]


def test_a_file_of_a_chart_is_the_pages_chart(tmp_path: Path) -> None:
    (chart, *_) = make_charts(results_of(*grid(), made("rag", [{"em": 0.0}])))
    write_charts([chart], tmp_path, ("svg", "pdf", "png"))
    found = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert (found[".pdf"][:5], found[".png"][1:4]) == (b"%PDF-", b"PNG")
    assert found[".svg"].decode() == chart.svg


def test_names_are_text_in_markdown_and_latex() -> None:
    """A row that LaTeX takes for an argument of the end of the row before, a blank line, HTML, links, split cells."""
    names = ("[2] ours", "*ours", "a\\|b", "<img src=x>", "x\n\ny ![z](http://z) `c`")
    results = results_of(*(made(name, [{"em": 1.0}] * 2) for name in names), title="one\n\ntwo")
    tex, text = latex_tables(results), markdown_tables(results)
    assert re.findall(r"^(?:\[|\*).*", tex, re.MULTILINE) == []
    assert "\n{}[2] ours & " in tex
    assert "(one two)" in tex
    assert "\n{}x y ![z]" in tex
    for shown in (
        "\n| \\[2] ours |",
        "\n| \\*ours |",
        "\n| a\\\\\\|b |",
        "\n| \\<img src=x> |",
        "\n| x y !\\[z](http://z) \\`c\\` |",
    ):
        assert shown in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_tables_compile(tmp_path: Path) -> None:
    facts = {"fact_entered": 1.0, "fact_kept": 0.0, "fact_retrieved": 0.0}
    names = ("50% of $x_1$ & {more} #2", "a~b^c\\d <e> | f", "[1] x\n\ny", "* z")
    wide = [
        made(row, [{"em": 1.0, **facts}], dataset=dataset, documents=size, categories=("one & two",), planned=3)
        for row in names
        for dataset in ("x_y", "z")
        for size in (200, 400, 800, 1600)
    ]
    (tmp_path / "tables.tex").write_text(latex_tables(results_of(*wide, title="T & T")))
    (tmp_path / "main.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\usepackage{graphicx}\\extrafloats{100}"
        "\\begin{document}\\input{tables}\\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


async def test_compare_takes_every_score_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = [
        Task(task.id, (Question(task.questions[0].text, (f"{task.id}-0 exactly",)),), task.documents, source="toy")
        for task in map(make_task, NAMES)
    ]
    first, second = await run(tmp_path / "a", 2, tasks=long), await run(tmp_path / "b", 9, tasks=long)
    call = ["compare", str(first), str(second), "--json", str(tmp_path / "c.json"), "--metric"]
    assert main([*call, "em"]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["wins"] == 0
    assert main([*call, "sub_em"]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["wins"] == 7
    assert "sub-EM on the 10 tasks" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"'judge': .* has em, f1, sub_em"):
        compare([str(first), str(second), "--metric", "judge"])


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("Qwen/Qwen3-8B@v1.0", "Qwen/Qwen3-8B@v1.0"),
        ("runs/hotpot/checkpoint-300/", "hotpot/checkpoint-300"),
        ("/data/runs/hotpot/checkpoint-300", "hotpot/checkpoint-300"),
        ("/home/someone/hotpot", "hotpot"),
        ("/root/hotpot", "hotpot"),
    ],
)
def test_provenance_tells_checkpoints_apart_and_names_nobody(path: str, shown: str) -> None:
    evaluation = made("a", [{"em": 1.0}])
    evaluation.manifest["policy"] = {"path": path, "commit": "c0ffee"}
    (cell,) = results_of(evaluation)["cells"]
    assert (cell["provenance"]["checkpoint"], cell["provenance"]["commit"]) == (shown, "c0ffee")

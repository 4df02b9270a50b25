"""``atommem report``: evaluations as tables, charts and a page, and exports for other tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from atommem.arguments import Parser
from atommem.config import fields_of
from atommem.envs.task_files import write_json, write_text
from atommem.errors import ConfigError, DataError, check_writable, format_error
from atommem.eval.reporting.charts import make_charts, write_charts
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.inspect_export import write_inspect_logs
from atommem.eval.reporting.inspection import Inspection
from atommem.eval.reporting.page import render_page
from atommem.eval.reporting.predictions import write_predictions
from atommem.eval.reporting.published import load_table, set_beside
from atommem.eval.reporting.results import RESULTS, group_evaluations, make_results
from atommem.eval.reporting.tables import incomplete_note, make_tables, score_frame
from atommem.text_safety import clean
from atommem.trace import read_trace


def main(argv: Sequence[str]) -> int:
    """Run ``atommem report``; raises AtomMemError for wrong settings and damaged files."""
    parser = Parser(prog="atommem report", description=__doc__)
    add = parser.add_argument
    folders = "Output folder of `atommem eval` with its row's name, or a folder with results.json."
    add("evaluations", nargs="+", metavar="[NAME=]FOLDER", help=folders)
    add("--out", type=Path, required=True, help="Folder of report.html, tables, plots and results.")
    add("--title", default="Evaluation", help="Title of tables and page.")
    add("--reference", help="Row that every other row is tested against.")
    add("--paper", help="Published table to show beside ours: table1, table2, ...")
    add("--deltas", action="store_true", help="Show the distance of scores from --reference.")
    add("--training", help="metrics.jsonl of a training run, or its folder.")
    add("--max_episodes", type=int, default=300, help="Most episodes listed on the page.")
    formats = ("png", "svg", "pdf")
    add("--plots", nargs="+", choices=formats, default=["png", "svg"], help="Formats of plots/.")
    add("--efficiency", action="store_true", help="Show seconds, which differ between runs.")
    exports = "Write logs for inspect_ai (inspect/), or the benchmarks' own formats (predictions/)."
    add("--export", nargs="+", default=[], choices=("inspect", "predictions"), help=exports)
    add("--gold", type=Path, help="The benchmark's file: order of MuSiQue's predictions.")
    given = vars(parser.parse_args(list(argv)))
    check_writable("out", given["out"], folder=True)
    folders, out, export, gold = (given.pop(n) for n in ("evaluations", "out", "export", "gold"))
    if given["max_episodes"] < 0:
        raise ConfigError(f"max_episodes={given['max_episodes']}: must be 0 or more.")
    if given["deltas"] and given["reference"] is None:
        raise ConfigError("--deltas needs --reference, the row to measure from.")
    if gold is not None and "predictions" not in export:
        raise ConfigError("--gold orders predictions. Add --export predictions.")
    evaluations = read_evaluations(folders)
    write_report(evaluations, out, **given, progress=True)
    print(f"{out / 'report.html'}; also tables.md, tables.tex, scores.csv, {RESULTS} and plots/")
    if "inspect" in export:
        logs = write_inspect_logs(evaluations, out / "inspect")
        print(f"{len(logs)} logs: inspect view --log-dir {out / 'inspect'}")
    if "predictions" in export:
        print(*write_predictions(evaluations, out / "predictions", gold), sep="\n")
    return 0


def write_report(
    evaluations: Sequence[Evaluation],
    out: str | Path,
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    training: str | Path | None = None,
    max_episodes: int = 300,
    efficiency: bool = False,
    deltas: bool = False,
    paper: str | None = None,
    plots: Sequence[str] = ("png", "svg"),
    progress: bool = False,
) -> dict[str, Any]:
    """Write ``results.json``, tables, ``scores.csv``, ``report.html`` and ``plots/``.

    Equal records and traces give equal files, in whatever order episodes ended, if folders have
    the same relative place and no seconds are shown.

    Args:
        evaluations: In the order of the tables' rows.
        reference: Row that every other row is tested against.
        training: A run's ``metrics.jsonl`` or folder, for charts over training.
        max_episodes: Most episodes listed on the page.
        deltas: Show each score's distance from the reference.
        paper: Published table to show beside ours.

    Returns:
        The contents of ``results.json``.

    Raises:
        AtomMemError: Evaluations cannot be told apart, there is no such row or table, or a trace
            or `training` is damaged.
    """
    out, published = Path(out), None if paper is None else load_table(paper)
    metrics = read_training(training) if training is not None else []
    results = make_results(
        evaluations,
        inspect_traces(evaluations, progress),
        title=clean(title),
        reference=reference,
        base=out,
        efficiency=efficiency,
    )
    results |= {"deltas": deltas, "published": published and set_beside(published, results)}
    tables, note = make_tables(results), incomplete_note(results)
    markdown = [
        f"# {title}\n",
        *([f"**{note}**\n"] if note else []),
        *(t.markdown() for t in tables),
    ]
    printed = [t.latex() for t in tables if t.section not in ("comparisons", "provenance")]
    charts = make_charts(results, metrics)
    write_json(out / RESULTS, results)
    write_text(out / "tables.md", clean("\n".join(markdown)))
    write_text(out / "tables.tex", clean("% Needs booktabs and graphicx.\n" + "\n".join(printed)))
    write_text(out / "scores.csv", clean(score_frame(evaluations).to_csv(index=False)))
    page = render_page(results, evaluations, charts, out, max_episodes)
    write_text(out / "report.html", clean(page))
    write_charts(charts, out / "plots", plots)
    return results


def inspect_traces(
    evaluations: Sequence[Evaluation], progress: bool = False
) -> dict[tuple[str, str], Inspection]:
    """Read every trace once, and sum up its findings by row and column."""
    groups = group_evaluations(evaluations)
    by_words = {  # one method for a whole column, whose rows are compared
        item.column for item in evaluations if not item.records_facts
    }
    total = sum(len(item.records) for item in evaluations)
    found = {}
    with tqdm(total=total, desc="reading traces", unit="episode", disable=not progress) as bar:
        for (row, column), group in groups.items():
            inspection = Inspection("words" if column in by_words else "facts")
            for item in group:
                for record in item.records:
                    path, episode = item.trace(record), None
                    if path.is_file() and not record.failed:
                        episode = read_trace(path).episode
                    inspection.add(record, episode)
                    bar.update()
            found[row, column] = inspection
    return found


def read_training(path: str | Path) -> list[dict[str, Any]]:
    """Read the entries of ``metrics.jsonl`` (a file, or a training run's folder)."""
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot read metrics of training: {format_error(error)}"
        ) from error
    return [entry for entry in entries if isinstance(entry, dict)]


def read_evaluations(given: Sequence[str]) -> list[Evaluation]:
    """Read FOLDER, NAME=FOLDER, or every evaluation that a folder's ``results.json`` lists."""
    found: list[Evaluation] = []
    for item in given:
        name, equals, folder = item.partition("=")
        if not equals or Path(item).is_dir():
            name, folder = "", item
        listed = Path(folder) / RESULTS
        if not listed.is_file():
            found.append(read_evaluation(folder, name or None))
            continue
        try:
            for labels in json.loads(listed.read_text(encoding="utf-8"))["evaluations"]:
                own = fields_of(Evaluation, labels)
                found.append(read_evaluation(listed.parent / own.pop("folder"), **own))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{listed} was not written by `atommem report`: {error!r}.") from error
    return found

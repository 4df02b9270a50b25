"""``atommem report``: evaluations as tables, plots, and a page for the browser."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atommem.arguments import Parser
from atommem.config import fields_of
from atommem.envs.task_files import write_json, write_text
from atommem.errors import ConfigError, DataError, check_writable, format_error
from atommem.eval.reporting.charts import make_charts, write_charts
from atommem.eval.reporting.evaluations import Evaluation, read_evaluation
from atommem.eval.reporting.inspect_export import write_inspect_logs
from atommem.eval.reporting.page import PageData, render_page
from atommem.eval.reporting.predictions import write_predictions
from atommem.eval.reporting.published import beside, table_of
from atommem.eval.reporting.results import RESULTS, make_cells, make_results
from atommem.eval.reporting.templates import latex_tables, markdown_tables
from atommem.text_safety import clean


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
    """Write ``results.json``, ``tables.md``, ``tables.tex``, ``report.html`` and ``plots/``.

    The same records and traces give the same files byte for byte, in whatever order episodes ended, as long as the
    evaluations lie at the same place relative to `out` and no seconds are shown.

    Args:
        evaluations: In the order of the tables' rows.
        out: Folder; made if it is not there.
        title: Of tables and page.
        reference: Row that every other one is tested against, besides best against runner-up.
        training: A run's ``metrics.jsonl``, or its folder: action rates over training are drawn from it.
        max_episodes: Most episodes to embed in the page; its numbers cover all.
        efficiency: Show wall-clock seconds, which differ from run to run.
        deltas: Show beside each score how far it is from that of `reference`.
        paper: Published table to show ours beside (`atommem.eval.reporting.published`).
        plots: In what formats charts are written: ``png``, ``svg``, ``pdf``.
        progress: Say on standard error what is being done.

    Returns:
        The contents of ``results.json``.

    Raises:
        ConfigError: There is no evaluation, two are the same one to the tables, or `reference` is no row.
        DataError: `training` cannot be read.
        TraceError: A trace is broken.
    """
    published = None if paper is None else table_of(paper)
    cells = make_cells(evaluations)
    metrics = read_training(training) if training is not None else []
    page = PageData(cells, max_episodes=max_episodes, efficiency=efficiency, progress=progress)
    if progress:
        print(f"comparing {len(cells)} cells", file=sys.stderr)
    out = Path(out)
    results = make_results(cells, title=title, reference=reference, base=out, efficiency=efficiency)
    results |= {"deltas": deltas, "published": published and beside(published, results)}
    write_json(out / RESULTS, results)
    write_text(out / "tables.md", clean(markdown_tables(results)))
    write_text(out / "tables.tex", clean(latex_tables(results)))
    if progress:
        print("drawing the charts and the page", file=sys.stderr)
    charts = make_charts(results, metrics)
    write_text(out / "report.html", clean(render_page(page, results, charts)))
    write_charts(charts, out / "plots", plots)
    return results


def read_training(path: str | Path) -> list[dict[str, Any]]:
    """The entries of ``metrics.jsonl`` (a file, or the folder of a training run).

    Raises:
        DataError: There is no such file, or it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    try:
        entries = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot read the metrics of a training run from {path}: {format_error(error)}"
        ) from error
    return [entry for entry in entries if isinstance(entry, dict)]


def read_evaluations(given: Sequence[str]) -> list[Evaluation]:
    """Evaluations from the command line: FOLDER, NAME=FOLDER, or a folder with ``results.json``.

    Of the last one all evaluations are read anew, under the labels that stand in it.

    Raises:
        ConfigError: A folder holds neither.
        DataError: A file is damaged.
    """
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
            raise DataError(
                f"{listed} does not list evaluations as `atommem report` writes them: {error!r}"
            ) from error
    return found


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem report``.

    Raises:
        AtomMemError: A folder or a file cannot be read, or evaluations cannot be told apart.
    """
    parser = Parser(prog="atommem report", description=__doc__)
    add = parser.add_argument
    folders = "Output folder of `atommem eval`, with the name of its row; or a folder with an earlier results.json."
    add("evaluations", nargs="+", metavar="[NAME=]FOLDER", help=folders)
    add(
        "--out",
        type=Path,
        required=True,
        help="Folder for report.html, tables, plots and results.json.",
    )
    add("--title", default="Evaluation", help="Of tables and page (default: %(default)s).")
    add("--reference", help="Row that every other one is tested against.")
    add("--paper", help="Published table whose numbers are shown beside: table1, table2, ...")
    add(
        "--deltas",
        action="store_true",
        help="Show beside scores how far they are from --reference.",
    )
    add("--training", help="metrics.jsonl of a training run, or its folder.")
    most = "Most episodes to embed in the page (default: %(default)s)."
    add("--max_episodes", type=int, default=300, help=most)
    add(
        "--plots",
        nargs="+",
        choices=("png", "svg", "pdf"),
        default=["png", "svg"],
        help="Formats of plots/.",
    )
    seconds = "Show wall-clock seconds. Without them, the same evaluations give the same report byte for byte."
    add("--efficiency", action="store_true", help=seconds)
    exports = "Also write logs for inspect_ai (inspect/), or answers in the benchmarks' own formats (predictions/)."
    add("--export", nargs="+", default=[], choices=("inspect", "predictions"), help=exports)
    add(
        "--gold",
        type=Path,
        help="The benchmark's file, whose order MuSiQue's predictions must have.",
    )
    given = vars(parser.parse_args(list(argv)))
    check_writable("out", given["out"], folder=True)
    evaluations, out, export, gold = (
        given.pop(name) for name in ("evaluations", "out", "export", "gold")
    )
    if given["max_episodes"] < 0:
        raise ConfigError(f"max_episodes is {given['max_episodes']}: give 0 or more.")
    if given["deltas"] and given["reference"] is None:
        raise ConfigError("deltas are distances from a row: give it with --reference.")
    if gold is not None and "predictions" not in export:
        raise ConfigError("gold is the order of predictions: give --export predictions.")
    evaluations = read_evaluations(evaluations)
    write_report(evaluations, out, **given, progress=True)
    print(f"{out / 'report.html'}; tables.md, tables.tex, results.json and plots/ lie beside it")
    if "inspect" in export:
        logs = write_inspect_logs(evaluations, out / "inspect")
        print(f"{len(logs)} logs: inspect view --log-dir {out / 'inspect'}")
    if "predictions" in export:
        print(*write_predictions(evaluations, out / "predictions", gold), sep="\n")
    return 0

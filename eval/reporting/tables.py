"""``tables.md`` and ``tables.tex`` from the contents of ``results.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.reporting.comparison import METRICS
from eval.reporting.results import Column, best_rows, column_name

COSTS = (
    ("seconds", "seconds", 1),
    ("output tokens", "tokens/completion", 0),
    ("model calls", "steps", 1),
    ("retrievals", "retrievals", 1),
)
"""Per task (episode): heading, key of ``means``, digits."""
_STAGES = {
    "located": "can be located",
    "entered": "entered memory",
    "kept": "there at the end",
    "shown": "shown",
    "answered": "answered right",
}
"""Stages of `eval.reporting.inspection.Funnel`, and their headings."""

_NOTE = (
    "Percent [95% interval: Wilson, at the effective sample size]. Bold: better than the runner-up, exact paired "
    "sign test, Holm-corrected at {alpha:g} over all comparisons of the score. Episodes that an outage ended (failed) "
    "are in no score; their number stands beside it."
)
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_"},
}


def markdown_tables(results: Mapping[str, Any]) -> str:
    """Scores, comparisons and costs as Markdown tables."""
    parts = [f"# {_md(results['title'])}", ""]
    for metric in METRICS:
        headings, rows = score_rows(results, metric, _md_score)
        parts += [f"## {metric.upper()}", "", *_md_table([metric.upper(), *map(_md, headings)], rows), ""]
    parts += [_NOTE.format(alpha=results["alpha"]), ""]
    if results["comparisons"]:
        parts += ["## Comparisons", "", *_md_comparisons(results), ""]
    if any(cell.get("funnel") for cell in results["cells"]):
        parts += [
            "## Where answers are lost",
            "",
            *_md_table(["questions", *_STAGES.values()], _lost_rows(results)),
            "",
        ]
    parts += ["## Costs", "", *_md_table(["per task", *(name for name, _, _ in COSTS)], cost_rows(results)), ""]
    return "\n".join(parts)


def latex_tables(results: Mapping[str, Any]) -> str:
    """Scores and costs as LaTeX tables; they need the package booktabs."""
    parts = ["% Made by atommem report. Needs \\usepackage{booktabs}."]
    for metric in METRICS:
        headings, rows = score_rows(results, metric, _tex_score)
        caption = f"{metric.upper()}: {results['title']}. {_NOTE.format(alpha=results['alpha'])}"
        parts.append(_tex_table(caption, ["", *headings], rows))
    parts.append(_tex_table("Costs per task.", ["", *(name for name, _, _ in COSTS)], cost_rows(results)))
    return "\n".join(parts)


def write_tables(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files."""
    paths = []
    for name, text in (("tables.md", markdown_tables(results)), ("tables.tex", latex_tables(results))):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def score_rows(
    results: Mapping[str, Any], metric: str, write: Callable[[Mapping[str, Any], str, bool], str]
) -> tuple[list[str], list[list[str]]]:
    """Column headings, and per row its name and cells, each written by ``write(cell, metric, bold)``."""
    columns: list[Column] = list(dict.fromkeys((cell["dataset"], cell["documents"]) for cell in results["cells"]))
    cells = {(cell["row"], (cell["dataset"], cell["documents"])): cell for cell in results["cells"]}
    best = best_rows(results, metric)
    rows = []
    for row in dict.fromkeys(cell["row"] for cell in results["cells"]):
        found = [(column, cells.get((row, column))) for column in columns]
        rows.append(
            [row, *("-" if cell is None else write(cell, metric, best.get(column) == row) for column, cell in found)]
        )
    return [column_name(column) for column in columns], rows


def _lost_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Per cell with a funnel: how many questions passed each stage."""
    return [
        [_cell_name(results, cell), *(str(cell["funnel"][stage]) for stage in _STAGES)]
        for cell in results["cells"]
        if cell.get("funnel")
    ]


def cost_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Per cell, its name and its means of `COSTS`."""
    rows = []
    for cell in results["cells"]:
        values = [(cell["means"].get(key), digits) for _, key, digits in COSTS]
        rows.append(
            [_cell_name(results, cell), *("-" if value is None else f"{value:,.{digits}f}" for value, digits in values)]
        )
    return rows


def _cell_name(results: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """The row, with its column where there are several."""
    columns = {(other["dataset"], other["documents"]) for other in results["cells"]}
    return cell["row"] + (f" ({column_name((cell['dataset'], cell['documents']))})" if len(columns) > 1 else "")


def _numbers(cell: Mapping[str, Any], metric: str) -> tuple[str, str, str]:
    """Mean, interval, spread between seeds (empty with one seed), in percent."""
    score = cell[metric]
    spread = score["between_seeds"]
    seeds = f"sd {100 * spread['sd']:.1f} over {spread['seeds']} seeds" if spread["sd"] is not None else ""
    return f"{100 * score['mean']:.1f}", f"[{100 * score['low']:.1f}, {100 * score['high']:.1f}]", seeds


def _md_score(cell: Mapping[str, Any], metric: str, bold: bool) -> str:
    text = "no score"
    if cell[metric] is not None:
        mean, interval, seeds = _numbers(cell, metric)
        text = f"{f'**{mean}**' if bold else mean} {interval}" + (f", {seeds}" if seeds else "")
    return text + (f" **{cell['failed']} failed**" if cell["failed"] else "")


def _tex_score(cell: Mapping[str, Any], metric: str, bold: bool) -> str:
    text = "no score"
    if cell[metric] is not None:
        mean, interval, seeds = _numbers(cell, metric)
        text = f"\\textbf{{{mean}}}" if bold else mean
        text += f" {{\\scriptsize {interval}{f', {seeds}' if seeds else ''}}}"
    return text + (f" \\textbf{{{cell['failed']} failed}}" if cell["failed"] else "")


def _md_comparisons(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for item in results["comparisons"]:
        gap = "-"
        if item["difference"] is not None:
            gap = f"{100 * item['difference']:+.1f} [{100 * item['low']:+.1f}, {100 * item['high']:+.1f}]"
        rows.append(
            [
                f"{item['second']} - {item['first']}",
                column_name((item["dataset"], item["documents"])),
                item["metric"].upper(),
                gap,
                f"{item['wins']} / {item['losses']} / {item['ties']}",
                f"{item['p_value']:.2g}",
                f"{item['p_holm']:.2g}",
            ]
        )
    headings = ["difference", "on", "score", "points [95%]", "better / worse / equal tasks", "p", "p (Holm)"]
    return _md_table(headings, rows)


def _md_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    lines = [headings, rule, *([_md(row[0]), *row[1:]] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _tex_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_tex(caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
        "\\toprule",
        " & ".join(map(_tex, headings)) + " \\\\",
        "\\midrule",
        *(" & ".join([_tex(row[0]), *row[1:]]) + " \\\\" for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
        "",
    ]
    return "\n".join(lines)


def _md(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _tex(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)

"""The tables of a report: data frames of text, as Markdown, LaTeX and HTML."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from atommem.episode import action_names
from atommem.eval.reporting.results import (
    FACTS,
    METRICS,
    WORDS,
    Results,
    best_rows,
    label,
    ordered,
    scores_by_key,
)

if TYPE_CHECKING:
    import pandas as pd

Lines = dict[str, dict[str, str]]  # cells by row and heading
Tables = dict[str, Lines]  # by title
FEWEST = 5  # questions of a category that a table shows


@dataclass(frozen=True)
class Table:
    """A table of text in a section of the report; ``**`` marks bold numbers."""

    section: str
    title: str
    lines: Lines

    @property
    def rows(self) -> list[list[str]]:
        """The headings, then each row with its name first."""
        headings = list(dict.fromkeys(h for cells in self.lines.values() for h in cells))
        rows = [[row, *(cells.get(h, "-") for h in headings)] for row, cells in self.lines.items()]
        return [["", *headings], *rows]

    @property
    def frame(self) -> "pd.DataFrame":
        """Rows by name, columns by heading."""
        import pandas as pd  # here: tables in a terminal and in Markdown do without

        (_, *headings), *rows = self.rows
        return pd.DataFrame([cells for _, *cells in rows], [name for name, *_ in rows], headings)

    @property
    def note(self) -> str:
        return str(WORDS["notes"][self.section])

    def markdown(self) -> str:
        """Render a heading, the table and its note."""
        headings, *rows = self.rows
        lines = [headings, ["---", *["---:"] * len(headings[1:])], *rows]
        text = "\n".join(f"| {' | '.join(map(_escape_markdown, line))} |" for line in lines)
        return f"## {self.title}\n\n{text}\n\n{self.note}\n"

    def text(self) -> str:
        """Render plain text for a terminal, with a line per heading."""
        lines = list(zip(*self.rows, strict=True))[len(self.lines) == 1 :]
        width, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        shown = ("  ".join([row.ljust(width), *map(str.rjust, own, widths)]) for row, *own in lines)
        return "\n".join([self.title, *shown, ""])

    def latex(self) -> str:
        """Render a ``table`` environment; needs booktabs and graphicx."""
        body = self.frame.to_latex(escape=True)
        caption = re.sub(r"([&%$#_{}])", r"\\\1", f"{self.title}. {self.note}")
        body = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", body)
        return (
            f"\\begin{{table}}\n\\centering\\small\n\\caption{{{caption}}}\n"
            f"\\resizebox{{\\textwidth}}{{!}}{{%\n{body}}}\n\\end{{table}}\n"
        )

    def html(self, level: int) -> str:
        """Render a ``table`` element with its heading."""
        import pandas as pd

        with pd.option_context("display.max_colwidth", None):
            body = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", self.frame.to_html(border=0))
        return f"<h{level}>{escape(self.title)}</h{level}>{body}"


def make_tables(results: Results) -> list[Table]:
    """Make every table for which `results` has numbers, in reading order."""
    columns = list(dict.fromkeys(group["column"] for group in results["groups"]))
    found = [
        ("scores", _score_lines(results, columns, is_fact=False)),
        ("facts", _score_lines(results, columns, is_fact=True)),
        ("published", _published_lines(results)),
        ("comparisons", _comparison_lines(results, columns)),
    ]
    for column in columns:
        groups = [group for group in results["groups"] if group["column"] == column]
        found.append(("breakdowns", _breakdown_lines(results, groups, column)))
        found += _mean_lines(groups, column)
    return [
        Table(section, title, lines)
        for section, tables in found
        for title, lines in tables.items()
        if any(lines.values())
    ]


def format_estimate(score: Mapping[str, Any], bold: bool = False) -> str:
    mean, low, high = (100 * float(score[name]) for name in ("mean", "low", "high"))
    return f"{mark(f'{mean:.1f}', bold)} [{low:.1f}, {high:.1f}]"


def _format_score(group: Mapping[str, Any], score: Mapping[str, Any] | None, bold: bool) -> str:
    warnings = []
    if group["overflow"]:
        warnings.append(f"{group['overflow']:,} of {group['episodes']:,} episodes overflow")
    if group["failed"]:
        warnings.append(f"{group['failed']:,} failed")
    if group["episodes"] < group["planned"]:
        warnings.append(f"{group['episodes']:,} of {group['planned']:,} episodes")
    if score is None:
        text = "no score"
    elif group["overflow"]:
        text = f"overflow, {100 * score['mean']:.1f} in those that fit"
    else:
        text = f"{format_estimate(score, bold)}, n {score['n']:,}"
        if (sd := score["between_seeds"]["sd"]) is not None:
            text += f" sd {100 * sd:.1f} over {score['between_seeds']['seeds']} seeds"
    return f"{text} {mark(', '.join(warnings))}" if warnings else text


def _score_lines(results: Results, columns: Sequence[str], is_fact: bool) -> Tables:
    """One dataset: a table of all scores. Several: a table of datasets for each score."""
    scores = scores_by_key(results)
    names = ordered(metric for _, _, metric in scores)
    names = names or list(dict.fromkeys(group["metric"] for group in results["groups"]))
    single = len(columns) == 1
    tables: Tables = {}
    for metric in (name for name in names if (name in FACTS) == is_fact):
        best = best_rows(results, metric)
        title = f"{'Facts' if is_fact else 'Scores'}: {columns[0]}" if single else label(metric)
        lines = tables.setdefault(title, {})
        for group in results["groups"]:
            row, column = group["row"], group["column"]
            text = _format_score(group, scores.get((row, column, metric)), best.get(column) == row)
            lines.setdefault(row, {})[label(metric) if single else column] = text
        for row, line in lines.items() if not single else ():
            found = [scores[row, name, metric] for name in columns if (row, name, metric) in scores]
            if len(found) == len(columns) and not any("overflow" in text for text in line.values()):
                # The mean of the intervals: as if the datasets varied together.
                parts = ("mean", "low", "high")
                means = {part: fmean(score[part] for score in found) for part in parts}
                line["average"] = format_estimate(means)
    return tables


def _published_lines(results: Results) -> Tables:
    if not (found := results.get("published")):
        return {}
    lines: Lines = {}
    for item in found["values"]:
        ends = f" [{item['low']:+.1f}, {item['high']:+.1f}]" if "low" in item else ""
        count = f", n {item['n']:,}" if "n" in item else ""
        line, column = lines.setdefault(item["name"], {}), item["column"]
        line[f"{column}, paper"] = f"{item['paper']:,.1f}"
        line[f"{column}, ours"] = f"{item['ours']:,.1f}{count}"
        line[f"{column}, difference"] = f"{item['difference']:+,.1f}{ends}"
    return {f"{found['title']} of {found['source']}, and ours": lines}


def _comparison_lines(results: Results, columns: Sequence[str]) -> Tables:
    counts = {"questions": "n", "units": "units", "wins": "better", "losses": "worse"}
    counts["ties"] = "equal"
    lines: Lines = {}
    for test in results["comparisons"]:
        points = "-"
        if test["units"]:
            low, mean, high = (100 * test[key] for key in ("low", "difference", "high"))
            points = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
        name = f"{label(test['metric'])}: {test['second']} - {test['first']}"
        lines[name if len(columns) == 1 else f"{name} on {test['column']}"] = {
            "points": points,
            **{heading: f"{test[key]:,}" for key, heading in counts.items()},
            "p": f"{test['p_value']:.2g}",
            "p (Holm)": mark(f"{test['p_holm']:.2g}", test["significant"]),
        }
    return {"Comparisons": lines} if lines else {}


def _breakdown_lines(results: Results, groups: Sequence[Mapping[str, Any]], column: str) -> Tables:
    """A score by a property of questions: every score by category, else the main one only."""
    main = {group["row"]: group["metric"] for group in groups if not group["overflow"]}
    tables: Tables = {}
    for item in results["breakdowns"]:
        row, by, metric = item["row"], item["by"], item["metric"]
        shown = metric in METRICS and (by == "category" or metric == main.get(row))
        if shown and item["n"] >= FEWEST and item["column"] == column and row in main:
            lines = tables.setdefault(f"{label(metric)} by {by}: {column}", {})
            lines.setdefault(row, {})[item["value"]] = f"{format_estimate(item)}, n {item['n']:,}"
    return tables


def _mean_lines(groups: Sequence[Mapping[str, Any]], column: str) -> list[tuple[str, Tables]]:
    actions = action_names(*(group["means"] for group in groups))
    rates = {**{name: f"actions/{name}" for name in actions}, **WORDS["rates"]}
    used = {key for group in groups for key, value in group["means"].items() if value}
    lost, costs, per_step = Lines(), Lines(), Lines()
    for group in groups:
        means, row = group["means"], group["row"]
        if group["lost"]:
            count = sum(group["lost"].values())
            shares = {stage: f"{100 * n / count:.1f}" for stage, n in group["lost"].items()}
            lost[row] = {"n": f"{count:,}", **shares}
        costs[row] = {"episodes": f"{group['episodes']:,}"}
        for heading, (key, digits) in WORDS["costs"].items():
            if key in used and means.get(key) is not None:
                costs[row][heading] = f"{means[key]:,.{digits}f}"
        per_step[row] = {
            heading: f"{means.get(key) or 0:,.3f}" for heading, key in rates.items() if key in used
        }
    return [
        ("lost", {f"Where answers are lost: {column}": lost}),
        ("costs", {f"Costs: {column}": costs}),
        ("rates", {f"Actions per step: {column}": per_step}),
    ]


def mark(text: str, bold: bool = True) -> str:
    return f"**{text}**" if bold else text


def _escape_markdown(text: str) -> str:
    """Escape what Markdown reads; names come from data and folders."""
    return re.sub(r"([\\|<`])", r"\\\1", " ".join(str(text).split()))

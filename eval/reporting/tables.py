"""The tables of a report: data frames of text, as Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from atommem.episode import action_names
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import STAGES
from atommem.eval.reporting.results import (
    FACTS,
    METRICS,
    best_rows,
    label,
    ordered,
    overflow_note,
)

COSTS = (
    ("seconds", "seconds", 1),
    ("prompt tokens", "tokens/prompt", 0),
    ("output tokens", "tokens/completion", 0),
    ("model calls", "steps", 1),
    ("retrievals", "retrievals", 1),
    ("entries at the end", "store_size", 1),
)
"""Means per task: heading, key of ``means``, digits."""
RATES = (
    ("malformed", "malformed"),
    ("unknown handle", "wasted/unknown_handle"),
    ("rejected", "wasted/rejected"),
    ("disabled", "wasted/disabled"),
)
"""Means per step beside those of actions: heading, key of ``means``."""
SCORES_NOTE = (
    "Percent [95% interval: Wilson, at the effective sample size]; n: questions scored. Bold: "
    "beats the runner-up of its column in a paired sign-flip test, Holm-corrected at {alpha:g} "
    "over all comparisons of the score. Bounds (oracle, no_memory) are not ranked, nor are groups "
    "in which a prompt did not fit (overflow). Failed episodes are in no score."
)
FACTS_NOTE = (
    "Percent [95% interval] of questions with an answer in a sentence of a gold document: a write "
    "carried its fact (entered), memory held it at the end (kept), it was shown when the question "
    "was asked (retrieved). Not tested."
)
COSTS_NOTE = (
    "Means per task. Seconds are an episode's own, while others run beside it. Retrieval "
    "precision: share of shown entries that hold a gold answer. Truncated: episodes whose text "
    "did not fit."
)
COMPARED_NOTE = (
    "Mean difference over questions scored in both [95%], their number (n) and independent "
    "units, tasks better, worse, equal, p of the sign-flip test. Bold: significant at {alpha:g} "
    "after Holm."
)
PUBLISHED_NOTE = (
    "Paper: {source}. Difference: ours minus the paper's [95% of ours]. docs/paper.md lists the "
    "divergences."
)
LOST_NOTE = (
    "Percent of the questions counted (n), by the first stage at which the answer was lost. "
    "Located by the facts of gold sentences, or by the words of the gold answer where none are "
    "marked."
)
BREAKDOWNS_NOTE = "Percent [95% interval]; n: questions scored. Not tested."
PROVENANCE_NOTE = "From each run.json; several values are those of several seeds."
INCOMPLETE_NOTE = (
    "{count} of {all} evaluations are incomplete: their numbers cover the finished episodes, "
    "which tend to be shorter."
)

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of text; ``**`` marks bold numbers.

    Attributes:
        section: ``scores``, ``published``, ``comparisons``, ``facts``, ``breakdowns``, ``lost``,
            ``costs``, ``rates`` or ``provenance``.
        frame: Rows by name, columns by heading.
    """

    section: str
    title: str
    frame: pd.DataFrame
    note: str = ""

    def markdown(self) -> str:
        """Render a heading, the table and its note."""
        return f"## {self.title}\n\n{_pipe_table(self.frame)}\n\n{self.note}\n".rstrip() + "\n"

    def latex(self) -> str:
        """Render a ``table`` environment; needs booktabs and graphicx."""
        frame = self.frame.map(_latex)
        frame.index, frame.columns = frame.index.map(_latex), frame.columns.map(_latex)
        body = frame.to_latex(escape=False, column_format="l" + "r" * len(frame.columns))
        if len(frame.columns) > 6:
            body = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{body}}}\n"
        caption = _latex(f"{self.title}. {self.note}")
        return (
            f"\\begin{{table}}\n\\centering\\small\n\\caption{{{caption}}}\n{body}\\end{{table}}\n"
        )

    def html(self) -> str:
        """Render a ``table`` element; all text is escaped."""
        cells = self.frame.map(lambda text: _bold(escape(text), "<strong>", "</strong>"))
        head = "".join(f"<th>{escape(str(name))}</th>" for name in cells.columns)
        lines = [
            f"<tr><th>{escape(str(row))}</th>{''.join(f'<td>{text}</td>' for text in values)}</tr>"
            for row, values in zip(cells.index, cells.to_numpy().tolist(), strict=True)
        ]
        return (
            f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        )


def make_tables(results: Results) -> list[Table]:
    """Make every table for which `results` has numbers, in reading order."""
    columns = list(dict.fromkeys(group["column"] for group in results["groups"]))
    tables = [*_score_tables(results), *_published_tables(results), *_comparison_tables(results)]
    for column in columns:
        groups = [group for group in results["groups"] if group["column"] == column]
        tables += [*_breakdown_tables(results, column), *_lost_tables(groups, column)]
        tables += _mean_tables(groups, column)
    return [table for table in tables if len(table.frame.columns)]


def score_frame(evaluations: Sequence[Evaluation]) -> pd.DataFrame:
    """Return every score of every question, one a line, for analyses of one's own."""
    lines = [
        {
            "row": item.row,
            "column": item.column,
            "seed": item.seed,
            "task": record.task_id,
            "sample": record.sample,
            "group": record.group,
            "question": place,
            "metric": metric,
            "score": score,
        }
        for item in evaluations
        for record in item.records
        for metric in ordered({name for each in record.questions for name in each.metrics})
        for place, _, score in record.placed(metric)
    ]
    return pd.DataFrame(lines, dtype=object)


def incomplete_note(results: Results) -> str:
    """Return a warning about incomplete evaluations, or an empty text."""
    items = results["evaluations"]
    count = sum(
        item["planned"] is not None and item["episodes"] < item["planned"] for item in items
    )
    return INCOMPLETE_NOTE.format(count=count, all=len(items)) if count else ""


def format_estimate(score: Mapping[str, Any], bold: bool = False) -> str:
    """Format a proportion in percent with its interval."""
    mean, low, high = (100 * float(score[name]) for name in ("mean", "low", "high"))
    return f"{_mark(f'{mean:.1f}', bold)} [{low:.1f}, {high:.1f}]"


def format_scores(results: Results, metric: str, warned: bool = True) -> pd.DataFrame:
    """Format one score by row and column, with warnings about failed and missing episodes."""
    scores = {(s["row"], s["column"]): s for s in results["scores"] if s["metric"] == metric}
    best = best_rows(results, metric)
    lines: dict[str, dict[str, str]] = {}
    for group in results["groups"]:
        row, column = group["row"], group["column"]
        score = scores.get((row, column))
        if group["overflow"]:
            text = "overflow"
            if score is not None:
                text += f", {100 * score['mean']:.1f} in those that fit"
            parts = [text, _mark(overflow_note(group))]
        elif score is None:
            parts = ["-" if group["metric"] != metric else "no score"]
        else:
            parts = [
                format_estimate(score, best.get(column) == row),
                _delta(results, group, metric),
            ]
            if (sd := score["between_seeds"]["sd"]) is not None:
                parts.append(f"sd {100 * sd:.1f} over {score['between_seeds']['seeds']} seeds")
        if warned:
            parts.append(_mark(episode_warning(group)))
        lines.setdefault(row, {})[column] = " ".join(filter(None, parts))
    return _frame(lines)


def episode_warning(group: Mapping[str, Any]) -> str:
    """Return the number of failed and missing episodes, or an empty text."""
    parts = [f"{group['failed']:,} failed"] if group["failed"] else []
    if group["planned"] is not None and group["episodes"] < group["planned"]:
        parts.append(f"{group['episodes']:,} of {group['planned']:,} episodes")
    return ", ".join(parts)


def _score_tables(results: Results) -> Iterator[Table]:
    scores = pd.DataFrame(results["scores"], columns=["row", "column", "metric", "mean", "n"])
    groups = results["groups"]
    columns = list(dict.fromkeys(group["column"] for group in groups))
    names = ordered(scores["metric"]) or list(dict.fromkeys(group["metric"] for group in groups))
    for section, title, note in (
        ("scores", "Scores", SCORES_NOTE.format(alpha=results["alpha"])),
        ("facts", "Supporting-fact recall", FACTS_NOTE),
    ):
        metrics = [name for name in names if (name in FACTS) == (section == "facts")]
        if len(columns) == 1 and metrics:
            frames = {name: format_scores(results, name, warned=False) for name in metrics}
            frame = pd.concat(
                [part.rename(columns={columns[0]: label(name)}) for name, part in frames.items()],
                axis=1,
            )
            known = scores[scores["metric"].isin(metrics)]
            frame["n"] = known.groupby("row")["n"].max().reindex(frame.index, fill_value=0)
            frame["n"] = frame["n"].map("{:,.0f}".format)
            frame["episodes"] = [
                " ".join(filter(None, [f"{each['episodes']:,}", _mark(episode_warning(each))]))
                for each in groups
            ]
            yield Table(section, f"{title}: {columns[0]}", frame, note)
        for metric in metrics if len(columns) > 1 else ():
            own = [score for score in results["scores"] if score["metric"] == metric]
            frame = format_scores(results, metric)
            full = _averages(results, own, len(columns))
            if full:
                frame["average"] = pd.Series(full).reindex(frame.index, fill_value="-")
            counts = pd.DataFrame(own).groupby("column")["n"].agg(["min", "max"])
            frame = frame.rename(columns={name: f"{name} ({_n(counts, name)})" for name in columns})
            yield Table(section, label(metric), frame, note)


def _averages(
    results: Results, scores: Sequence[Mapping[str, Any]], columns: int
) -> dict[str, str]:
    """Average over columns, with the mean of their intervals, as if they varied together."""
    overflow = {group["row"] for group in results["groups"] if group["overflow"]}
    frame = pd.DataFrame(scores)
    frame = frame[~frame["row"].isin(overflow)]
    means = frame.groupby("row")[["mean", "low", "high"]].agg("mean")
    complete = frame.groupby("row").size() == columns
    return {row: format_estimate(values) for row, values in means[complete].iterrows()}


def _n(counts: pd.DataFrame, name: str) -> str:
    if name not in counts.index:
        return "n 0"
    low, high = counts.loc[name, ["min", "max"]]
    return f"n {low:,}" if low == high else f"n {low:,}-{high:,}"


def _delta(results: Results, group: Mapping[str, Any], metric: str) -> str:
    """Return the distance from the reference, on the questions scored in both."""
    for test in results["comparisons"] if results.get("deltas") else ():
        pair = (test["first"], test["second"])
        same = test["metric"] == metric and test["column"] == group["column"]
        if same and test["units"] and set(pair) == {group["row"], results["reference"]}:
            sign = 1 if pair[1] == group["row"] else -1
            return f"({100 * test['difference'] * sign:+.1f})"
    return ""


def _published_tables(results: Results) -> Iterator[Table]:
    found = results.get("published")
    if not found:
        return
    lines: dict[str, dict[str, str]] = {}
    for row in found["rows"]:
        line = lines.setdefault(row["name"], {})
        for column, value in zip(found["columns"], row["values"], strict=True):
            if value is not None:
                ends = f" [{value['low']:+.1f}, {value['high']:+.1f}]" if "low" in value else ""
                count = f", n {value['n']:,}" if "n" in value else ""
                line |= {
                    f"{column}, paper": f"{value['paper']:,.1f}",
                    f"{column}, ours": f"{value['ours']:,.1f}{count}",
                    f"{column}, difference": f"{value['difference']:+,.1f}{ends}",
                }
    note = PUBLISHED_NOTE.format(source=found["source"])
    yield Table("published", f"Published and ours: {found['title']}", _frame(lines), note)


def _comparison_tables(results: Results) -> Iterator[Table]:
    headings = {"questions": "n", "units": "units", "wins": "better", "losses": "worse"}
    headings["ties"] = "equal"
    several = len({group["column"] for group in results["groups"]}) > 1
    for metric in METRICS:
        lines: dict[str, dict[str, str]] = {}
        for test in results["comparisons"]:
            if test["metric"] == metric:
                name = f"{test['second']} - {test['first']}"
                line = {"points": "-"}
                if test["units"]:
                    low, mean, high = (100 * test[key] for key in ("low", "difference", "high"))
                    line["points"] = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"
                line |= {heading: f"{test[key]:,}" for key, heading in headings.items()}
                line["p"] = f"{test['p_value']:.2g}"
                line["p (Holm)"] = _mark(f"{test['p_holm']:.2g}", test["significant"])
                lines[f"{name} on {test['column']}" if several else name] = line
        note = COMPARED_NOTE.format(alpha=results["alpha"])
        yield Table("comparisons", f"Comparisons: {label(metric)}", _frame(lines), note)


def _breakdown_tables(results: Results, column: str) -> Iterator[Table]:
    """A score by a property of questions: every score by category, else the main one only."""
    groups = {g["row"]: g for g in results["groups"] if g["column"] == column and not g["overflow"]}
    found = [
        line for line in results["breakdowns"] if line["column"] == column and line["row"] in groups
    ]
    for by, metric in dict.fromkeys((line["by"], line["metric"]) for line in found):
        own = [line for line in found if (line["by"], line["metric"]) == (by, metric)]
        main = groups[own[0]["row"]]["metric"]
        if metric in METRICS and (by == "category" or metric == main):
            counts = pd.DataFrame(own).groupby("value")["n"].agg(["min", "max"])
            lines: dict[str, dict[str, str]] = {}
            for line in own:
                heading = f"{line['value']} ({_n(counts, line['value'])})"
                lines.setdefault(line["row"], {})[heading] = format_estimate(line)
            title = f"{label(metric)} by {by}: {column}"
            yield Table("breakdowns", title, _frame(lines), BREAKDOWNS_NOTE)


def _lost_tables(groups: Sequence[Mapping[str, Any]], column: str) -> Iterator[Table]:
    lines = {
        group["row"]: {"n": f"{lost['counted']:,}"}
        | {name: f"{100 * lost[stage] / lost['counted']:.1f}" for stage, name in STAGES.items()}
        for group in groups
        if (lost := group.get("lost")) and lost["counted"]
    }
    yield Table("lost", f"Where answers are lost: {column}", _frame(lines), LOST_NOTE)


def _mean_tables(groups: Sequence[Mapping[str, Any]], column: str) -> Iterator[Table]:
    costs: dict[str, dict[str, str]] = {}
    rates: dict[str, dict[str, str]] = {}
    provenance: dict[str, dict[str, str]] = {}
    actions = [(name, f"actions/{name}") for name in action_names(*(g["means"] for g in groups))]
    occurring = [
        (heading, key)
        for heading, key in (*actions, *RATES)
        if any(group["means"].get(key) for group in groups)
    ]
    for group in groups:
        means, row = group["means"], group["row"]
        warning = _mark(overflow_note(group))
        episodes = {"episodes": " ".join(filter(None, [f"{group['episodes']:,}", warning]))}
        costs[row] = episodes | {
            heading: f"{means[key]:,.{digits}f}"
            for heading, key, digits in COSTS
            if means.get(key) is not None
        }
        if group.get("retrieval_precision") is not None:
            costs[row]["retrieval precision"] = f"{group['retrieval_precision']:.3f}"
        for name, score in group["episode_metrics"].items():
            costs[row][label(name)] = format_estimate(score)
        rates[row] = {heading: f"{means.get(key) or 0:,.3f}" for heading, key in occurring}
        seeds = ", ".join(map(str, group["seeds"]))
        provenance[row] = {**group["provenance"], "seeds": seeds}
    yield Table("costs", f"Costs: {column}", _frame(costs), COSTS_NOTE)
    yield Table("rates", f"Actions per step: {column}", _frame(rates))
    yield Table("provenance", f"Provenance: {column}", _frame(provenance), PROVENANCE_NOTE)


def _frame(lines: Mapping[str, Mapping[str, str]]) -> pd.DataFrame:
    """Make a frame of rows by name; headings keep their order of appearance."""
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    values = [[line.get(heading, "-") for heading in headings] for line in lines.values()]
    return pd.DataFrame(values, index=list(lines), columns=headings)


def _mark(text: str, bold: bool = True) -> str:
    return f"**{text}**" if bold and text else text


def _bold(text: str, start: str, end: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", rf"{start}\1{end}", text)


def _pipe_table(frame: pd.DataFrame) -> str:
    lines = [["", *map(_markdown, frame.columns)], ["---", *["---:"] * len(frame.columns)]]
    lines += [
        [_markdown(row), *map(_markdown, values)]
        for row, values in zip(frame.index, frame.to_numpy().tolist(), strict=True)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown(text: str) -> str:
    """Escape what Markdown reads; names come from data and folders."""
    return re.sub(r"([\\|<`])", r"\\\1", " ".join(str(text).split()))


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: "\\" + character for character in "{}&%$#_"},
    }
)


def _latex(text: str) -> str:
    escaped = " ".join(str(text).split()).translate(_LATEX)
    bold = _bold(escaped, r"\\textbf{", "}")
    return "{}" + bold if bold[:1] in ("[", "*") else bold

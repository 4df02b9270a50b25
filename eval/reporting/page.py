"""The page of a report: what won, a plot, what changed, then every table."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import vl_convert
from rich.console import Console

from atommem.envs.scoring.records import compare
from atommem.eval.reporting.comparison import changed_tasks
from atommem.eval.reporting.results import Evaluation, Results, label, scores_by_key
from atommem.eval.reporting.tables import Table, format_estimate
from atommem.trace import read_trace
from atommem.trace_view import render_trace

SHOWN = 3
"""Episodes of each kind that the page has with their steps."""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
figure, table { display: block; overflow-x: auto; border-collapse: collapse; margin: 1rem 0; }
svg { max-width: 100%; height: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8884; }
th, td { text-align: right; white-space: nowrap; }
tbody th { text-align: left; position: sticky; left: 0; background: Canvas; }
.first { font-size: 1.25rem; max-width: 45rem; }
.note { color: GrayText; max-width: 45rem; font-size: .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85em; }
details { margin: .3rem 0; } details details { margin-left: 1rem; }
"""


def render_page(
    title: str,
    results: Results,
    tables: Sequence[Table],
    charts: Mapping[str, Any],
    evaluations: Sequence[Evaluation] = (),
) -> str:
    """Render one static page; it runs no script and loads nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        *(f'<p class="first">{escape(line)}</p>' for line in headlines(results)),
    ]
    for name, chart in charts.items():
        drawing = vl_convert.vegalite_to_svg(chart.to_dict())
        parts.append(f"<figure><figcaption>{escape(name)}</figcaption>{drawing}</figure>")
    parts += render_changes(results, evaluations)
    for section, items in groupby(tables, key=lambda table: table.section):
        found = list(items)
        if len(found) > 1:
            parts.append(f"<h2>{section.capitalize()}</h2>")
        parts += [table.html(3 if len(found) > 1 else 2) for table in found]
        parts.append(f'<p class="note">{escape(found[0].note)}</p>')
    return "\n".join([*parts, "</body></html>\n"])


def headlines(results: Results) -> list[str]:
    """Return a sentence for each data set: what is best, and whether that could be chance."""
    scores = scores_by_key(results)
    first: dict[str, Mapping[str, Any]] = {}
    for test in results["comparisons"]:
        first.setdefault(f"{test['column']}/{test['metric']}", test)
    lines = []
    for column in dict.fromkeys(group["column"] for group in results["groups"]):
        groups = [group for group in results["groups"] if group["column"] == column]
        metric = groups[0]["metric"]
        name, test = f"{label(metric)} on {column}", first.get(f"{column}/{metric}")
        found = {
            row: scores[row, column, metric]
            for row in (group["row"] for group in groups)
            if (row, column, metric) in scores
        }
        if test is None:
            lines += [f"{row}: {name} {format_estimate(found[row])}." for row in list(found)[:1]]
            continue
        best, other = (
            f"{row} ({100 * found[row]['mean']:.1f})" for row in (test["second"], test["first"])
        )
        gap = f"{100 * test['difference']:.1f} points"
        if test["units"]:
            gap += f" [{100 * test['low']:+.1f}, {100 * test['high']:+.1f}]"
        gap += f", p = {test['p_holm']:.2g}"
        lines.append(
            f"{best} beats {other} in {name} by {gap}."
            if test["significant"]
            else f"{best} and {other} may be equal in {name}: {gap}, {test['units']} units."
        )
    return lines


def render_changes(results: Results, evaluations: Sequence[Evaluation]) -> list[str]:
    """Render the tasks in which the first pair of each data set differs that differs at all."""
    rows = {(item.row, item.column): item for item in reversed(evaluations)}
    parts: list[str] = []
    done: set[str] = set()
    for test in results["comparisons"]:
        column = test["column"]
        found = [rows.get((test[side], column)) for side in ("first", "second")]
        sides = [side for side in found if side is not None]
        if column in done or len(sides) < 2 or sides[0].tasks_digest != sides[1].tasks_digest:
            continue
        comparison = compare(sides[0].records, sides[1].records, test["metric"])
        changes = changed_tasks(sides, comparison)
        done |= {column} if changes else set()
        for heading, better in (("worse", False), ("better", True)):
            changed = [row for row in changes if (row["change"] > 0) == better]
            if changed:
                where = f"{test['second']} is {heading} than {test['first']} on {column}"
                parts.append(f"<h2>{escape(f'Where {where}: {len(changed)} tasks')}</h2>")
                parts += [_change(row, [side.row for side in sides]) for row in changed[:SHOWN]]
    return parts


def _change(row: Mapping[str, Any], names: Sequence[str]) -> str:
    asked = "; ".join(f"{text} ({' or '.join(golds)})" for text, golds in row["questions"].items())
    said = [
        f"{name}: {'; '.join(answer or 'no answer' for answer in answers[0])}"
        for name, answers in zip(names, row["answers"], strict=True)
        if answers
    ]
    summary = escape(f"{asked or row['task_id']} - {', '.join(said)}")
    folds = [_episode(*side) for side in zip(names, row["traces"], strict=True)]
    return f"<details><summary>{summary}</summary>{''.join(folds)}</details>"


def _episode(name: str, paths: Sequence[str]) -> str:
    """Fold the first of a side's episodes, with its whole prompts in a fold of their own."""
    if not paths:
        return ""
    trace = read_trace(paths[0])
    prompts = "".join(
        f"<h4>step {step.index + 1}</h4><pre>{escape(step.prompt or '')}</pre>"
        for step in trace.episode.steps
    )
    return (
        f"<details><summary>{escape(name)}, step by step</summary>"
        f"<pre>{escape(_text(render_trace(trace)))}</pre>"
        f"<details><summary>whole prompts</summary>{prompts}</details></details>"
    )


def _text(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=80, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()

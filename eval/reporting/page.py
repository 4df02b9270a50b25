"""``report.html``: one static file with tables, charts and the paths of episodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from atommem.envs.scoring.records import EpisodeRecord
from atommem.eval.reporting.charts import Chart
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.tables import incomplete_note, make_tables

TITLES = {
    "scores": "Scores",
    "published": "Published",
    "comparisons": "Tests",
    "facts": "Supporting facts",
    "breakdowns": "Breakdowns",
    "lost": "Where answers are lost",
    "costs": "Costs",
    "rates": "Actions",
    "provenance": "Provenance",
}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; }
section, figure { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, .episodes td { text-align: left; }
p { color: #555; max-width: 60rem; } .warning, .failed { color: #b00; }
"""
_STATUS = ("failed", "wrong", "unscored", "right")


def render_page(
    results: Mapping[str, Any],
    evaluations: Sequence[Evaluation],
    charts: Sequence[Chart],
    out: Path,
    max_episodes: int,
) -> str:
    """Render the page; it runs no script and loads nothing.

    Args:
        out: The page's folder, which the links to traces are relative to.
        max_episodes: Most episodes to list: failed ones first, then wrong ones.
    """
    title = escape(str(results["title"]))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
    ]
    if note := incomplete_note(results):
        parts.append(f'<p class="warning">{escape(note)}</p>')
    for section, tables in groupby(make_tables(results), key=lambda table: table.section):
        parts.append(f'<section id="{section}"><h2>{TITLES[section]}</h2>')
        for table in tables:
            parts += [
                f"<h3>{escape(table.title)}</h3>",
                table.html(),
                f"<p>{escape(table.note)}</p>",
            ]
        parts.append("</section>")
    for chart in charts:
        parts.append(f"<figure><figcaption>{escape(chart.title)}</figcaption>{chart.svg}</figure>")
    parts += _episodes(evaluations, out, max_episodes)
    return "\n".join([*parts, "</body></html>\n"])


def episode_status(record: EpisodeRecord) -> str:
    """Return ``failed``, ``unscored``, ``right`` or ``wrong``."""
    if record.failed:
        return "failed"
    return {None: "unscored", True: "right", False: "wrong"}[record.right]


def _episodes(evaluations: Sequence[Evaluation], out: Path, limit: int) -> Iterator[str]:
    items = [
        (_STATUS.index(episode_status(record)), number, item, record)
        for number, item in enumerate(evaluations)
        for record in item.records
    ]
    items.sort(key=lambda item: item[:2])
    yield '<section id="episodes" class="episodes"><h2>Episodes</h2>'
    shown = min(limit, len(items))
    yield f"<p>{shown:,} of {len(items):,}, failed and wrong ones first. Replay one with"
    yield "<code>atommem trace FILE</code>; browse all with <code>--export inspect</code> and"
    yield "<code>inspect view --log-dir inspect</code>.</p><table><thead><tr>"
    yield from (f"<th>{name}</th>" for name in ("status", "row", "task", "answers", "gold"))
    yield "</tr></thead>"
    for status, _, item, record in items[:limit]:
        link = quote(os.path.relpath(item.trace(record).resolve(), out.resolve()))
        answers = "; ".join(question.answer or "(none)" for question in record.questions)
        golds = "; ".join(" | ".join(question.golds) for question in record.questions)
        name = f"{record.task_id}.{record.sample}"
        cells = [f'<a href="{escape(link)}">{escape(name)}</a>', escape(answers), escape(golds)]
        yield (
            f'<tr class="{_STATUS[status]}"><td>{_STATUS[status]}</td><td>{escape(item.row)}</td>'
            f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        )
    yield "</table></section>"

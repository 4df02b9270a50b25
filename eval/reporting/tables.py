"""The tables of a report, made once from ``results.json`` and written as Markdown, LaTeX and HTML alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atommem.episode_stats import action_names
from atommem.eval.reporting.fates import Fate
from atommem.eval.reporting.results import Column, best_rows, column_name
from atommem.eval.reporting.scores import FACTS, METRICS, label, metrics_of, score_of

COSTS = (
    ("seconds", "seconds", 1),
    ("prompt tokens", "tokens/prompt", 0),
    ("output tokens", "tokens/completion", 0),
    ("model calls", "steps", 1),
    ("retrievals", "retrievals", 1),
    ("entries at the end", "store_size", 1),
)
"""Means per task (episode): heading, key of ``means``, digits."""
RATES = (
    ("malformed", "malformed"),
    ("unknown handle", "wasted/unknown_handle"),
    ("rejected", "wasted/rejected"),
    ("disabled", "wasted/disabled"),
)
"""Means per step, after those of actions: heading, key of ``means``."""
FATES = {
    Fate.RIGHT: "right",
    Fate.RIGHT_OTHERWISE: "right otherwise",
    Fate.MISREAD: "shown, answered wrong",
    Fate.NOT_RETRIEVED: "kept, not shown",
    Fate.FORGOTTEN: "entered, then lost",
    Fate.NEVER_ENTERED: "never entered",
}
"""Headings of where answers are lost."""

SCORES_NOTE = (
    "Percent [95% interval: Wilson, at the effective sample size]. Bold: better than the runner-up of its column, "
    "paired sign-flip test of the difference, Holm-corrected at {alpha:g} over all comparisons of the score. "
    "Bounds (oracle, no_memory) are not ranked, nor is a cell in which a prompt did not fit (overflow: no score). "
    "Episodes that an outage ended (failed) are in no score."
)
FACTS_NOTE = (
    "Percent [95% interval] of the questions whose answer stands in a sentence of a gold document: a write to memory "
    "carried that sentence's fact (entered), memory held it when the episode ended (kept), it was shown when the "
    "question was asked (retrieved). Not tested, hence nothing is bold."
)
INCOMPLETE_NOTE = (
    "{count} of {all} evaluations are not finished: their numbers cover the episodes that ended so far, which are the "
    "shorter ones rather than a fair draw."
)
_BY = {
    "facts": "What it takes to be right is the fact of a gold sentence, as in the supporting-fact recall.",
    "words": "No gold documents are marked: what it takes to be right is a text with the words of a gold answer.",
}


@dataclass(frozen=True)
class Value:
    """What stands in one place of a table.

    Attributes:
        text: The number.
        interval: Its interval, in brackets.
        note: What else belongs to it (spread between seeds).
        warning: What must not be overlooked (failed or missing episodes); shown in bold.
        bold: Whether a test stands behind it (`atommem.eval.reporting.results.best_rows`).
        ends: Mean and ends of the interval as numbers, for drawing.
    """

    text: str = "-"
    interval: str = ""
    note: str = ""
    warning: str = ""
    bold: bool = False
    ends: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        section: ``scores``, ``published``, ``facts``, ``categories``, ``lost``, ``costs``, ``rates``, ``comparisons``.
        key: What tells tables of a section apart: a metric, or a column's name; empty for none.
        title, note: Above and below it.
        headings: Of the columns after the first: group (a data set; empty for none) and name.
        rows: Name and values.
    """

    section: str
    key: str
    title: str
    note: str
    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Value, ...]], ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def make_tables(results: Mapping[str, Any]) -> list[Table]:
    """All tables of a report, in the order in which they are read. Columns without a number are left out."""
    tables = [*_score_tables(results), *_category_tables(results)]
    for column in columns_of(results):
        cells = [cell for cell in results["cells"] if _column(cell) == column]
        tables += [_lost_table(results, column, cells), _costs_table(results, column, cells)]
        tables.append(_rates_table(results, column, cells))
    tables += _published_tables(results)
    order = ("scores", "published", "facts", "categories", "lost", "costs", "rates")
    tables.sort(key=lambda table: order.index(table.section))
    return [table for table in (*map(_filled, tables), *_comparison_tables(results)) if table.rows and table.headings]


def columns_of(results: Mapping[str, Any]) -> list[Column]:
    """The columns, in the order in which they come first."""
    return list(dict.fromkeys(_column(cell) for cell in results["cells"]))


def rows_of(results: Mapping[str, Any]) -> list[str]:
    """The rows, likewise."""
    return list(dict.fromkeys(cell["row"] for cell in results["cells"]))


def incomplete_note(results: Mapping[str, Any]) -> str:
    """What to say of evaluations that are not finished; empty where all are."""
    parts = results["evaluations"]
    count = sum(item["planned"] is not None and item["episodes"] < item["planned"] for item in parts)
    return INCOMPLETE_NOTE.format(count=count, all=len(parts)) if count else ""


def _column(cell: Mapping[str, Any]) -> Column:
    return cell["dataset"], cell["documents"]


def _score_tables(results: Mapping[str, Any]) -> list[Table]:
    """With one column one table with the scores side by side, else one table for each score."""
    metrics = metrics_of(results["cells"])
    notes = {"scores": SCORES_NOTE.format(alpha=results["alpha"]), "facts": FACTS_NOTE}
    best = {metric: best_rows(results, metric) for metric in metrics}
    columns = columns_of(results)
    if len(columns) > 1:
        return [_by_column(results, metric, best[metric], notes) for metric in metrics]
    (column,) = columns
    answers = [name for name in metrics if name not in FACTS]
    facts = [name for name in metrics if name in FACTS]
    rows: dict[str, list[tuple[str, tuple[Value, ...]]]] = {"scores": [], "facts": []}
    for cell in results["cells"]:
        values = {name: _score(cell, name, bold=best[name].get(column) == cell["row"]) for name in metrics}
        episodes = Value(f"{cell['episodes']:,}", warning=_warning(cell))
        rows["scores"].append((cell["row"], (*(values[name] for name in answers), episodes)))
        rows["facts"].append((cell["row"], tuple(values[name] for name in facts)))
    title, recall = f"Scores: {column_name(column)}", f"Supporting-fact recall: {column_name(column)}"
    return [
        Table("scores", "", title, notes["scores"], _plain([*map(label, answers), "Episodes"]), tuple(rows["scores"])),
        Table("facts", "", recall, notes["facts"], _plain([*map(label, facts)]), tuple(rows["facts"])),
    ]


def _by_column(results: Mapping[str, Any], metric: str, best: Mapping[Column, str], notes: Mapping[str, str]) -> Table:
    """One score in all columns."""
    columns = columns_of(results)
    cells = {(cell["row"], _column(cell)): cell for cell in results["cells"]}
    rows = []
    for row in rows_of(results):
        found = [(column, cells.get((row, column))) for column in columns]
        values = (
            Value()
            if cell is None
            else _score(
                cell, metric, bold=best.get(column) == row, warning=_warning(cell), delta=_delta(results, cell, metric)
            )
            for column, cell in found
        )
        rows.append((row, (*values, _average(metric, [cell for _, cell in found]))))
    section = "facts" if metric in FACTS else "scores"
    return Table(
        section, metric, label(metric), notes[section], (*map(_heading, columns), ("", "average")), tuple(rows)
    )


def _published_tables(results: Mapping[str, Any]) -> Iterable[Table]:
    """Published numbers beside ours."""
    found = results.get("published")
    if not found:
        return
    headings = tuple((column, name) for column in found["columns"] for name in ("paper", "ours", "difference"))
    rows = []
    for row in found["rows"]:
        values: list[Value] = []
        for value in row["values"]:
            if value is None:
                values += [Value()] * 3
                continue
            ends = f"[{value['low']:+.1f}, {value['high']:+.1f}]" if "low" in value else ""
            gap = Value(f"{value['difference']:+.1f}", ends)
            values += [Value(f"{value['paper']:.1f}"), Value(f"{value['ours']:.1f}"), gap]
        rows.append((row["name"], tuple(values)))
    note = (
        f"Paper: {found['source']}. Difference: ours minus the paper's [95% of ours: how sure the paper's number is, "
        "is not printed]. What our set-up does otherwise stands in docs/paper.md."
    )
    yield Table("published", "", f"Published and ours: {found['title']}", note, headings, tuple(rows))


def _average(metric: str, cells: Sequence[Mapping[str, Any] | None]) -> Value:
    """Over all columns, each counting the same; its interval is the mean of theirs, as if they varied together."""
    scores = [score_of(cell, metric) for cell in cells if cell is not None and not cell["overflow"]]
    known = [score for score in scores if score is not None]
    if len(known) < len(cells):
        return Value()
    return _estimate({key: sum(score[key] for score in known) / len(known) for key in ("mean", "low", "high")})


def _category_tables(results: Mapping[str, Any]) -> list[Table]:
    """For each column whose questions have categories, one table for each score of answers."""
    tables = []
    for column in columns_of(results):
        cells = [cell for cell in results["cells"] if _column(cell) == column and cell.get("by_category")]
        names = sorted({name for cell in cells for name in cell["by_category"]})
        for metric in METRICS:
            rows = [
                (
                    cell["row"],
                    tuple(
                        _estimate(score_of(cell["by_category"][name], metric))
                        if name in cell["by_category"]
                        else Value()
                        for name in names
                    ),
                )
                for cell in cells
            ]
            if any(value.ends for _, values in rows for value in values):
                title = f"{label(metric)} by category: {column_name(column)}"
                note = "Percent [95% interval]. Not tested, hence nothing is bold."
                tables.append(
                    Table("categories", f"{metric}, {column_name(column)}", title, note, _plain(names), tuple(rows))
                )
    return tables


def _lost_table(results: Mapping[str, Any], column: Column, cells: Sequence[Mapping[str, Any]]) -> Table:
    kept = [cell for cell in cells if cell.get("lost") and cell["lost"]["counted"]]
    rows = []
    for cell in kept:
        lost = cell["lost"]
        shares = (Value(f"{100 * lost[fate] / lost['counted']:.1f}") for fate in FATES)
        rows.append((cell["row"], (Value(f"{lost['counted']:,}"), *shares)))
    notes = [_BY[kept[0]["lost"]["by"]]] if kept else []
    left_out = max((cell["lost"]["questions"] - cell["lost"]["counted"] for cell in kept), default=0)
    if left_out:
        notes.append(f"Up to {left_out:,} questions of a row have no such answer (yes, no) and are not counted.")
    without = [cell["row"] for cell in cells if "lost" in cell and cell["lost"] is None]
    if without:
        notes.append(f"Without a memory, and not in the table: {', '.join(without)}.")
    return Table(
        "lost",
        column_name(column),
        f"Where answers are lost: {column_name(column)}",
        " ".join(["Percent of the questions counted, at the first place where the answer was lost.", *notes]),
        _plain(["questions", *FATES.values()]),
        tuple(rows),
    )


def _costs_table(results: Mapping[str, Any], column: Column, cells: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for cell in cells:
        values = [_number(cell["means"].get(key), digits) for _, key, digits in COSTS]
        extra = [_estimate(cell["episode_metrics"].get(name)) for name in _episode_metrics(results)]
        rows.append((cell["row"], (*values, _number(cell.get("retrieval_precision"), 3), *extra)))
    notes = ["Means per task."]
    if any(cell.get("retrieval_precision") is not None for cell in cells):
        notes.append(
            "Retrieval precision: of the entries shown when a question was answered, the fraction that hold the words "
            "of a gold answer."
        )
    if results["efficiency"]:
        notes.append("Seconds are an episode's own, from its first step to its last, while others run beside it.")
    if any("truncated" in cell["episode_metrics"] for cell in cells):
        notes.append("Truncated: percent of episodes whose text did not fit; context kept: percent of it shown.")
    names = [name for name, _, _ in COSTS] + ["retrieval precision", *map(label, _episode_metrics(results))]
    title = f"Costs: {column_name(column)}"
    return Table("costs", column_name(column), title, " ".join(notes), _plain(names), tuple(rows))


def _rates_table(results: Mapping[str, Any], column: Column, cells: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    names = action_names(*(cell["means"] for cell in results["cells"]))
    rates = [*((name, f"actions/{name}") for name in names), *RATES]
    done = {key for _, key in rates for cell in cells if cell["means"].get(key)}
    for cell in cells:
        # A column in which nobody did anything says nothing, and is left out with its zeros.
        given = ((cell["means"].get(key) if key in done else None) for _, key in rates)
        rows.append((cell["row"], tuple(_number(value, 3) for value in given)))
    title = f"Actions per step: {column_name(column)}"
    return Table("rates", column_name(column), title, "", _plain([name for name, _ in rates]), tuple(rows))


def _comparison_tables(results: Mapping[str, Any]) -> Iterable[Table]:
    several = len(columns_of(results)) > 1
    for metric in METRICS:
        items = [item for item in results["comparisons"] if item["metric"] == metric]
        rows = []
        for item in items:
            gap = Value()
            if item["difference"] is not None:
                gap = Value(
                    f"{100 * item['difference']:+.1f}",
                    f"[{100 * item['low']:+.1f}, {100 * item['high']:+.1f}]",
                    ends=(item["difference"], item["low"], item["high"]),
                )
            place = [Value(column_name((item["dataset"], item["documents"])))] if several else []
            counts = [Value(str(item[name])) for name in ("questions", "units", "wins", "losses", "ties")]
            p_values = [Value(f"{item['p_value']:.2g}"), Value(f"{item['p_holm']:.2g}", bold=item["significant"])]
            rows.append((f"{item['second']} - {item['first']}", (*place, gap, *counts, *p_values)))
        names = [*(["on"] if several else []), "points", "n", "units", "better", "worse", "equal", "p", "p (Holm)"]
        note = (
            "Mean difference over the questions that both have a score of [95%], how many (n) and of how many "
            "independent units, tasks on which the first one is better, worse, equal, p of the sign-flip test of the "
            f"difference. Bold: significant at {results['alpha']:g} after Holm's correction over the {len(items)} "
            "comparisons of the score."
        )
        yield Table("comparisons", metric, f"Comparisons: {label(metric)}", note, _plain(names), tuple(rows))


def _filled(table: Table) -> Table:
    """Without the columns in which no row has anything, and without tables where that is all."""
    places = [
        place for place in range(len(table.headings)) if any(values[place] != Value() for _, values in table.rows)
    ]
    headings = tuple(table.headings[place] for place in places)
    rows = tuple((row, tuple(values[place] for place in places)) for row, values in table.rows)
    return Table(table.section, table.key, table.title, table.note, headings, rows)


def _delta(results: Mapping[str, Any], cell: Mapping[str, Any], metric: str) -> str:
    """How far a cell's score is from the reference's, on the questions that both have."""
    for item in results["comparisons"] if results.get("deltas") else ():
        pair = (item["first"], item["second"])
        same = item["metric"] == metric and (item["dataset"], item["documents"]) == _column(cell)
        if same and set(pair) == {cell["row"], results["reference"]} and item["difference"] is not None:
            return f"({100 * item['difference'] * (1 if pair[1] == cell['row'] else -1):+.1f})"
    return ""


def _score(cell: Mapping[str, Any], metric: str, *, bold: bool, warning: str = "", delta: str = "") -> Value:
    score = score_of(cell, metric)
    if cell["overflow"]:
        fits = f"{100 * score['mean']:.1f} in those that fit" if score is not None else ""
        return Value("overflow", note=fits, warning=", ".join(filter(None, (overflow_note(cell), warning))))
    if score is None:
        return Value("-" if cell["metrics"] else "no score", warning=warning)
    spread = score["between_seeds"]
    note = f"sd {100 * spread['sd']:.1f} over {spread['seeds']} seeds" if spread["sd"] is not None else ""
    return _estimate(score, note=", ".join(filter(None, (delta, note))), warning=warning, bold=bold)


def _estimate(score: Mapping[str, Any] | None, **more: Any) -> Value:
    """A proportion in percent."""
    if score is None:
        return Value(**more)
    mean, low, high = (float(score[key]) for key in ("mean", "low", "high"))
    return Value(f"{100 * mean:.1f}", f"[{100 * low:.1f}, {100 * high:.1f}]", ends=(mean, low, high), **more)


def overflow_note(cell: Mapping[str, Any]) -> str:
    """In how many of a cell's episodes a prompt did not fit."""
    return f"{cell['overflow']:,} of {cell['episodes']:,} episodes overflow"


def _warning(cell: Mapping[str, Any]) -> str:
    """Failed and missing episodes."""
    parts = [f"{cell['failed']:,} failed"] if cell["failed"] else []
    if cell["planned"] is not None and cell["episodes"] < cell["planned"]:
        parts.append(f"{cell['episodes']:,} of {cell['planned']:,} episodes")
    return ", ".join(parts)


def _episode_metrics(results: Mapping[str, Any]) -> list[str]:
    return sorted({name for cell in results["cells"] for name in cell["episode_metrics"]}, reverse=True)


def _number(value: float | None, digits: int) -> Value:
    return Value() if value is None else Value(f"{value:,.{digits}f}")


def _heading(column: Column) -> tuple[str, str]:
    dataset, documents = column
    return ("", dataset) if documents is None else (dataset, f"{documents:,} documents")


def _plain(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(("", name) for name in names)

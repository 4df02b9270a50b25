"""The tables of a report, made once from ``results.json`` and written as Markdown, LaTeX and HTML alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from atommem.episode_stats import action_names
from atommem.eval.reporting.inspection import FATES
from atommem.eval.reporting.results import Column, best_rows, column_name, column_of
from atommem.eval.reporting.scores import FACTS, METRICS, label, main_score, metrics_of

SECTIONS = (
    "scores",
    "published",
    "facts",
    "breakdowns",
    "lost",
    "costs",
    "rates",
    "provenance",
    "comparisons",
)
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
SCORES_NOTE = (
    "Percent [95% interval: Wilson, at the effective sample size]; n: questions scored. Bold: better than the "
    "runner-up of its column, paired sign-flip test of the difference, Holm-corrected at {alpha:g} over all "
    "comparisons of the score. Bounds (oracle, no_memory) are not ranked, nor is a cell in which a prompt did not fit "
    "(overflow: no score). Episodes that an outage ended (failed) are in no score."
)
FACTS_NOTE = (
    "Percent [95% interval] of the questions whose answer stands in a sentence of a gold document: a write to memory "
    "carried that sentence's fact (entered), memory held it when the episode ended (kept), it was shown when the "
    "question was asked (retrieved). Not tested, hence nothing is bold."
)
_COST_NOTES = {
    "retrieval precision": "Retrieval precision: of the entries shown when a question was answered, the fraction that "
    "hold the words of a gold answer.",
    "Truncated": "Truncated: percent of episodes whose text did not fit; context kept: percent of it shown.",
    "seconds": "Seconds are an episode's own, from its first step to its last, while others run beside it.",
}
COMPARED_NOTE = (
    "Mean difference over the questions that both have a score of [95%], how many (n) and of how many independent "
    "units, tasks on which the first one is better, worse, equal, p of the sign-flip test of the difference. Bold: "
    "significant at {alpha:g} after Holm's correction over the {count} comparisons of the score."
)
PUBLISHED_NOTE = (
    "Paper: {source}. Difference: ours minus the paper's [95% of ours: how sure the paper's number is, is not "
    "printed]. What our set-up does otherwise stands in docs/paper.md."
)
BREAKDOWNS_NOTE = (
    "Percent [95% interval]; n: questions scored. Evidence: in which fifths of the text a question's first and last "
    "gold document lie. Not tested, hence nothing is bold."
)
PROVENANCE_NOTE = (
    "From each run.json; several values are those of several seeds. n: questions scored."
)
INCOMPLETE_NOTE = (
    "{count} of {all} evaluations are not finished: their numbers cover the episodes that ended so far, which are the "
    "shorter ones rather than a fair draw."
)
_BY = {
    "facts": "What it takes to be right is the fact of a gold sentence, as in the supporting-fact recall.",
    "words": "No gold documents are marked: what it takes to be right is a text with the words of a gold answer.",
}

Item = Mapping[str, Any]
Rows = dict[str, dict[Any, "Value"]]
"""By name of the row, its values by heading: a text, or (text above several columns, text)."""


@dataclass(frozen=True)
class Value:
    """A number of a table, its interval, a note, a warning that must not be overlooked, and whether a test supports it
    (`bold`: `atommem.eval.reporting.results.best_rows`)."""

    text: str = "-"
    interval: str = ""
    note: str = ""
    warning: str = ""
    bold: bool = False


class Table:
    """One table.

    Attributes:
        section: One of `SECTIONS`.
        key: What tells tables of a section apart: a metric, or a column's name; empty for none.
        title, note: Above and below it.
        column: The column that it is about; empty for all.
        headings: Of all values that there are, in the order in which they come first, each with what stands above it.
        lines: By row, a value under each of the headings.
    """

    def __init__(
        self, section: str, key: str, title: str, note: str, rows: Rows, column: str = ""
    ) -> None:
        self.section, self.key, self.title, self.note, self.column = (
            section,
            key,
            title,
            note,
            column,
        )
        found = dict.fromkeys(heading for values in rows.values() for heading in values)
        self.headings = [
            ("", heading) if isinstance(heading, str) else heading for heading in found
        ]
        self.lines = [
            (row, [values.get(heading, Value()) for heading in found])
            for row, values in rows.items()
        ]


def make_tables(results: Item) -> list[Table]:
    """All tables of a report, in the order in which they are read. What nothing has a number of is left out."""
    tables = [*_score_tables(results), *_published_table(results), *_comparison_tables(results)]
    for column in columns_of(results):
        cells, name = cells_of(results, column), column_name(column)
        tables += [
            *_breakdown_tables(cells, name),
            _lost_table(cells, name),
            *_means_tables(cells, name),
        ]
    tables.sort(key=lambda table: SECTIONS.index(table.section))
    return [
        table
        for table in tables
        if {name for _, name in table.headings} - {"n", "episodes", "seeds"}
    ]


def columns_of(results: Item) -> list[Column]:
    """The columns, in the order in which they come first."""
    return list(dict.fromkeys(map(column_of, results["cells"])))


def rows_of(results: Item) -> list[str]:
    """The rows, likewise."""
    return list(dict.fromkeys(cell["row"] for cell in results["cells"]))


def cells_of(results: Item, column: Column) -> list[Item]:
    """The cells of one column."""
    return [cell for cell in results["cells"] if column_of(cell) == column]


def incomplete_note(results: Item) -> str:
    """What to say of evaluations that are not finished; empty where all are."""
    parts = results["evaluations"]
    count = sum(
        item["planned"] is not None and item["episodes"] < item["planned"] for item in parts
    )
    return INCOMPLETE_NOTE.format(count=count, all=len(parts)) if count else ""


def overflow_note(cell: Item) -> str:
    """In how many of a cell's episodes a prompt did not fit."""
    return f"{cell['overflow']:,} of {cell['episodes']:,} episodes overflow"


def _score_tables(results: Item) -> Iterator[Table]:
    """With one column a table with the scores side by side, else a table for each score."""
    columns, cells = columns_of(results), results["cells"]
    for section, title, note in (
        ("scores", "Scores", SCORES_NOTE.format(alpha=results["alpha"])),
        ("facts", "Supporting-fact recall", FACTS_NOTE),
    ):
        # Where no cell has any score (no prompt fits, every episode failed), the table says why.
        names = metrics_of(cells) or list(dict.fromkeys(cell["metric"] for cell in cells))
        metrics = [metric for metric in names if (metric in FACTS) == (section == "facts")]
        if len(columns) == 1:
            rows: Rows = {}
            for cell in cells:
                n = max(
                    (
                        cell["metrics"][metric]["n"]
                        for metric in metrics
                        if cell["metrics"].get(metric)
                    ),
                    default=0,
                )
                scores = {
                    label(metric): score_of(results, cell, metric, warned=False)
                    for metric in metrics
                }
                rows[cell["row"]] = {**scores, "n": _number(n), "episodes": _episodes(cell)}
            yield Table(section, "", f"{title}: {column_name(columns[0])}", note, rows)
        for metric in metrics if len(columns) > 1 else ():
            yield Table(section, metric, label(metric), note, _score_rows(results, metric))


def _score_rows(results: Item, metric: str) -> Rows:
    """One score in all columns, and its average where a row has it in each of them."""
    rows: Rows = {row: {} for row in rows_of(results)}
    columns = columns_of(results)
    for dataset, documents in columns:
        cells = cells_of(results, (dataset, documents))
        counted = _range(cell["metrics"].get(metric) for cell in cells)
        heading = (
            (dataset, f"{documents:,} documents ({counted})")
            if documents is not None
            else f"{dataset} ({counted})"
        )
        for cell in cells:
            rows[cell["row"]][heading] = score_of(results, cell, metric)
    for row, line in rows.items():
        own = [cell for cell in results["cells"] if cell["row"] == row and not cell["overflow"]]
        scores = [score for cell in own if (score := cell["metrics"].get(metric))]
        if len(scores) == len(columns):
            # Every column counts the same; the interval is the mean of theirs, as if they varied together.
            line["average"] = _estimate(
                {key: fmean(score[key] for score in scores) for key in ("mean", "low", "high")}
            )
    return rows


def _published_table(results: Item) -> Iterator[Table]:
    """Published numbers beside ours."""
    if not (found := results.get("published")):
        return
    rows: Rows = {row["name"]: {} for row in found["rows"]}
    for row in found["rows"]:
        for column, value in zip(found["columns"], row["values"], strict=True):
            if value is not None:
                ends = f"[{value['low']:+.1f}, {value['high']:+.1f}]" if "low" in value else ""
                rows[row["name"]] |= {
                    (column, "paper"): _number(value["paper"], 1),
                    (column, "ours"): Value(
                        f"{value['ours']:,.1f}", note=f"n {value['n']:,}" if "n" in value else ""
                    ),
                    (column, "difference"): Value(f"{value['difference']:+,.1f}", ends),
                }
    note = PUBLISHED_NOTE.format(source=found["source"])
    yield Table("published", "", f"Published and ours: {found['title']}", note, rows)


def _breakdown_tables(cells: Sequence[Item], name: str) -> Iterator[Table]:
    """A score by a property of the question."""
    apart = [(cell, item) for cell in cells if not cell["overflow"] for item in cell["breakdowns"]]
    for way, metric in dict.fromkeys((item["by"], item["metric"]) for _, item in apart):
        own = [
            (cell, item) for cell, item in apart if (item["by"], item["metric"]) == (way, metric)
        ]
        # Every score of answers by category, which benchmarks report so; only the main one by all else.
        if metric not in METRICS or (way != "category" and metric != own[0][0]["metric"]):
            continue
        rows: Rows = {cell["row"]: {} for cell, _ in own}
        for value in dict.fromkeys(item["value"] for _, item in own):
            found = [(cell, item) for cell, item in own if item["value"] == value]
            heading = f"{value} ({_range(item for _, item in found)})"
            for cell, item in found:
                rows[cell["row"]][heading] = _estimate(item)
        title = f"{label(metric)} by {way}: {name}"
        yield Table("breakdowns", f"{metric}, {way}, {name}", title, BREAKDOWNS_NOTE, rows, name)


def _lost_table(cells: Sequence[Item], name: str) -> Table:
    """Where answers are lost."""
    rows: Rows = {}
    kept = [cell for cell in cells if cell.get("lost") and cell["lost"]["counted"]]
    for cell in kept:
        lost = cell["lost"]
        shares = {
            said: _number(100 * lost[fate] / lost["counted"], 1) for fate, said in FATES.items()
        }
        rows[cell["row"]] = {"n": _number(lost["counted"]), **shares}
    notes = ["Percent of the questions counted (n), at the first place where the answer was lost."]
    notes += [_BY[cell["lost"]["by"]] for cell in kept[:1]]
    if left_out := max(
        (cell["lost"]["questions"] - cell["lost"]["counted"] for cell in kept), default=0
    ):
        notes.append(
            f"Up to {left_out:,} questions of a row have no such answer (yes, no) and are not counted."
        )
    if without := [cell["row"] for cell in cells if cell.get("lost", 0) is None]:
        notes.append(f"Without a memory, and not in the table: {', '.join(without)}.")
    return Table("lost", name, f"Where answers are lost: {name}", " ".join(notes), rows, name)


def _means_tables(cells: Sequence[Item], name: str) -> Iterator[Table]:
    """What a task costs, what is done in a step, and what the numbers were made with."""
    costs, rates, made = Rows(), Rows(), Rows()
    actions = [
        (action, f"actions/{action}") for action in action_names(*(cell["means"] for cell in cells))
    ]
    # A column in which nobody did anything says nothing, and is left out with its zeros.
    done = [
        (said, key)
        for said, key in (*actions, *RATES)
        if any(cell["means"].get(key) for cell in cells)
    ]
    for cell in cells:
        means, row = cell["means"], cell["row"]
        # What an episode cost that a prompt ended which did not fit, is not what the task costs.
        cut = overflow_note(cell) if cell["overflow"] else ""
        episodes = {"episodes": Value(f"{cell['episodes']:,}", warning=cut)}
        spent = {
            said: _number(means[key], digits)
            for said, key, digits in COSTS
            if means.get(key) is not None
        }
        if cell.get("retrieval_precision") is not None:
            spent["retrieval precision"] = _number(cell["retrieval_precision"], 3)
        shares = {
            label(name): _estimate(score)
            for name, score in reversed(cell["episode_metrics"].items())
        }
        costs[row] = episodes | spent | shares
        rates[row] = episodes | {said: _number(means.get(key) or 0.0, 3) for said, key in done}
        score, seeds = main_score(cell), Value(", ".join(map(str, cell["seeds"])))
        counted = {"n": _number(score["n"])} if score else {}
        said = {heading: Value(text) for heading, text in cell.get("provenance", {}).items()}
        made[row] = said | counted | {"seeds": seeds}
    note = " ".join(
        [
            "Means per task.",
            *(
                text
                for heading, text in _COST_NOTES.items()
                if heading in {*chain(*costs.values())}
            ),
        ]
    )
    yield Table("costs", name, f"Costs: {name}", note, costs, name)
    yield Table("rates", name, f"Actions per step: {name}", "", rates, name)
    yield Table("provenance", name, f"Provenance: {name}", PROVENANCE_NOTE, made, name)


def _comparison_tables(results: Item) -> Iterator[Table]:
    several = len(columns_of(results)) > 1
    counts = {
        "n": "questions",
        "units": "units",
        "better": "wins",
        "worse": "losses",
        "equal": "ties",
    }
    for metric in METRICS:
        items = [item for item in results["comparisons"] if item["metric"] == metric]
        rows: Rows = {}
        for item in items:
            low, mean, high = (100 * (item[key] or 0) for key in ("low", "difference", "high"))
            place = f" on {column_name(column_of(item))}" if several else ""
            rows[f"{item['second']} - {item['first']}{place}"] = {
                "points": Value(f"{mean:+.1f}", f"[{low:+.1f}, {high:+.1f}]")
                if item["units"]
                else Value(),
                **{heading: _number(item[key]) for heading, key in counts.items()},
                "p": Value(f"{item['p_value']:.2g}"),
                "p (Holm)": Value(f"{item['p_holm']:.2g}", bold=item["significant"]),
            }
        note = COMPARED_NOTE.format(alpha=results["alpha"], count=len(items))
        yield Table("comparisons", metric, f"Comparisons: {label(metric)}", note, rows)


def score_of(results: Item, cell: Item, metric: str, *, warned: bool = True) -> Value:
    """A score with what belongs to it; `warned`: failed and missing episodes too."""
    score, warning = cell["metrics"].get(metric), _episodes(cell).warning if warned else ""
    if cell["overflow"]:
        fits = f"{100 * score['mean']:.1f} in those that fit" if score is not None else ""
        return Value(
            "overflow", note=fits, warning=", ".join(filter(None, (overflow_note(cell), warning)))
        )
    if score is None:
        return Value("-" if cell["metrics"] else "no score", warning=warning)
    spread = score["between_seeds"]
    seeds = (
        f"sd {100 * spread['sd']:.1f} over {spread['seeds']} seeds"
        if spread["sd"] is not None
        else ""
    )
    note = ", ".join(filter(None, (_delta(results, cell, metric), seeds)))
    bold = best_rows(results, metric).get(column_of(cell)) == cell["row"]
    return replace(_estimate(score), note=note, warning=warning, bold=bold)


def _delta(results: Item, cell: Item, metric: str) -> str:
    """How far a cell's score is from the reference's, on the questions that both have."""
    for item in results["comparisons"] if results.get("deltas") else ():
        pair = (item["first"], item["second"])
        same = (
            item["metric"] == metric
            and column_of(item) == column_of(cell)
            and item["difference"] is not None
        )
        if same and set(pair) == {cell["row"], results["reference"]}:
            return f"({100 * item['difference'] * (1 if pair[1] == cell['row'] else -1):+.1f})"
    return ""


def _estimate(score: Item) -> Value:
    """A proportion in percent."""
    mean, low, high = (100 * float(score[key]) for key in ("mean", "low", "high"))
    return Value(f"{mean:.1f}", f"[{low:.1f}, {high:.1f}]")


def _episodes(cell: Item) -> Value:
    """How many, with a warning of failed and missing ones."""
    parts = [f"{cell['failed']:,} failed"] if cell["failed"] else []
    if cell["planned"] is not None and cell["episodes"] < cell["planned"]:
        parts.append(f"{cell['episodes']:,} of {cell['planned']:,} episodes")
    return Value(f"{cell['episodes']:,}", warning=", ".join(parts))


def _range(scores: Iterable[Item | None]) -> str:
    """How many questions are scored, from the fewest to the most of several rows."""
    counts = [score["n"] for score in scores if score is not None] or [0]
    ends = dict.fromkeys((f"{min(counts):,}", f"{max(counts):,}"))
    return f"n {'-'.join(ends)}"


def _number(value: float, digits: int = 0) -> Value:
    return Value(f"{value:,.{digits}f}")

"""``report.html``: one file that opens from disk and asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations, islice
from operator import itemgetter
from typing import Any

import vl_convert
from markupsafe import Markup, escape
from tqdm import tqdm

from atommem.envs.scoring.paired import compare
from atommem.envs.scoring.records import EpisodeRecord, main_metric
from atommem.episode import Episode, Step
from atommem.eval.reporting.charts import Chart
from atommem.eval.reporting.evaluations import Evaluation
from atommem.eval.reporting.inspection import (
    AnswerTrail,
    Fate,
    Inspection,
    answer_trails,
    only_retrieves,
)
from atommem.eval.reporting.results import Cell, column_name
from atommem.eval.reporting.scores import label
from atommem.eval.reporting.tables import incomplete_note, make_tables
from atommem.eval.reporting.templates import asset, render
from atommem.memory.log import Outcome
from atommem.page_assets import page_asset
from atommem.trace import read_trace

LONGEST = 6000
"""Longest text on the page, in characters; its middle is left out beyond that."""
MOST_PAIRS, MOST_FLIPS = 300, 20
"""Pairs of rows that are compared, and tasks that are named of each kind in a comparison."""


class PageData:
    """Collects what the page shows of episodes while each trace is read once.

    Args:
        cells: From `make_cells`; they get `Cell.inspection`.
        max_episodes: Most episodes to embed.
        max_characters: Most characters that they may take together.
        efficiency: Show how many seconds an episode took.
        progress: Show a bar on standard error while traces are read.

    Attributes:
        episodes: Those that are embedded: what the list and its filters need, and ``html``.
        texts: What they show, with the number of each: the same chunk is shown in many episodes.
        total: Number of all episodes.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        max_episodes: int = 300,
        max_characters: int = 30_000_000,
        efficiency: bool = False,
        progress: bool = False,
    ) -> None:
        self._efficiency, self._left = efficiency, max_characters
        self.texts: dict[str, int] = {}
        self.cells, self.total = cells, 0
        self.episodes: list[dict[str, Any]] = []
        evaluations = [evaluation for cell in cells for evaluation in cell.evaluations]
        chosen = dict(
            zip(map(id, evaluations), choose_episodes(evaluations, max_episodes), strict=True)
        )
        # One way to tell for a whole column: its rows are looked at side by side.
        by_words = {
            cell.column
            for cell in cells
            if not all(_knows_facts(item.records) for item in cell.evaluations)
        }
        episodes = sum(len(evaluation.records) for evaluation in evaluations)
        with tqdm(
            total=episodes, desc="reading traces", unit="episode", disable=not progress
        ) as bar:
            for cell in cells:
                cell.inspection = Inspection("words" if cell.column in by_words else "facts")
                # Traces are read one at a time, and none is kept.
                for evaluation in cell.evaluations:
                    for record in evaluation.records:
                        self._look(
                            cell,
                            cell.inspection,
                            evaluation,
                            record,
                            record.key in chosen[id(evaluation)],
                        )
                        bar.update()

    def _look(
        self,
        cell: Cell,
        inspection: Inspection,
        evaluation: Evaluation,
        record: EpisodeRecord,
        embedded: bool,
    ) -> None:
        """Count one episode, and embed it."""
        self.total += 1
        path, episode = evaluation.trace(record), None
        if path.is_file() and (not record.failed or embedded):
            episode = read_trace(path).episode
        trails: Sequence[AnswerTrail | None] = (None,) * len(record.questions)
        if episode is None:
            inspection.missing += not record.failed
        elif not record.failed:
            trails = answer_trails(episode, record)
            inspection.add(episode, record)
        fates: list[Fate | None] = [None] * len(record.questions)
        if not record.overflowed:  # in no score, and so in no count of what became of it
            fates = [
                inspection.fate(*asked) for asked in zip(record.questions, trails, strict=True)
            ]
            inspection.fates.update(fates)
        if embedded and episode is not None and self._left > 0:
            if only_retrieves(episode):
                fates = [
                    Fate.NOT_RETRIEVED if fate == Fate.NEVER_ENTERED else fate for fate in fates
                ]
            self._embed(
                cell,
                evaluation,
                record,
                episode,
                list(zip(record.questions, trails, fates, strict=True)),
            )

    def _embed(
        self,
        cell: Cell,
        evaluation: Evaluation,
        record: EpisodeRecord,
        episode: Episode,
        asked: Sequence[Any],
    ) -> None:
        seed = f", seed {evaluation.seed}" if len(cell.evaluations) > 1 else ""
        shown = {
            "row": cell.row,
            "column": column_name(cell.column),
            "name": cell.row + seed,
            "task": record.task_id,
            "sample": record.sample,
            "status": status_of(record),
            "malformed": any(step.problems for step in episode.steps),
        }
        html = render(
            "episode.html",
            **shown,
            record=record,
            episode=episode,
            asked=asked,
            memory=list(_versions(episode)),
            trace=evaluation.trace(record).name,
            seconds=round(record.seconds, 2) if self._efficiency else None,
            text=self._text,
            marked=self._marked,
            changed=self._changed,
        )
        said = " ".join(
            f"{item.question} {item.answer} {' '.join(item.golds)}" for item in record.questions
        )
        self._left -= len(html)
        self.episodes.append({**shown, "html": html, "said": f"{record.task_id} {said}".lower()})

    def _text(self, text: str, source: object = None) -> Markup:
        """Where a text stands: the page's script puts it there."""
        if not text:
            return Markup('<p class="empty">empty</p>')
        text = _shortened(text)
        if text not in self.texts:
            self.texts[text] = len(self.texts)
            self._left -= len(text)
        kind = Markup(' class="source"' if source else "")
        return Markup('<pre{} data-text="{}"></pre>').format(kind, self.texts[text])

    def _marked(self, step: Step) -> Markup:
        """A completion with its actions marked, and what could not be read as one."""
        if len(step.text) > LONGEST or not step.text:
            return self._text(step.text)
        spans = [(item.start, -item.end, item.kind, "action") for item in step.actions]
        spans += [(item.start, -item.end, str(item.reason), "problem") for item in step.problems]
        parts, at = [], 0
        for start, end, name, kind in sorted(spans):
            if at <= start < -end:
                mark = Markup('<mark class="{}" title="{}">{}</mark>').format(
                    kind, name, step.text[start:-end]
                )
                parts += [escape(step.text[at:start]), mark]
                at = -end
        return Markup("<pre>{}</pre>").format(Markup("").join([*parts, escape(step.text[at:])]))

    def _changed(self, before: str | None, after: str | None) -> Markup:
        """Words deleted and inserted."""
        one, two = (_shortened(text or "").split(" ") if text else [] for text in (before, after))
        parts = []
        for kind, i, j, m, n in SequenceMatcher(None, one, two).get_opcodes():
            for tag, words in (
                (("del", one[i:j]), ("ins", two[m:n])) if kind != "equal" else (("span", one[i:j]),)
            ):
                if words:
                    parts.append(Markup(f"<{tag}>{{}}</{tag}>").format(" ".join(words)))
        return Markup("<pre>{}</pre>").format(Markup(" ").join(parts))


def _knows_facts(records: Sequence[EpisodeRecord]) -> bool:
    """Whether supporting-fact recall was scored in these records; so it was if they hold no question at all."""
    questions = [question for record in records for question in record.questions]
    return not questions or any("fact_entered" in question.metrics for question in questions)


def _shortened(text: str) -> str:
    half, left_out = LONGEST // 2, len(text) - LONGEST
    said = f" [... {left_out:,} characters left out here; the trace has them ...] "
    return text if left_out <= 0 else text[:half] + said + text[-half:]


def _versions(episode: Episode) -> Iterator[tuple[int, str, int, int]]:
    """Every text that an entry had: its id, the text, and the first step after which it stood, and no longer stood."""
    alive: dict[int, tuple[str, int]] = {}
    changes = [(step.index, operation) for step in episode.steps for operation in step.operations]
    for index, operation in changes:
        entry, applied = operation.entry_id, operation.outcome is Outcome.APPLIED
        if applied and entry is not None and operation.kind in ("create", "update", "delete"):
            if entry in alive:
                yield entry, *alive.pop(entry), index
            if operation.kind != "delete":
                alive[entry] = (operation.after or "", index)
    for entry, (text, since) in alive.items():
        yield entry, text, since, len(episode.steps)


def choose_episodes(evaluations: Sequence[Evaluation], limit: int) -> list[set[tuple[str, int]]]:
    """Which episodes to embed: by evaluation, their keys.

    The same tasks are taken from all evaluations on the same data, so that a comparison can be followed, and of
    every kind in turn: with a failed episode, answered differently, malformed, all wrong, all right.
    """
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for evaluation in evaluations:
        for record in evaluation.records:
            kinds = {status_of(record)} | ({"malformed"} if record.sums.get("malformed") else set())
            seen[evaluation.tasks_digest, record.task_id] |= kinds
    turns: dict[tuple[str, str], tuple[int, int]] = {}
    count: Counter[tuple[str, int]] = Counter()
    for (data, task), had in seen.items():
        kind = (
            "failed" in had,
            {"right", "wrong"} <= had,
            "malformed" in had,
            "wrong" in had,
            True,
        ).index(True)
        turns[data, task] = (count[data, kind], kind)
        count[data, kind] += 1
    every = [
        (
            turns[evaluation.tasks_digest, record.task_id],
            evaluation.tasks_digest,
            number,
            record.key,
        )
        for number, evaluation in enumerate(evaluations)
        for record in evaluation.records
    ]
    taken = sorted(every, key=itemgetter(0, 1))[:limit]
    return [
        {key for _, _, number, key in taken if number == place} for place in range(len(evaluations))
    ]


def status_of(record: EpisodeRecord) -> str:
    """``failed``, ``unscored``, ``right`` or ``wrong``."""
    if record.failed:
        return "failed"
    return {None: "unscored", True: "right", False: "wrong"}[record.right]


def pairs(cells: Sequence[Cell], page: PageData) -> Iterator[dict[str, Any]]:
    """Two rows of a column, by their main score, with the tasks on which one is better."""
    places: dict[tuple[Any, ...], int] = {}
    for number, episode in enumerate(page.episodes):
        places.setdefault((episode["column"], episode["row"], episode["task"]), number)
    same = ((a, b) for a, b in combinations(cells, 2) if a.column == b.column)
    for place, (one, two) in enumerate(islice(same, MOST_PAIRS)):
        found = compare(one.records, two.records, main_metric([*one.records, *two.records]))
        column = column_name(one.column)
        kinds: dict[bool, list[Any]] = {True: [], False: []}
        for key, change in sorted(found.changes.items(), key=lambda item: -abs(item[1])):
            task = key.partition("/")[2]
            if change:
                kinds[change > 0].append(
                    (task, change, [places.get((column, cell.row, task)) for cell in (one, two)])
                )
        for flips in kinds.values():
            flips.sort(
                key=lambda flip: flip[2] == [None, None]
            )  # those that can be opened come first
            del flips[MOST_FLIPS:]
        names = {"first": one.row, "second": two.row}
        html = render(
            "pair.html", found=found, gap=found.difference, kinds=kinds, label=label, **names
        )
        yield {
            "place": place,
            "column": column,
            "name": f"{two.row} against {one.row}",
            "html": html,
        }


def render_page(page: PageData, results: Mapping[str, Any], charts: Sequence[Chart]) -> str:
    """The page.

    Whatever a model or a data set wrote is escaped where it stands, and the only scripts that may run are those
    that the page brings: their hashes stand in its security policy. Vega compiles its expressions, hence
    ``unsafe-eval``; data never become expressions.
    """
    scripts = [_vega(), page_asset("front.js"), asset("page.js")]
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    compared = list(pairs(page.cells, page))
    data = {
        "charts": [chart.spec for chart in charts],
        "texts": list(page.texts),
        "episodes": [episode["html"] for episode in page.episodes],
        "pairs": [pair["html"] for pair in compared],
    }
    tables: dict[str, list[Any]] = defaultdict(list)
    for table in make_tables(results):
        tables[table.section].append(table)
    return render(
        "page.html",
        results=results,
        incomplete=incomplete_note(results),
        columns=list(dict.fromkeys(column_name(cell.column) for cell in page.cells)),
        scores=dict.fromkeys(table.key for table in tables["scores"] + tables["facts"]),
        charts=[(place, chart, _image(chart)) for place, chart in enumerate(charts)],
        tables=tables,
        label=label,
        page=page,
        pairs=compared,
        data=data,
        style=Markup(page_asset("front.css") + asset("page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=Markup(" ".join(f"'sha256-{digest}'" for digest in hashes)),
    )


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which takes a second to be put together."""
    return f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}}})();"


def _image(chart: Chart) -> str:
    """The chart as it is printed, and shown where no script runs."""
    return "data:image/svg+xml;base64," + base64.b64encode(chart.svg.encode()).decode()

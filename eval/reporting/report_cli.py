"""Show evaluations as tables, charts and a page, and export them for other tools."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from atommem.arguments import Parser
from atommem.config import check_choice, fields_of
from atommem.envs.scoring.records import EpisodeRecord, summarize
from atommem.episode import Step
from atommem.errors import DataError, check_writable
from atommem.eval.reporting.results import (
    RESULTS,
    Evaluation,
    Results,
    correct_golds,
    make_results,
    read_evaluation,
    scores_by_key,
)
from atommem.eval.runner import EPISODES, MANIFEST, file_stem, trace_path
from atommem.files import write_json, write_text
from atommem.plugins import find_file
from atommem.text_safety import clean
from atommem.trace import read_trace

if TYPE_CHECKING:
    from atommem.eval.reporting.tables import Table


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="atommem report", description=__doc__)
    add = parser.add_argument
    folders = "Output folder of `atommem eval` with its row's name, or a folder with results.json."
    add("evaluations", nargs="+", metavar="[NAME=]FOLDER", help=folders)
    written = "Folder of report.html, tables, plots and results."
    add("--output_dir", type=Path, required=True, help=written)
    add("--title", default="Evaluation", help="Title of tables and page.")
    add("--reference", help="Row that every other row is tested against.")
    add("--paper", help="Published table to show beside ours: table1, table2, ...")
    add("--export", nargs="+", default=[], choices=["inspect"], help="Logs for inspect_ai too.")
    corrections = 'JSON file {"question id": ["gold", ...] or "drop"}: both scores are shown.'
    add("--corrections", type=Path, help=corrections)
    given = parser.parse_args(list(argv))
    out = given.output_dir
    check_writable("output_dir", out, folder=True)
    evaluations = read_evaluations(given.evaluations)
    if given.corrections is not None:
        evaluations = correct_golds(evaluations, given.corrections)
    write_report(evaluations, out, title=given.title, reference=given.reference, paper=given.paper)
    print(f"{out / 'report.html'}; also tables.md, tables.tex, {RESULTS} and plots/")
    if "inspect" in given.export:
        logs = write_inspect_logs(evaluations, out / "inspect")
        print(f"{len(logs)} logs: inspect view --log-dir {out / 'inspect'}")
    return 0


def write_report(
    evaluations: Sequence[Evaluation],
    out: str | Path,
    *,
    title: str = "Evaluation",
    reference: str | None = None,
    paper: str | None = None,
) -> "list[Table]":
    """Write ``results.json``, tables, ``report.html`` and ``plots/``.

    Equal records give equal files, in whatever order episodes ended. Rows are in the order of
    `evaluations`; every other row is tested against `reference`; `paper` is a published table.
    ConfigError if evaluations cannot be told apart, or a row or table does not exist.
    """
    from atommem.eval.reporting.page import make_charts, render_page, write_charts
    from atommem.eval.reporting.tables import make_tables

    out, published = Path(out), paper and load_published(paper)
    title = clean(title)
    results = make_results(evaluations, title=title, reference=reference, base=out)
    if published:
        results["published"] = set_beside(published, results)
    tables, charts = make_tables(results), make_charts(results)
    markdown = [f"# {title}\n", *(table.markdown() for table in tables)]
    latex = "% Needs booktabs and graphicx.\n" + "\n".join(t.latex() for t in tables)
    write_json(out / RESULTS, results)
    write_text(out / "tables.md", clean("\n".join(markdown)))
    write_text(out / "tables.tex", clean(latex))
    write_text(out / "report.html", clean(render_page(title, results, tables, charts, evaluations)))
    write_charts(charts, out / "plots")
    return tables


def read_evaluations(given: Sequence[str]) -> list[Evaluation]:
    """Read FOLDER, NAME=FOLDER, or every evaluation that a folder's ``results.json`` lists."""
    found: list[Evaluation] = []
    for item in given:
        name, equals, folder = item.partition("=")
        if not equals or Path(item).is_dir():
            name, folder = "", item
        listed = Path(folder) / RESULTS
        if not listed.is_file():
            found.append(read_evaluation(folder, name))
            continue
        try:
            for labels in json.loads(listed.read_text(encoding="utf-8"))["evaluations"]:
                own = fields_of(Evaluation, labels)
                found.append(read_evaluation(listed.parent / own.pop("folder"), **own))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{listed} was not written by `atommem report`: {error!r}.") from error
    return found


@cache
def paper_tables() -> Mapping[str, Any]:
    """Load the paper's tables: ``configs/eval/paper_tables.yaml``."""
    return dict(yaml.safe_load(find_file("suite", "paper_tables", "eval").read_bytes()))


def load_published(name: str) -> Mapping[str, Any]:
    """Return one of the paper's tables; raises ConfigError for an unknown name."""
    tables = paper_tables()["tables"]
    check_choice("paper", name, tuple(tables))
    return dict(tables[name])


def set_beside(table: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Pair the table's numbers with ours, in percent, but for costs.

    A difference is ours minus the paper's, with the interval of ours. An average is over the
    columns that we have, with the mean of their intervals.
    """
    scores = scores_by_key(results)
    values: list[dict[str, Any]] = []
    for row in table["rows"]:
        own = [g for g in results["groups"] if g["row"] == row["row"] and not g["overflow"]]
        columns, line = table.get("costs") or table["columns"], []
        for column, paper in zip(columns, row["values"], strict=True):
            value = {"name": row["name"], "column": column, "paper": paper}
            if "costs" in table:
                means = [g["means"][column] for g in own if g["means"].get(column) is not None]
                line += [{**value, "ours": fmean(means)}] if means else []
                continue
            for group in own:
                documents = group["documents"]
                key = group["dataset"] if documents is None else f"{group['dataset']}-{documents}"
                metric = table.get("metric") or group["metric"]
                score = scores.get((group["row"], group["column"], metric))
                if key == column and score is not None:
                    ours, low, high = (100 * score[name] for name in ("mean", "low", "high"))
                    ends = {"low": low - paper, "high": high - paper, "n": score["n"]}
                    line.append({**value, "ours": ours, **ends})
        if table.get("average") and line:
            keys = ("paper", "ours", "low", "high")
            average = {key: fmean(value[key] for value in line) for key in keys}
            line.append({"name": row["name"], "column": "average of these", **average})
        values += [{**value, "difference": value["ours"] - value["paper"]} for value in line]
    return {"title": table["title"], "source": paper_tables()["source"], "values": values}


_METRICS = {"mean": "mean", "ci_low": "low", "ci_high": "high", "questions": "n"}


def write_inspect_logs(evaluations: Sequence[Evaluation], out: Path) -> list[Path]:
    """Write evaluations as logs of Inspect into `out`: ``inspect view --log-dir`` shows them.

    A log is an evaluation, a sample an episode: its id is the task's, its epoch the sample. Scores
    of samples are the episode's; those of the log are ours, over questions, with their intervals.
    The format is JSON, so Inspect need not be installed. TraceError: a trace is damaged.
    """
    paths = []
    for item in evaluations:
        log = inspect_log(item)
        stem = file_stem(f"{log['eval']['task']}_{log['eval']['task_id']}".replace("/", "-"))
        # Inspect recognises logs by the time at the beginning of their names.
        paths.append(out / f"{log['eval']['created'].replace(':', '-')}_{stem}.json")
        write_text(paths[-1], clean(json.dumps(log, ensure_ascii=False, indent=1)))
    return paths


def inspect_log(item: Evaluation) -> dict[str, Any]:
    """Return one evaluation as the values of an ``EvalLog``."""
    summary, done = summarize(item.records), len(item.records)
    policy = item.manifest.get("policy", {})
    model = str(policy.get("model") or policy.get("path") or "unknown")
    start, end = _modified(item.folder / MANIFEST), _modified(item.folder / EPISODES)
    name = f"{item.row}/{item.column}/{item.seed}/{item.tasks_digest}"
    identifier = hashlib.sha256(name.encode()).hexdigest()[:22]
    scores = [
        {
            "name": metric,
            "scorer": metric,
            "scored_samples": done - summary["failed"] - summary["overflow"],
            "metrics": {key: {"name": key, "value": score[part]} for key, part in _METRICS.items()},
        }
        for metric, score in summary["metrics"].items()
    ]
    return {
        "version": 2,
        "status": "success" if done >= item.planned else "started",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identifier),
            "created": start,
            "task": f"{item.row} on {item.column}",
            "dataset": {"name": item.dataset},
            "model": model,
            "config": {"epochs": int(item.manifest.get("num_generations", 1))},
            "metadata": {"manifest": item.manifest, "seed": item.seed},
        },
        "results": {"total_samples": item.planned, "completed_samples": done, "scores": scores},
        "stats": {"started_at": start, "completed_at": end},
        "samples": [_sample(item, record, model) for record in item.records],
    }


def _sample(item: Evaluation, record: EpisodeRecord, model: str) -> dict[str, Any]:
    path = trace_path(item.folder, record)
    steps = read_trace(path).episode.steps if path.is_file() else []
    answer = "\n".join(question.answer or "(none)" for question in record.questions)
    choice = {"message": {"role": "assistant", "content": answer}, "stop_reason": "stop"}
    scores = {} if record.overflowed or record.failed else record.metrics
    sample: dict[str, Any] = {
        "id": record.task_id,
        "epoch": record.sample + 1,
        "input": "\n".join(question.question for question in record.questions) or record.task_id,
        "target": [gold for question in record.questions for gold in question.golds[:1]],
        "messages": [message for step in steps for message in _messages(step, model)],
        "output": {"model": model, "choices": [choice]},
        "scores": {name: {"value": value, "answer": answer} for name, value in scores.items()},
        "metadata": {"source": record.source, "stop_reason": record.stop_reason},
        "total_time": record.seconds,
    }
    if record.failed:
        text = record.error or "unknown"
        sample["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return sample


def _messages(step: Step, model: str) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": step.prompt or "", "source": "input"}
    operations = {"operations": [str(operation.kind) for operation in step.operations]}
    reply = {"role": "assistant", "content": step.text, "source": "generate", "model": model}
    yield {**reply, "metadata": operations}


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()

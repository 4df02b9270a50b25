"""``atommem eval``: evaluate a checkpoint or a server on a task file, or run a suite."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from atommem.environment import find_environment
from atommem.envs.scoring.breakdowns import breakdowns
from atommem.envs.scoring.records import EvalResult
from atommem.episode_stats import action_names
from atommem.errors import BudgetSpentError, check_writable
from atommem.eval.eval_config import EvalContext, EvalRun, parse_arguments
from atommem.eval.output import SUMMARY, trace_path
from atommem.eval.reporting.results import label, ordered
from atommem.eval.runner import Budget, evaluate
from atommem.policy.opening import model_folder

EXIT_REFUSED = 2
EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130
_MEANS = (
    ("malformed / step", "malformed", ".3f"),
    ("unknown handle / step", "wasted/unknown_handle", ".3f"),
    ("rejected / step", "wasted/rejected", ".3f"),
    ("disabled / step", "wasted/disabled", ".3f"),
    ("seconds / episode", "seconds", ",.1f"),
    ("prompt tokens / episode", "tokens/prompt", ",.1f"),
    ("output tokens / episode", "tokens/completion", ",.1f"),
    ("model calls / episode", "steps", ",.1f"),
    ("retrievals / episode", "retrievals", ",.1f"),
    ("entries at the end / episode", "store_size", ",.1f"),
    ("episodes with a truncated text", "truncated", ".1%"),
    ("text shown / episode", "context_kept", ".1%"),
)
"""Heading, key of ``means``, format; means that are 0 everywhere are left out."""


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem eval``.

    Returns:
        0; 3 if more episodes failed or overflowed than ``--max_failed_fraction`` allows; 4 if the
        budget was spent before all had run; 130 after Ctrl-C or SIGTERM.

    Raises:
        AtomMemError: A setting or file is wrong, or the policy refused a request.
    """
    argv = sys.argv[1:] if argv is None else argv
    if any(argument.partition("=")[0] == "--suite" for argument in argv):
        from atommem.eval.suite_cli import main as run_suite

        return run_suite(argv)
    evaluation = parse_arguments(argv)
    config = evaluation.config
    check_writable("out", config.out, folder=True)
    if not evaluation.policy.is_server:
        model_folder("policy", evaluation.policy.policy[0])
    try:
        result = asyncio.run(_run(evaluation))
    except KeyboardInterrupt:
        return print_interrupted(config.out)
    except BudgetSpentError as error:
        print_error(
            f"{error} Every finished episode is in {config.out}; the same command with a larger "
            "--budget_tokens, --call_budget or --cost_budget continues there."
        )
        return EXIT_BUDGET_SPENT
    _print_summary(result, Path(config.out))
    count, most = len(result.records), config.max_failed_fraction
    for number, kind in ((result.failed, "failed"), (result.overflowed, "overflowed")):
        if number > most * count:
            print_error(
                f"{number} of {count} episodes {kind}: more than --max_failed_fraction {most:g}. "
                "Scores cover the others only. Overflow needs a longer --context_tokens, or "
                "smaller chunks."
            )
            return EXIT_TOO_MANY_FAILED
    return 0


async def _run(evaluation: EvalRun) -> EvalResult:
    config = evaluation.config
    environment = find_environment(evaluation.run.environment.environment)
    tasks = environment.read_tasks(config.data)[: config.limit]
    async with EvalContext() as context:
        method, settings = await context.open(evaluation)
        return await evaluate(
            tasks,
            method,
            config.out,
            samples_per_task=config.samples_per_task,
            settings=settings,
            budget=Budget(config.budget_tokens),
        )


def print_error(text: str) -> None:
    """Print a failure to standard error."""
    print(f"atommem eval: {text}", file=sys.stderr)


def print_interrupted(out: str | Path) -> int:
    """Print how to continue; returns the exit status."""
    print(
        f"\nInterrupted. Every finished episode is in {out}; the same command continues there.",
        file=sys.stderr,
    )
    return EXIT_INTERRUPTED


def _print_summary(result: EvalResult, out: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160  # log files are not wrapped at 80 columns
    summary = result.summary()
    console.print(summary_table(summary))
    metrics = [name for name in (summary["metric"], "f1") if name in summary["metrics"]]
    if rows := breakdowns(result.records, metrics):
        console.print(_breakdown_table(rows))
    for error, count in sorted(summary["errors"].items(), key=lambda item: -item[1]):
        console.print(f"failed {count} x: {error}", markup=False)
    if result.failed:
        console.print("Failed episodes are in no score; the same command runs them again.")
    replay = f"atommem trace '{trace_path(out, result.records[0])}'"
    console.print(f"{out / SUMMARY}; replay an episode: {replay}", markup=False)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Show `EvalResult.summary`: a column for all tasks, and one for each of several sources."""
    columns = {"all": summary, **summary.get("by_source", {})}
    items = list(columns.values())
    table = Table("", title="Evaluation", title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right")

    def add(heading: str, values: Iterable[Any]) -> None:
        table.add_row(heading, *map(str, values))

    for place, name in enumerate(ordered({name for item in items for name in item["metrics"]})):
        heading = label(name) + ("" if place else " [95% interval]")
        add(heading, (_format_score(item, name) for item in items))
    mains = [item["metrics"].get(item["metric"], {"clusters": 0, "n": 0}) for item in items]
    add("independent units / questions", (f"{main['clusters']} / {main['n']}" for main in mains))
    add("episodes", (item["episodes"] for item in items))
    add("  of these failed (not scored)", (item["failed"] for item in items))
    if summary["overflow"]:
        add("  prompt did not fit (not scored)", (item["overflow"] for item in items))
    table.add_section()
    actions = action_names(*(item["means"] for item in items))
    means = [(f"{name} / step", f"actions/{name}", ".3f") for name in actions] + list(_MEANS)
    for key in sorted({key for item in items for key in item["means"] if key.startswith("stop/")}):
        means.append((f"ended: {key.removeprefix('stop/').replace('_', ' ')}", key, ".1%"))
    for heading, key, form in means:
        values = [item["means"].get(key) for item in items]
        if any(values) or key.startswith("actions/"):
            add(heading, ("-" if value is None else format(value, form) for value in values))
    return table


def _breakdown_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Show `breakdowns`: a line per value, a column per score."""
    names = ordered(row["metric"] for row in rows)
    table = Table("by", "value", "n", *map(label, names), title="Breakdowns", box=SIMPLE_HEAD)
    lines: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["by"], row["value"]), {})[row["metric"]] = row
    for (by, value), scores in lines.items():
        count = max(row["n"] for row in scores.values())
        texts = [_format_score({"metrics": scores}, name) for name in names]
        table.add_row(by, value, str(count), *texts)
    return table


def _format_score(item: Mapping[str, Any], metric: str) -> str:
    score = item["metrics"].get(metric)
    if score is None:
        return "no score"
    if item.get("overflow"):
        return f"no score, {score['mean']:.3f} in those that fit"
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**score)

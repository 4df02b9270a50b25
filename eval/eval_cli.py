"""``atommem eval``: a checkpoint or a server on a task file, with scores, intervals and traces."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from atommem.command_line import check_writable
from atommem.environment import find_environment
from atommem.envs.scoring.breakdowns import breakdowns
from atommem.errors import BudgetSpentError
from atommem.eval.console_report import breakdown_table, report_tables
from atommem.eval.eval_config import Configs, parse_arguments
from atommem.eval.output import EPISODES, SUMMARY, trace_path
from atommem.eval.runner import evaluate
from atommem.eval.workbench import Workbench
from atommem.policy.opening import model_folder

if TYPE_CHECKING:
    from atommem.envs.scoring.records import EvalResult

EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem eval``.

    Returns:
        0; 3 when more episodes failed, or overflowed, than ``--max_failed_fraction`` allows; 4 when the budget was
        spent before all had run; 130 after Ctrl-C or SIGTERM.

    Raises:
        AtomMemError: A setting or file is wrong, or the policy refused a request.
    """
    argv = sys.argv[1:] if argv is None else argv
    if any(argument.partition("=")[0] == "--suite" for argument in argv):
        from atommem.eval.suites.suite_cli import main as run_suite

        return run_suite(argv)
    configs = parse_arguments(argv)
    config = configs[0]
    check_writable("out", config.out, folder=True)
    if not config.is_server:
        model_folder("policy", config.policy[0])
    try:
        result = asyncio.run(_run(configs))
    except KeyboardInterrupt:
        print(
            f"\nInterrupted. Every episode that ended is in {config.out}; the same command continues from there.",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    except BudgetSpentError as error:
        print(
            f"atommem eval: {error} Every episode that ended is in {config.out}; the same command with a larger "
            "--budget_tokens, --budget_money, --call_budget or --cost_budget continues from there.",
            file=sys.stderr,
        )
        return EXIT_BUDGET_SPENT
    _print_report(result, Path(config.out))
    if result.failed_fraction > config.max_failed_fraction:
        print(
            f"{result.failed} of {len(result.records)} episodes failed: more than --max_failed_fraction "
            f"{config.max_failed_fraction:g}. The scores cover the others only.",
            file=sys.stderr,
        )
        return EXIT_TOO_MANY_FAILED
    if result.overflowed > config.max_failed_fraction * len(result.records):
        print(
            f"{result.overflowed} of {len(result.records)} episodes overflowed: a prompt did not fit the policy's "
            "window. They are in no score, and the others are no fair draw: give a longer --context_tokens to a policy "
            "that has it, or smaller chunks.",
            file=sys.stderr,
        )
        return EXIT_TOO_MANY_FAILED
    return 0


async def _run(configs: Configs) -> EvalResult:
    config = configs[0]
    tasks = find_environment(configs[3].environment).read_tasks(config.data)[: config.limit]
    async with Workbench() as session:
        method, settings = await session.open(configs)
        return await evaluate(
            tasks,
            method,
            config.out,
            samples_per_task=config.samples_per_task,
            settings=settings,
            budget=config.make_budget(),
        )


def _print_report(result: EvalResult, out: Path) -> None:
    summary = result.summary()
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160  # a log file need not wrap at 80 columns
    for table in report_tables(summary, console):
        console.print(table)
    if rows := breakdowns(result.records, [name for name in (summary["metric"], "f1") if name in summary["metrics"]]):
        console.print(breakdown_table(rows))
    for error, count in sorted(summary["errors"].items(), key=lambda item: -item[1]):
        console.print(f"failed {count} x: {error}", markup=False)
    if result.failed:
        console.print("Failed episodes are in no score; the same command runs them again.")
    replay = shlex.join(["atommem", "trace", str(trace_path(out, result.records[0]))])
    console.print(f"{out / SUMMARY}, {out / EPISODES}; replay an episode: {replay}", markup=False)

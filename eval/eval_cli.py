"""``atommem eval``: evaluate a checkpoint or a server on a task file, or run a suite."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atommem.environment import find_environment
from atommem.envs.scoring.records import breakdowns
from atommem.errors import BudgetSpentError, check_writable
from atommem.eval.context import EvalContext
from atommem.eval.eval_config import EvalRun, parse_arguments
from atommem.eval.output import EPISODES, SUMMARY, trace_path
from atommem.eval.runner import evaluate
from atommem.eval.summary import (
    EXIT_BUDGET_SPENT,
    EXIT_TOO_MANY_FAILED,
    breakdown_table,
    make_console,
    print_error,
    print_interrupted,
    summary_table,
)
from atommem.policy.opening import model_folder

if TYPE_CHECKING:
    from atommem.envs.scoring.records import EvalResult


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
            "--budget_tokens, --budget_money or --call_budget continues there."
        )
        return EXIT_BUDGET_SPENT
    _print_summary(result, Path(config.out))
    count, most = len(result.records), config.max_failed_fraction
    if result.failed_fraction > most:
        print_error(
            f"{result.failed} of {count} episodes failed: more than --max_failed_fraction "
            f"{most:g}. Scores cover the others only."
        )
        return EXIT_TOO_MANY_FAILED
    if result.overflowed > most * count:
        print_error(
            f"{result.overflowed} of {count} episodes overflowed: a prompt did not fit the "
            "policy's window. Scores cover the others only, which is not a fair sample. Give a "
            "longer --context_tokens to a policy that has it, or smaller chunks."
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
            budget=config.make_budget(),
        )


def _print_summary(result: EvalResult, out: Path) -> None:
    summary, console = result.summary(), make_console()
    console.print(summary_table(summary))
    metrics = [name for name in (summary["metric"], "f1") if name in summary["metrics"]]
    if rows := breakdowns(result.records, metrics):
        console.print(breakdown_table(rows))
    for error, count in sorted(summary["errors"].items(), key=lambda item: -item[1]):
        console.print(f"failed {count} x: {error}", markup=False)
    if result.failed:
        console.print("Failed episodes are in no score; the same command runs them again.")
    replay = shlex.join(["atommem", "trace", str(trace_path(out, result.records[0]))])
    console.print(f"{out / SUMMARY}, {out / EPISODES}; replay an episode: {replay}", markup=False)

"""``atommem eval``: evaluate a checkpoint or a server on a task file, or run a suite."""

import asyncio
from pathlib import Path

from atommem.environment import find_environment
from atommem.envs.scoring.records import EvalResult
from atommem.errors import BudgetSpentError, check_writable
from atommem.eval import eval_config
from atommem.eval.reporting.results import make_results, read_evaluation
from atommem.eval.reporting.tables import make_tables
from atommem.eval.runner import SUMMARY, evaluate, trace_path


def main(argv: list[str]) -> int:
    """Run ``atommem eval``.

    Returns 0; 3 if more episodes failed or overflowed than ``--max_failed_fraction`` allows; 4 if
    ``--call_budget`` was spent before all had run; 130 after Ctrl-C or SIGTERM.
    """
    if any(argument.partition("=")[0] == "--suite" for argument in argv):
        from atommem.eval.suite_cli import main as run_suite

        return run_suite(argv)
    evaluation = eval_config.parse_arguments(argv)
    config = evaluation.config
    check_writable("output_dir", config.output_dir, folder=True)
    try:
        result = asyncio.run(_run(evaluation))
    except KeyboardInterrupt:
        return eval_config.print_interrupted(config.output_dir)
    except BudgetSpentError as error:
        eval_config.print_error(f"{error} The same command continues in {config.output_dir}.")
        return eval_config.EXIT_BUDGET_SPENT
    _print_summary(result, Path(config.output_dir))
    count, most = len(result.records), config.max_failed_fraction
    overflowed = sum(record.overflowed for record in result.records)
    for number, kind in ((result.failed, "failed"), (overflowed, "overflowed")):
        if number > most * count:
            eval_config.print_error(
                f"{number} of {count} episodes {kind}: more than --max_failed_fraction {most:g}. "
                "Scores cover the others only. Overflow needs a longer --context_tokens, or "
                "smaller chunks."
            )
            return eval_config.EXIT_TOO_MANY_FAILED
    return 0


async def _run(evaluation: eval_config.EvalRun) -> EvalResult:
    config = evaluation.config
    environment = find_environment(evaluation.run.environment.environment)
    tasks = environment.read_tasks(config.data)[: config.limit]
    async with eval_config.EvalContext() as context:
        method, settings = await context.open(evaluation)
        episodes = config.num_generations
        return await evaluate(
            tasks, method, config.output_dir, num_generations=episodes, settings=settings
        )


def _print_summary(result: EvalResult, out: Path) -> None:
    tables = make_tables(make_results([read_evaluation(out)]))
    print(*(table.text() for table in tables), sep="\n")
    for error, count in result.summary()["errors"].items():
        print(f"failed {count} x: {error}")
    if result.failed:
        print("Failed episodes are in no score; the same command runs them again.")
    replay = f"atommem trace '{trace_path(out, result.records[0])}'"
    print(f"{out / SUMMARY}; replay an episode: {replay}")

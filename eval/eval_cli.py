"""``atommem eval``: evaluate a checkpoint or a server on a task file, or run a suite."""

import asyncio
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from atommem.arguments import RENAMED, Parser, pop_flags
from atommem.config import check_choice
from atommem.environment import find_environment
from atommem.envs.benchmarks.questions import TWOWIKI, get_benchmark
from atommem.envs.data_cli import main as build_data
from atommem.envs.scoring.records import EvalResult
from atommem.envs.task_files import describe_file
from atommem.errors import AtomMemError, BudgetSpentError, ConfigError, check_writable
from atommem.eval import eval_config
from atommem.eval.eval_config import EXIT_BUDGET_SPENT, EXIT_REFUSED, EXIT_TOO_MANY_FAILED
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.reporting.results import Evaluation, make_results, read_evaluation
from atommem.eval.reporting.tables import make_tables
from atommem.eval.runner import MANIFEST, SUMMARY, OutputFolder, evaluate, make_manifest, trace_path
from atommem.eval.suite import Column, Suite, SuiteRun, expand, load_suite


def main(argv: list[str]) -> int:
    """Run ``atommem eval``.

    Returns 0; 3 if more episodes failed or overflowed than ``--max_failed_fraction`` allows; 4 if
    ``--call_budget`` was spent before all had run; 130 after Ctrl-C or SIGTERM.
    """
    if any(argument.partition("=")[0] == "--suite" for argument in argv):
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
        return EXIT_BUDGET_SPENT
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
            return EXIT_TOO_MANY_FAILED
    return 0


async def _run(evaluation: eval_config.EvalRun) -> EvalResult:
    config = evaluation.config
    environment = find_environment(evaluation.run.environment.environment)
    tasks = environment.read_tasks(config.data)[: config.limit]
    async with eval_config.EvalContext() as context:
        method, settings = await context.open(evaluation)
        out, episodes = config.output_dir, config.num_generations
        return await evaluate(tasks, method, out, num_generations=episodes, settings=settings)


def _print_summary(result: EvalResult, out: Path) -> None:
    tables = make_tables(make_results([read_evaluation(out)]))
    print(*(table.text() for table in tables), sep="\n")
    for error, count in result.summary()["errors"].items():
        print(f"failed {count} x: {error}")
    if result.failed:
        print("Failed episodes are in no score; the same command runs them again.")
    replay = f"atommem trace '{trace_path(out, result.records[0])}'"
    print(f"{out / SUMMARY}; replay an episode: {replay}")


ALIASES = "id_aliases.json"  # 2WikiMultihopQA's names, which count as right if it is there


def run_suite(argv: Sequence[str]) -> int:
    """Run ``atommem eval --suite``; returns a status of `main`, or 2 if a run was refused."""
    parser = _make_parser()
    own = parser.setting_names()
    own += [former for former, name in RENAMED.items() if name in own]  # refused by the parser
    words, flags = pop_flags(argv, own)
    given = parser.parse_args([word for name in words for word in (f"--{name}", *words[name])])
    for name in pop_flags(flags, ("data", "method", "seed", "config"))[0]:
        raise ConfigError(f"--{name}: not for a suite. Give --columns, --rows, --seeds or --suite.")
    if given.suite is None:
        raise ConfigError("--suite is missing. Give a file, or a name such as smoke.")
    if given.output_dir is None and not given.list:
        raise ConfigError("--output_dir is missing. Give a folder for runs and report, or --list.")
    check_writable("output_dir", given.output_dir, folder=True)
    whole = load_suite(given.suite)
    policies = dict(item.partition("=")[::2] for item in given.policies)
    for name, where in policies.items():
        if not where:
            raise ConfigError(f"policies={name}: give NAME=WHERE, as base=Qwen/Qwen3-8B.")
        named = {*whole.policies, *(row.policy for row in whole.rows if row.policy)}
        check_choice("policies", name, sorted(named))
    suite = whole.select(given.columns, given.rows)
    if given.list:
        names = {row.policy: row.policy for row in suite.rows}
        suite = replace(suite.with_policies(names), settings={"policy": "X", **suite.settings})
        print(*(run.name for run in expand(suite, flags, Path(), given.seeds)[0]), sep="\n")
        return 0
    runs, errors = expand(suite.with_policies(policies), flags, given.output_dir, given.seeds)
    for name, error in errors.items():
        eval_config.print_error(f"{name} is left out: {error}")
    if not runs:
        return EXIT_REFUSED
    tasks = load_columns(suite.columns, suite.environment, given.data_cache, given.input)
    try:
        asyncio.run(run_all(runs, tasks))
    except KeyboardInterrupt:
        return eval_config.print_interrupted(given.output_dir)
    evaluations = {}
    for run in runs:
        if (run.folder / MANIFEST).is_file():
            labels: dict[str, Any] = {"setting": run.row.label, "seed": run.seed}
            labels |= {"dataset": run.column.name, "documents": run.column.documents}
            evaluations[run] = read_evaluation(run.folder, run.row.method, **labels)
    _report(suite, evaluations, given.output_dir)
    is_whole = len(evaluations) == len(runs) and not errors
    return _exit_status(evaluations) or (0 if is_whole else EXIT_REFUSED)


async def run_all(runs: Sequence[SuiteRun], tasks: Mapping[str, Sequence[Any]]) -> None:
    """Run all episodes that have not run; a run that cannot go on notes its error.

    Runs with the same models, which are adjacent, run side by side; `tasks` are by column key. Runs
    that are known to be impossible are left out before any starts.
    """

    def tasks_of(run: SuiteRun) -> Sequence[Any]:
        return tasks[run.column.key][: run.evaluation.config.limit]

    async def start(run: SuiteRun) -> None:
        own, samples = tasks_of(run), run.evaluation.config.num_generations
        try:
            method, settings = await context.open(run.evaluation)
            result = await evaluate(
                own, method, run.folder, num_generations=samples, settings=settings, progress=False
            )
        except AtomMemError as error:  # the policy may refuse the requests of one method only
            run.error = error
        else:
            counts = f"{len(result.records)} episodes, {result.failed} failed"
            metric = result.summary()["metric"]
            print(f"{run.name}: {counts}, {metric} {result.mean(metric):.3f}", file=sys.stderr)

    slots = asyncio.Semaphore(runs[0].evaluation.policy.max_inflight_tasks)
    async with eval_config.EvalContext(slots) as context:
        for run in runs:
            samples = run.evaluation.config.num_generations
            try:
                opened = await context.open(run.evaluation)
                OutputFolder(run.folder, make_manifest(tasks_of(run), *opened, samples)).close()
            except AtomMemError as error:
                run.error = error
                eval_config.print_error(f"{run.name} is left out: {error}")
        possible = [run for run in runs if run.error is None]
        for _, group in groupby(possible, key=lambda run: run.evaluation.models):
            async with asyncio.TaskGroup() as started:
                for run in group:
                    started.create_task(start(run))


def load_columns(
    columns: Iterable[Column], environment: str, cache: Path, benchmarks: Path | None = None
) -> dict[str, Sequence[Any]]:
    """Return the tasks of each column by its key, built into the folder `cache` on first use."""
    read_tasks = find_environment(environment).read_tasks
    tasks = {}
    for column in columns:
        try:
            tasks[column.key] = read_tasks(column_file(column, cache, benchmarks))
        except AtomMemError as error:
            raise type(error)(f"column {column.key}: {error}") from error
    return tasks


def column_file(column: Column, cache: Path, benchmarks: Path | None = None) -> Path:
    """Return the file of a column's tasks, built if necessary.

    A built file's name has a digest of its inputs, the build's settings and the package's version.
    """
    if column.file:
        path = Path(column.file)
        beside = benchmarks / path if benchmarks is not None else path
        return beside if beside.is_file() else path
    flags, inputs = dict(column.build), list[Path]()
    words = ["synthetic"]
    if column.benchmark:
        words = ["build", f"--benchmark={column.benchmark}", f"--split={column.split}"]
        if column.documents is not None:
            flags["documents"] = column.documents
        if benchmarks is None:
            fix = "Give it, or choose other --columns"
            raise ConfigError(f"{column.benchmark} needs --input, a folder with its files. {fix}.")
        inputs = get_benchmark(column.benchmark).find(column.split, benchmarks)
    words += [f"--{name}={value}" for name, value in flags.items()]
    names = [inputs[0].with_name(ALIASES)] if column.benchmark == TWOWIKI else []
    aliases = [file for file in names if file.is_file()]
    contents = [describe_file(file)["sha256"] for file in (*inputs, *aliases)]
    digest = hashlib.sha256(repr((words, contents, version("atommem"))).encode()).hexdigest()
    path = cache / f"{column.key}-{digest[:20]}.parquet"
    if not path.is_file():
        words += [f"--input={file}" for file in inputs]
        words += [f"--aliases={file}" for file in aliases]
        build_data([*words, f"--out={path}"])
    return path


def _report(suite: Suite, evaluations: Mapping[SuiteRun, Evaluation], out: Path) -> None:
    found = {run: item for run, item in evaluations.items() if item.records}
    if not found:
        print("No episode has finished: there is nothing to report.")
        return
    title = suite.title
    if missing := len(evaluations) - len(found):
        title += f" (incomplete: {missing} of {len(evaluations)} evaluations have no episode)"
    reference = suite.reference if suite.reference in {run.row.name for run in found} else None
    in_order = [found[run] for run in sorted(found, key=lambda run: suite.rows.index(run.row))]
    report = out / "report"
    tables = write_report(in_order, report, title=title, reference=reference, paper=suite.paper)
    scores = (table.markdown() for table in tables if table.section == "scores")
    print(f"# {title}\n", *scores, report / "report.html", sep="\n")


def _exit_status(evaluations: Mapping[SuiteRun, Evaluation]) -> int:
    found = {0}
    for run, item in evaluations.items():
        count, failed = len(item.records), sum(record.failed for record in item.records)
        if failed > run.evaluation.config.max_failed_fraction * count:
            found.add(EXIT_TOO_MANY_FAILED)
            eval_config.print_error(
                f"{run.name}: {failed} of {count} episodes failed, more than "
                "--max_failed_fraction. Scores cover the others; the same command runs them again."
            )
        if run.error is not None:
            spent = isinstance(run.error, BudgetSpentError)
            found.add(EXIT_BUDGET_SPENT if spent else EXIT_REFUSED)
            eval_config.print_error(f"{run.name} was refused: {run.error}")
    ranked = (EXIT_REFUSED, EXIT_BUDGET_SPENT, EXIT_TOO_MANY_FAILED, 0)
    return next(status for status in ranked if status in found)


def _make_parser() -> Parser:
    parser = Parser(
        "atommem eval",
        "Run all evaluations of a suite, and report them together. Every flag of atommem eval may\n"
        "be given too: it wins over the suite's settings, but not over a row's.",
        usage="atommem eval --suite FILE|NAME --output_dir DIR [--SETTING VALUE ...]",
        epilog="Suites, their files and the report: docs/evaluate.md",
    )
    add = parser.add_argument
    add("--suite", type=Path, nargs="?", metavar="FILE", help="A YAML file, or a shipped name.")
    add("--output_dir", type=Path, help="Folder of runs and report; a partial suite continues.")
    benchmarks = "Folder of the benchmarks' files: hotpotqa/, 2wikimultihopqa/, musique/."
    add("--input", type=Path, metavar="DIR", help=benchmarks)
    cache = "Stores task files that are built on first use (%(default)s)."
    add("--data_cache", type=Path, default=Path("runs/data"), metavar="DIR", help=cache)
    add("--columns", nargs="+", metavar="NAME", help="Only these: hotpotqa, hotpotqa-200, ...")
    add("--rows", nargs="+", metavar="NAME", help="Only these: name, method or label.")
    policies = "Policies that rows name: a folder, hub name or URL; --policy is `trained`."
    add("--policies", nargs="+", default=[], metavar="NAME=WHERE", help=policies)
    add("--seeds", nargs="+", type=int, metavar="N", help="Sampling seeds, instead of the suite's.")
    add("--list", action="store_true", help="Only list the runs.")
    return parser

"""``atommem eval --suite``: run every evaluation of a suite, and report them together."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from atommem.arguments import Parser, pop_flags
from atommem.environment import find_environment
from atommem.envs.benchmarks.build import Pool, build_tasks
from atommem.envs.benchmarks.registry import TWOWIKI, get_benchmark, with_aliases
from atommem.envs.scoring.records import EpisodeRecord
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task
from atommem.envs.task_files import describe_file, save_tasks, write_provenance
from atommem.errors import AtomMemError, BudgetSpentError, ConfigError, check_writable
from atommem.eval.eval_config import (
    EXIT_BUDGET_SPENT,
    EXIT_REFUSED,
    EXIT_TOO_MANY_FAILED,
    EvalContext,
    print_error,
    print_interrupted,
)
from atommem.eval.output import SUMMARY, OutputFolder
from atommem.eval.reporting.evaluations import read_evaluation
from atommem.eval.reporting.report_cli import write_report
from atommem.eval.runner import Budget, evaluate, make_manifest
from atommem.eval.suite import TRAINED, Column, Suite, SuiteRun, expand, load_suite

ALIASES = "id_aliases.json"
"""2WikiMultihopQA's aliases; its names count as right if the file is beside the questions."""
_INSTEAD = {"--data": "--columns", "--method": "--rows", "--seed": "--seeds", "--config": "--suite"}
"""Flags of a single evaluation, and those of a suite."""


def main(argv: Sequence[str]) -> int:
    """Run ``atommem eval --suite``.

    Returns:
        0; 2 if a run was refused; 3 if more episodes of a run failed than ``--max_failed_fraction``
        allows; 4 if the budget was spent; 130 after Ctrl-C.

    Raises:
        AtomMemError: A setting or file is wrong, or a run is known to be impossible beforehand.
    """
    parser = _make_parser()
    words, flags = pop_flags(argv, parser.setting_names())
    given = parser.parse_args([word for name in words for word in (f"--{name}", *words[name])])
    _check(given, flags)
    whole = load_suite(given.suite)
    policies = _parse_policies(given.policies, whole)
    suite = whole.select(given.columns, given.rows)
    if given.benchmarks is None:
        suite = _without_benchmarks(suite)
    if given.list:
        names = {row.policy: row.policy for row in suite.rows}
        suite = replace(suite.with_policies(names), settings={"policy": "X", **suite.settings})
        for run in expand(suite, flags, Path(), given.seeds):
            print(run.name)
        return 0
    runs = expand(suite.with_policies(policies), flags, given.out, given.seeds)
    tasks = load_columns(suite.columns, suite.environment, given.data_cache, given.benchmarks)
    budget = Budget(runs[0].evaluation.config.budget_tokens)
    try:
        asyncio.run(run_all(runs, tasks, budget))
    except KeyboardInterrupt:
        return print_interrupted(given.out)
    _report(suite, runs, given.out)
    return _exit_status(runs, budget)


async def run_all(
    runs: Sequence[SuiteRun], tasks: Mapping[str, Sequence[Any]], budget: Budget
) -> None:
    """Run all episodes that have not run; each run's `state` says how it ended.

    Args:
        runs: In order; those with the same models are adjacent, and run side by side.
        tasks: By column key.
        budget: Shared by all runs.

    Raises:
        AtomMemError: A run is impossible (a model, server or package is missing, its folder has
            another evaluation); nothing has run then.
    """

    def tasks_of(run: SuiteRun) -> Sequence[Any]:
        return tasks[run.column.key][: run.evaluation.config.limit]

    async def check(run: SuiteRun) -> None:
        method, settings = await context.open(run.evaluation)
        samples = run.evaluation.config.samples_per_task
        manifest = make_manifest(tasks_of(run), method, samples, settings)
        with OutputFolder(run.folder, manifest) as folder:
            run.planned = len(tasks_of(run)) * samples
            run.done = len(folder.finished)
            run.failed = sum(record.failed for record in folder.finished.values())
            budget.add_folder(folder)

    async def start(run: SuiteRun) -> None:
        def count(record: EpisodeRecord) -> None:
            run.done += 1
            run.failed += record.failed

        if run.done == run.planned and not run.failed and (run.folder / SUMMARY).is_file():
            return
        run.done = run.failed = 0  # `evaluate` counts finished episodes again
        try:
            method, settings = await context.open(run.evaluation)
            result = await evaluate(
                tasks_of(run),
                method,
                run.folder,
                samples_per_task=run.evaluation.config.samples_per_task,
                settings=settings,
                progress=False,
                budget=budget,
                on_record=count,
            )
            metric = result.summary()["metric"]
            score = f"{metric} {result.mean(metric):.3f}"
            print(f"{run.name}: {run.done} episodes, {run.failed} failed, {score}", file=sys.stderr)
        except BudgetSpentError:
            run.state = "stopped"
        except AtomMemError as error:  # the policy may refuse the requests of one method only
            run.state, run.error = "refused", str(error)

    slots = asyncio.Semaphore(runs[0].evaluation.policy.max_in_flight)
    async with EvalContext(slots) as context:
        for run in runs:
            try:
                await check(run)
            except AtomMemError as error:
                raise type(error)(f"{run.name}: {error}") from error
        for _, group in groupby(runs, key=lambda run: run.evaluation.models):
            async with asyncio.TaskGroup() as started:
                for run in group:
                    started.create_task(start(run))


def load_columns(
    columns: Iterable[Column], environment: str, cache: Path, benchmarks: Path | None = None
) -> dict[str, Sequence[Any]]:
    """Return the tasks of each column by its key, built on first use.

    Args:
        cache: Folder of built files. A name has a digest of its inputs' content, the build's
            settings and the package's version.
        benchmarks: Folder of the benchmarks' files, in a folder each.

    Raises:
        ConfigError: The benchmarks' folder or a file is missing.
        DataError: An input is missing, damaged or too small.
    """
    read_tasks = find_environment(environment).read_tasks
    tasks = {}
    for column in columns:
        try:
            tasks[column.key] = read_tasks(column_file(column, cache, benchmarks))
        except AtomMemError as error:
            raise type(error)(f"column {column.key}: {error}") from error
    _read_pool.cache_clear()
    return tasks


def column_file(column: Column, cache: Path, benchmarks: Path | None = None) -> Path:
    """Return the file of a column's tasks, built if necessary; raises like `load_columns`."""
    if column.file:
        folders = [Path()] if benchmarks is None else [benchmarks, Path()]
        for folder in folders:
            if (folder / column.file).is_file():
                return folder / column.file
        searched = " or ".join(map(str, folders))
        raise ConfigError(f"{column.file} is not in {searched}. Give its folder as --benchmarks.")
    if column.world is not None:
        world, count, seed = column.world, column.n, column.seed
        settings = {"source": "synthetic", "world": asdict(world), "n": count, "seed": seed}
        return _build(column, cache, settings, lambda: generate(world, count, seed))
    benchmark, build = get_benchmark(column.benchmark), column.build
    assert build is not None
    if benchmarks is None:
        names = ", ".join(f"{benchmark.name}/{name}" for name in benchmark.files[column.split])
        raise ConfigError(f"{benchmark.name} needs --benchmarks, a folder with one of {names}.")
    files = benchmark.find(column.split, benchmarks)
    named = files[0].with_name(ALIASES)
    aliases = (named,) if benchmark.name == TWOWIKI and named.is_file() else ()
    settings = {
        "benchmark": benchmark.name,
        "split": column.split,
        **asdict(build),
        "inputs": [describe_file(file) for file in (*files, *aliases)],
    }

    def make_tasks() -> Iterable[Task]:
        pool = _read_pool(benchmark.name, tuple(files), aliases)
        return build_tasks(pool, build, benchmark.name, column.split)

    return _build(column, cache, settings, make_tasks)


@lru_cache(maxsize=1)  # adjacent columns of one benchmark share it
def _read_pool(name: str, files: tuple[Path, ...], aliases: tuple[Path, ...]) -> Pool:
    benchmark = get_benchmark(name)
    for file in aliases:
        benchmark = with_aliases(benchmark, file)
    pool = Pool(row for file in files for row in benchmark.read(file))
    if pool.skipped_note:
        print(f"{name}{pool.skipped_note}", file=sys.stderr)
    return pool


def _build(
    column: Column,
    cache: Path,
    settings: Mapping[str, Any],
    make_tasks: Callable[[], Iterable[Task]],
) -> Path:
    inputs = [item["sha256"] for item in settings.get("inputs", ())]  # not names and places
    content = {**settings, "inputs": inputs, "atommem": version("atommem")}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = cache / f"{column.key}-{digest[:20]}.parquet"
    if not path.is_file():
        print(f"building the tasks of {column.key}: {path}", file=sys.stderr)
        save_tasks(make_tasks(), path)
        write_provenance(path, {**settings, "digest": digest})
    return path


def _report(suite: Suite, runs: Sequence[SuiteRun], out: Path) -> None:
    """Write the report on all finished episodes to ``out/report`` and print its scores."""
    found = [run for run in runs if run.done]
    if not found:
        print("No episode has finished: there is nothing to report.")
        return
    evaluations = [
        read_evaluation(
            run.folder,
            run.row.method,
            run.column.name,
            setting=run.row.label,
            documents=run.column.documents,
            seed=run.seed,
            parameters=run.row.parameters,
        )
        for run in sorted(found, key=lambda run: suite.rows.index(run.row))
    ]
    title = suite.title
    if missing := len(runs) - len(found):
        title += f" (incomplete: {missing} of {len(runs)} evaluations have no episode)"
    known = suite.reference in {item.row for item in evaluations}
    reference = suite.reference if known else None
    report = out / "report"
    tables = write_report(evaluations, report, title=title, reference=reference, paper=suite.paper)
    print(*(table.markdown() for table in tables if table.section == "scores"), sep="\n")
    print(report / "report.html")


def _exit_status(runs: Sequence[SuiteRun], budget: Budget) -> int:
    """Print failures to standard error, and return the exit status."""
    refused = [run for run in runs if run.state == "refused"]
    stopped = [run for run in runs if run.state == "stopped"]
    failing = [
        run for run in runs if run.failed > run.evaluation.config.max_failed_fraction * run.done
    ]
    for run in refused:
        print_error(f"{run.name} was refused: {run.error}")
    for run in failing:
        print_error(
            f"{run.name}: {run.failed} of {run.done} episodes failed, more than "
            "--max_failed_fraction. Scores cover the others; the same command runs them again."
        )
    if stopped:
        left = sum(run.planned - run.done for run in stopped)
        print_error(
            f"the budget is spent: {budget}. {left} episodes of {len(stopped)} runs are left; the "
            "same command with a larger --budget_tokens continues."
        )
    if refused:
        return EXIT_REFUSED
    if stopped:
        return EXIT_BUDGET_SPENT
    return EXIT_TOO_MANY_FAILED if failing else 0


def _without_benchmarks(suite: Suite) -> Suite:
    columns = tuple(column for column in suite.columns if not column.benchmark)
    if dropped := [column.key for column in suite.columns if column.benchmark]:
        print(f"left out without --benchmarks: {', '.join(dropped)}", file=sys.stderr)
    if not columns:
        raise ConfigError("no column is left. Give --benchmarks, or choose other --columns.")
    return replace(suite, columns=columns)


def _parse_policies(given: Sequence[str], suite: Suite) -> dict[str, str]:
    """Parse ``--policies NAME=WHERE``; raises ConfigError for names that no row has."""
    known = {row.policy for row in suite.rows} - {"", TRAINED} | {*suite.policies}
    policies = {}
    for item in given:
        name, _, where = item.partition("=")
        if not where:
            raise ConfigError(f"policies={item!r}: give NAME=WHERE, as base=Qwen/Qwen3-8B.")
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"policies={item!r}: the suite's rows name {names}.")
        policies[name] = where
    return policies


def _check(given: argparse.Namespace, flags: Sequence[str]) -> None:
    for flag in flags:
        if (name := flag.partition("=")[0]) in _INSTEAD:
            raise ConfigError(f"{name} is for a single evaluation. Give {_INSTEAD[name]}.")
    if given.suite is None:
        raise ConfigError("--suite needs a file or a name such as smoke.")
    if given.out is None and not given.list:
        raise ConfigError("--out is missing. Give a folder for runs and report, or --list.")
    check_writable("out", given.out, folder=True)
    if given.seeds is not None and len(set(given.seeds)) < len(given.seeds):
        raise ConfigError(f"seeds={given.seeds}: give different ones.")


def _make_parser() -> Parser:
    parser = Parser(
        "atommem eval",
        "Run all evaluations of a suite, and report them together. Every flag of atommem eval may\n"
        "be given too: it wins over the suite's settings, but not over a row's.",
        usage="atommem eval --suite FILE|NAME --out DIR [--policy POLICY] [--SETTING VALUE ...]",
        epilog="Suites, their files and the report: docs/evaluate.md",
    )
    add = parser.add_argument
    add("--suite", type=Path, nargs="?", metavar="FILE", help="A YAML file, or a shipped name.")
    add("--out", type=Path, help="Folder of runs and report; a partial suite continues.")
    benchmarks = "Folder of the benchmarks' files: hotpotqa/, 2wikimultihopqa/, musique/."
    add("--benchmarks", type=Path, metavar="DIR", help=benchmarks)
    cache = "Stores task files that are built on first use (%(default)s)."
    add("--data_cache", type=Path, default=Path("runs/data"), metavar="DIR", help=cache)
    add("--columns", nargs="+", metavar="NAME", help="Only these: hotpotqa, hotpotqa-200, ...")
    add("--rows", nargs="+", metavar="NAME", help="Only these: name, method or label.")
    policies = "Policies that rows name: a folder, hub name or URL; --policy is `trained`."
    add("--policies", nargs="+", default=[], metavar="NAME=WHERE", help=policies)
    add("--seeds", nargs="+", type=int, metavar="N", help="Sampling seeds, instead of the suite's.")
    add("--list", action="store_true", help="Only list the runs.")
    return parser

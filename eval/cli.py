"""``atommem eval``: a checkpoint or a server on a task file, with scores, intervals and traces."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from atommem.embedding import make_embedder
from atommem.policy.base import Sampling
from envs.files import load_tasks
from envs.longdoc import LongDocEnvironments
from eval.budget import BudgetSpentError
from eval.config import Configs, parse_arguments
from eval.methods import make_method
from eval.methods.base import Setup
from eval.output import EPISODES, SUMMARY, TRACES
from eval.policies import open_policy, policy_identity
from eval.report import report_table
from eval.runner import evaluate

if TYPE_CHECKING:
    from envs.records import EvalResult

EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem eval``.

    Returns:
        0; 3 when more episodes failed than ``--max_failed_fraction`` allows; 4 when the budget was spent before
        all had run; 130 after Ctrl-C.

    Raises:
        AtomMemError: A setting or file is wrong, or the policy refused a request.
    """
    configs = parse_arguments(sys.argv[1:] if argv is None else argv)
    config = configs[0]
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
            "--budget_tokens or --budget_money continues from there.",
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
    return 0


async def _run(configs: Configs) -> EvalResult:
    config, memory, embedder_config, environment = configs
    tasks = load_tasks(config.data)[: config.limit]
    async with AsyncExitStack() as stack:
        embedder = make_embedder(embedder_config)
        stack.push_async_callback(embedder.close)
        policy = open_policy(config)
        stack.push_async_callback(policy.close)
        environments = LongDocEnvironments(policy.tokenizer, environment)
        stack.push_async_callback(environments.close)
        method = make_method(
            config.method,
            Setup(
                policy=policy,
                embedder=embedder,
                tokenizer=policy.tokenizer,
                environments=environments,
                memory=memory,
                sampling=Sampling(config.temperature, config.top_p, config.top_k, config.max_tokens, config.seed),
                max_in_flight=config.max_in_flight,
                chat_template_kwargs=config.template_kwargs,
                context_tokens=config.context_tokens,
                yarn_factor=config.yarn_factor,
            ),
        )
        settings = {
            "policy": await policy_identity(config, policy),
            # The same server may come back at another address.
            "embedder": {**asdict(embedder_config), "embedder_url": None},
            "environment": {**asdict(environment), "judge_url": None},
            "chat_template_kwargs": config.template_kwargs,
            "method": {"name": config.method},
        }
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
    console.print(report_table(summary))
    for error, count in sorted(summary["errors"].items(), key=lambda item: -item[1]):
        console.print(f"failed {count} x: {error}", markup=False)
    if result.failed:
        console.print("Failed episodes are in no score; the same command runs them again.")
    console.print(
        f"{out / SUMMARY}, {out / EPISODES}; replay an episode: atommem trace {out / TRACES}/FILE", markup=False
    )

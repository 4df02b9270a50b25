"""``atommem eval``: a checkpoint or a server on a task file, with scores, intervals and traces."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from atommem.embedding import make_embedder
from atommem.errors import PolicyError
from atommem.policy.base import Sampling
from envs.files import load_tasks
from envs.longdoc import LongDocEnvironments
from eval.config import Configs, EvalConfig, parse_arguments
from eval.methods import make_method
from eval.methods.base import Setup
from eval.output import EPISODES, SUMMARY, TRACES
from eval.report import report_table
from eval.runner import evaluate

if TYPE_CHECKING:
    from atommem.policy.local import LocalPolicy
    from atommem.policy.server import ServerPolicy
    from envs.records import EvalResult

EXIT_TOO_MANY_FAILED = 3
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem eval``.

    Returns:
        0; 3 when more episodes failed than ``--max_failed_fraction`` allows; 130 after Ctrl-C.

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
        policy = _open_policy(config)
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
        return await evaluate(tasks, method, config.out, samples_per_task=config.samples_per_task, settings=settings)


def _open_policy(config: EvalConfig) -> LocalPolicy | ServerPolicy:
    if not config.is_server:
        from atommem.policy.local import LocalPolicy

        return LocalPolicy.from_pretrained(
            config.policy, max_batch_size=config.max_in_flight, max_batch_tokens=config.max_batch_tokens
        )
    from transformers import AutoTokenizer

    from atommem.policy.server import ServerPolicy

    try:
        tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
    except (OSError, ValueError) as error:
        raise PolicyError(f"No tokenizer could be loaded from {config.tokenizer!r}: {error}") from error
    return ServerPolicy(config.policy, config.model, tokenizer=tokenizer, max_in_flight=config.max_in_flight)


async def policy_identity(config: EvalConfig, policy: Any) -> dict[str, Any]:
    """What tells this policy from another: for a folder, its files by name, size and time of change.

    A server's weights cannot be seen; its model's name has to do.

    Raises:
        OutageError: The server is out of reach.
    """
    if config.is_server:
        return {"model": await policy.model_name(), "tokenizer": config.tokenizer}
    folder = Path(config.policy)
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file():
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return {"path": config.policy.rstrip("/"), "files_sha256": digest.hexdigest()}


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

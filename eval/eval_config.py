"""Settings of ``atommem eval``, what they open, and exit statuses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from atommem.arguments import Parser, make, split_config
from atommem.config import PolicyConfig, check_least, check_probabilities, setting
from atommem.embedding import make_embedder
from atommem.environment import EnvironmentFactory, find_environment, make_factory
from atommem.envs.scoring.judge import judge_settings
from atommem.errors import ConfigError
from atommem.eval.methods import METHODS, check_method, make_method
from atommem.eval.methods.baseline import Method
from atommem.eval.methods.recorder import Setup
from atommem.policy.opening import model_folder, open_policy, policy_identity
from atommem.run import RunConfig, add_run_settings, find_stored, warn_of_other_prompts

EXIT_REFUSED = 2
EXIT_TOO_MANY_FAILED = 3
EXIT_BUDGET_SPENT = 4
EXIT_INTERRUPTED = 130
_KNOWN = ", ".join(METHODS)


@dataclass
class EvalConfig:
    """The tasks, the method, and the limits of an evaluation."""

    data: str = setting("", "Task file (`atommem data build`), or MemAgent's or LoCoMo's file.")
    output_dir: str = setting("", "Folder of records and traces; a partial run continues in it.")
    method: str = setting("atommem", f"Method that reads the task: {_KNOWN}; or MODULE:CLASS.")
    context_tokens: int = setting(
        32_768, "Longest prompt with completion; full_context cuts to it."
    )
    max_calls: int = setting(40, "Calls of tools in an episode; then it must answer.")
    yarn_factor: float | None = setting(None, "YaRN factor of the server, stated in the result.")
    limit: int | None = setting(None, "Only this many tasks, the first ones.")
    num_generations: int = setting(1, "Episodes of each task.")
    max_failed_fraction: float = setting(
        0.05, "Exit with status 3 if more than this fraction of episodes failed or overflowed."
    )

    def __post_init__(self) -> None:
        check_method(self.method)
        check_least(self, max_calls=1, yarn_factor=1, num_generations=1, limit=1)
        check_probabilities(self, "max_failed_fraction")


@dataclass(frozen=True)
class EvalRun:
    """One evaluation: a run, and what it is evaluated on."""

    config: EvalConfig
    run: RunConfig

    def __post_init__(self) -> None:
        tokens = self.run.sampling.max_completion_length
        if tokens >= self.config.context_tokens:
            raise ConfigError(
                f"max_completion_length={tokens}, context_tokens={self.config.context_tokens}: "
                "the context holds prompt and completion. Give a smaller max_completion_length."
            )

    def replace(self, values: Mapping[str, Any]) -> EvalRun:
        """Return this evaluation with other `values` of settings, checked like YAML."""
        checked = self.to_flat() | eval_parser(self.run.environment.environment).check(values)
        return EvalRun(make(EvalConfig, checked), RunConfig.from_flat(checked))

    def to_flat(self) -> dict[str, Any]:
        return {**asdict(self.config), **asdict(self.policy), **self.run.to_flat()}

    @property
    def models(self) -> str:
        """Key of the policy and embedder that it needs open."""
        return repr((self.policy, self.run.embedder))

    @property
    def policy(self) -> PolicyConfig:
        if self.run.policy is None:
            raise ConfigError("--policy is missing. Give a model folder or a server's URL.")
        return self.run.policy


def parse_arguments(argv: Sequence[str], settings: Mapping[str, Any] | None = None) -> EvalRun:
    """Read the command line of ``atommem eval``; `settings` are those of a suite."""
    argv, values = split_config(argv, "eval")
    values |= settings or {}
    stored = find_stored(argv, values)
    # Not the cached parser: reading changes its defaults.
    parsed = eval_parser.__wrapped__(stored["environment"]).read(argv, values, stored)
    config = make(EvalConfig, parsed)
    for name in ("data", "output_dir"):
        if not getattr(config, name) and name not in values:
            raise ConfigError(f"--{name} is missing. See atommem eval --help.")
    run = RunConfig.from_flat(parsed)
    warn_of_other_prompts(stored, run.memory)
    return EvalRun(config, run)


@cache
def eval_parser(environment: str) -> Parser:
    parser = Parser(
        "atommem eval",
        "Evaluate a policy on a task file. All settings can also stand in a YAML file: --config "
        "FILE, or a shipped NAME (atommem configs). Several evaluations with one report: --suite "
        "FILE|NAME, whose own flags `atommem eval --suite --help` shows.",
        usage="atommem eval --policy POLICY --data FILE --output_dir DIR [--SETTING]",
    )
    own = fields(find_environment(environment).config_class)  # the web has max_calls too
    parser.add_settings("evaluation", EvalConfig, leave_out=[item.name for item in own])
    add_run_settings(parser, environment)
    parser.set_defaults(seed=0)
    return parser


class EvalContext(AsyncExitStack):
    """Holds an open policy and embedder, and closes them.

    Opening others closes them first: two models may not fit. `slots` bound the episodes of all
    methods together; None bounds each by `max_in_flight`.
    """

    def __init__(self, slots: asyncio.Semaphore | None = None) -> None:
        super().__init__()
        self._slots = slots
        self._models = ""
        self._policy: Any = None
        self._embedder: Any = None
        self._factories: dict[str, EnvironmentFactory] = {}

    async def open(self, evaluation: EvalRun) -> tuple[Method, dict[str, Any]]:
        """Return the method, and the settings that its output folder must agree in."""
        config, run = evaluation.config, evaluation.run
        if self._models != evaluation.models:
            self._models, self._factories = "", {}
            await self.aclose()
            if not evaluation.policy.is_server:  # before the embedder: it may be out of reach
                model_folder("policy", evaluation.policy.policy[0])
            self._embedder = make_embedder(run.embedder)
            self.push_async_callback(self._embedder.close)
            self._policy = open_policy(evaluation.policy)
            self.push_async_callback(self._policy.close)
            self._models = evaluation.models
        key = repr(run.environment)
        if key not in self._factories:
            self._factories[key] = make_factory(run.environment, self._policy.tokenizer)
            self.push_async_callback(self._factories[key].close)
        factory = self._factories[key]
        setup = Setup(
            run=run,
            policy=self._policy,
            embedder=self._embedder,
            factory=factory,
            max_in_flight=self._slots or evaluation.policy.max_inflight_tasks,
            context_tokens=config.context_tokens,
            max_calls=config.max_calls,
            yarn_factor=config.yarn_factor,
        )
        tasks = asdict(run.environment) | judge_settings(run.environment) | factory.identity()
        for name in run.environment.operational:
            tasks.pop(name, None)
        settings = {
            "policy": await policy_identity(evaluation.policy, self._policy),
            "embedder": {**asdict(run.embedder), "embedder_url": None},  # servers may move
            "environment": tasks,
            "chat_template_kwargs": run.chat_template_kwargs,
            "method": {"name": config.method},
        }
        return make_method(config.method, setup), settings


def print_error(text: str) -> None:
    print(f"atommem eval: {text}", file=sys.stderr)


def print_interrupted(out: str | Path) -> int:
    """Print how to continue; returns the exit status."""
    finished = f"Every finished episode is in {out}; the same command continues there."
    print(f"\nInterrupted. {finished}", file=sys.stderr)
    return EXIT_INTERRUPTED

"""Settings of ``atommem eval``, and the policy, embedder and environments that they open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from atommem.arguments import Parser, make, split_config
from atommem.blocking import ended_by_ctrl_c
from atommem.config import (
    EmbedderConfig,
    PolicyConfig,
    check_choice,
    check_least,
    check_probabilities,
    setting,
)
from atommem.embedding.embedder import Embedder
from atommem.environment import make_environments
from atommem.envs.scoring.judge_config import judge_settings
from atommem.errors import ConfigError
from atommem.eval.methods import METHODS, make_method
from atommem.eval.methods.baseline import Method, Setup
from atommem.policy.opening import check_window, open_policy, policy_identity
from atommem.run import Checkpoint, RunConfig, add_run_settings, open_embedder


@dataclass
class EvalConfig:
    """The tasks, the method, and the limits of an evaluation."""

    data: str = setting("", "Task file (`atommem data build`), or MemAgent's or LoCoMo's file.")
    out: str = setting("", "Folder of records, traces and summary; a partial run continues in it.")
    method: str = setting("atommem", f"Method that reads the task: {', '.join(METHODS)}.")
    context_tokens: int = setting(
        32_768, "Longest prompt and completion together (full_context truncates to it)."
    )
    yarn_factor: float | None = setting(
        None, "YaRN factor of the server or model config, stated in the result."
    )
    limit: int | None = setting(None, "Only this many tasks, the first ones.")
    samples_per_task: int = setting(1, "Episodes of each task.")
    max_failed_fraction: float = setting(
        0.05, "Exit with status 3 if more than this fraction of episodes failed or overflowed."
    )
    budget_tokens: int | None = setting(
        None, "Start no episode after this many tokens of prompts and completions (status 4)."
    )

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_least(self, yarn_factor=1, samples_per_task=1, limit=1, budget_tokens=1)
        check_probabilities(self, "max_failed_fraction")


@dataclass(frozen=True)
class EvalRun:
    """One evaluation: a run, and what it is evaluated on.

    Raises:
        ConfigError: The settings do not fit together.
    """

    config: EvalConfig
    run: RunConfig

    def __post_init__(self) -> None:
        tokens = self.run.sampling.max_tokens
        if tokens >= self.config.context_tokens:
            raise ConfigError(
                f"max_tokens={tokens}, context_tokens={self.config.context_tokens}: the context "
                "holds prompt and completion. Give a smaller max_tokens."
            )
        check_window("max_tokens", tokens, self.policy.policy[0])

    def replace(self, values: Mapping[str, Any]) -> EvalRun:
        """Return this evaluation with other `values` of settings, checked like YAML.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        environment = self.run.environment.environment
        checked = self.to_flat() | eval_parser(environment).check(values)
        return EvalRun(make(EvalConfig, checked), RunConfig.from_flat(checked))

    def to_flat(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {**asdict(self.config), **asdict(self.policy), **self.run.to_flat()}

    @property
    def policy(self) -> PolicyConfig:
        """The policy, which every evaluation names."""
        if self.run.policy is None:
            raise ConfigError("--policy is missing. Give a model folder or a server's URL.")
        return self.run.policy


def parse_arguments(argv: Sequence[str], settings: Mapping[str, Any] | None = None) -> EvalRun:
    """Read the command line of ``atommem eval``.

    Args:
        argv: The command line.
        settings: Those of a suite, instead of a YAML file.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    argv, values = split_config(argv, "eval")
    values |= settings or {}
    checkpoint = Checkpoint.find(argv, values)
    # Not the cached parser: reading changes its defaults.
    parsed = eval_parser.__wrapped__(checkpoint.environment).read(argv, values, checkpoint.stored)
    config = make(EvalConfig, parsed)
    for name in ("data", "out"):
        if not getattr(config, name) and name not in values:
            raise ConfigError(f"--{name} is missing. See atommem eval --help.")
    return EvalRun(config, RunConfig.from_flat(parsed))


@cache
def eval_parser(environment: str) -> Parser:
    """Return the parser of evaluations in an environment."""
    parser = Parser(
        "atommem eval",
        "Evaluate a policy on a task file. All settings can also stand in a YAML file: --config "
        "FILE, or a shipped NAME (atommem configs). Several evaluations with one report: --suite "
        "FILE|NAME, whose own flags `atommem eval --suite --help` shows.",
        usage="atommem eval --policy POLICY --data FILE --out DIR [--SETTING VALUE ...]",
    )
    parser.add_settings("evaluation", EvalConfig)
    add_run_settings(parser, environment)
    parser.set_defaults(seed=0)
    return parser


class EvalContext:
    """Holds an open policy and embedder; a context manager that closes them.

    Opening another policy or embedder closes the previous one first: two models may not fit.

    Args:
        slots: Bounds the episodes of all methods together; None bounds each by `max_in_flight`.
    """

    def __init__(self, slots: asyncio.Semaphore | None = None) -> None:
        self._slots = slots
        self._policy: tuple[PolicyConfig, Any] | None = None
        self._embedder: tuple[EmbedderConfig, Embedder] | None = None
        self._environments: dict[str, Any] = {}
        self._policy_stack, self._embedder_stack = AsyncExitStack(), AsyncExitStack()

    async def __aenter__(self) -> EvalContext:
        return self

    async def __aexit__(self, *exception: object) -> None:
        async with self._embedder_stack, self._policy_stack:
            pass

    async def open(self, evaluation: EvalRun) -> tuple[Method, dict[str, Any]]:
        """Return the method, and the settings that its output folder must agree in.

        Raises:
            ConfigError: A setting is wrong, or a package is missing.
            PolicyError: The model or tokenizer cannot be loaded.
            OutageError: A server is unreachable.
        """
        config, run = evaluation.config, evaluation.run
        policy = await self._open_policy(evaluation.policy)
        key = repr(run.environment)
        if key not in self._environments:
            self._environments[key] = make_environments(run.environment, policy.tokenizer)
            self._policy_stack.push_async_callback(self._environments[key].close)
        environments = self._environments[key]
        setup = Setup(
            run=run,
            policy=policy,
            embedder=await self._open_embedder(run.embedder),
            environments=environments,
            max_in_flight=self._slots or evaluation.policy.max_in_flight,
            context_tokens=config.context_tokens,
            yarn_factor=config.yarn_factor,
        )
        values = {**asdict(run.environment), **judge_settings(run.environment)}
        values |= environments.identity()
        left_out = run.environment.operational
        settings = {
            "policy": await policy_identity(evaluation.policy, policy),
            "embedder": {**asdict(run.embedder), "embedder_url": None},  # servers may move
            "environment": {key: value for key, value in values.items() if key not in left_out},
            "chat_template_kwargs": run.chat_template_kwargs,
            "method": {"name": config.method},
        }
        return make_method(config.method, setup), settings

    async def _open_policy(self, config: PolicyConfig) -> Any:
        if self._policy is None or self._policy[0] != config:
            self._policy, self._environments = None, {}
            await self._policy_stack.aclose()
            with ended_by_ctrl_c():  # loading takes minutes
                policy = open_policy(config)
            self._policy_stack.push_async_callback(policy.close)
            self._policy = (config, policy)
        return self._policy[1]

    async def _open_embedder(self, config: EmbedderConfig) -> Embedder:
        if self._embedder is None or self._embedder[0] != config:
            self._embedder = None
            await self._embedder_stack.aclose()
            with ended_by_ctrl_c():
                self._embedder = (config, open_embedder(config))
            self._embedder_stack.push_async_callback(self._embedder[1].close)
        return self._embedder[1]

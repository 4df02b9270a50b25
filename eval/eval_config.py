"""Settings of ``atommem eval``: the run that is evaluated, and on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from atommem.arguments import Parser, make, split_config
from atommem.config import PolicyConfig, check_choice, check_least, check_probabilities, setting
from atommem.errors import ConfigError
from atommem.eval.budget import Budget
from atommem.eval.methods import METHODS
from atommem.policy.opening import check_window
from atommem.run import Checkpoint, RunConfig, add_run_settings


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
    budget_money: float | None = setting(
        None, "Start no episode after this cost, by the prices (status 4)."
    )
    prompt_price: float = setting(0.0, "Price of a million prompt tokens.")
    completion_price: float = setting(0.0, "Price of a million completion tokens.")

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_least(self, yarn_factor=1, samples_per_task=1, limit=1)
        check_probabilities(self, "max_failed_fraction")
        self.make_budget()

    def make_budget(self) -> Budget:
        """Make a budget with nothing spent."""
        return Budget(
            self.budget_tokens, self.budget_money, self.prompt_price, self.completion_price
        )


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
    parser = _make_parser(checkpoint.environment)
    parsed = parser.read(argv, values, checkpoint.stored)
    config = make(EvalConfig, parsed)
    for name in ("data", "out"):
        if not getattr(config, name) and name not in values:
            raise ConfigError(f"--{name} is missing. See atommem eval --help.")
    return EvalRun(config, RunConfig.from_flat(parsed))


@cache
def eval_parser(environment: str) -> Parser:
    """Return the parser that checks the settings of suites in an environment. Not for `read`."""
    return _make_parser(environment)


def _make_parser(environment: str) -> Parser:
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

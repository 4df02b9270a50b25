"""Settings of ``atommem eval``, and where they come from."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from atommem.command_line import SettingsParser, names_of, one_line
from atommem.config import EmbedderConfig, MemoryConfig, check_choice
from atommem.environment import EnvironmentConfig
from atommem.envs.checkpoint_settings import json_object, read_ahead
from atommem.errors import ConfigError
from atommem.eval.budget import Budget
from atommem.eval.methods import METHODS
from atommem.policy.contract import check_sampling
from atommem.policy.opening import API_HELP, PolicyChoice, check_window, is_server
from atommem.shipped import with_config_path

_CHECKPOINT_FIELDS = ("max_tokens", "chat_template_kwargs")


@dataclass
class EvalConfig:
    """What to evaluate, on what, and how completions are sampled."""

    policy: list[str] = field(
        metadata={
            "help": "A model folder (or hub name), the base URLs of one or more vLLM servers of a model (http...), or "
            "that of a chat server (--api chat)."
        }
    )
    data: str = field(
        metadata={"help": "Task file (`atommem data build`), MemAgent's or LoCoMo's."}
    )
    out: str = field(
        metadata={
            "help": "Folder for records, traces and summary; an interrupted run continues in it."
        }
    )
    method: str = field(
        default="atommem", metadata={"help": f"How the task is read: {', '.join(METHODS)}."}
    )
    context_tokens: int = field(
        default=32_768,
        metadata={"help": "Longest prompt and completion together (full_context cuts to it)."},
    )
    yarn_factor: float | None = field(
        default=None,
        metadata={
            "help": "Factor of YaRN that the server or model config applies; stated in the result."
        },
    )
    api: str = field(default="completions", metadata={"help": API_HELP})
    model: str | None = field(default=None, metadata={"help": "Name of the model on the server."})
    tokenizer: str | None = field(
        default=None, metadata={"help": "Tokenizer folder or hub name (server)."}
    )
    limit: int | None = field(default=None, metadata={"help": "Only the first so many tasks."})
    samples_per_task: int = field(default=1, metadata={"help": "Episodes of each task."})
    temperature: float = field(default=0.7, metadata={"help": "Sampling temperature; 0 is greedy."})
    top_p: float = field(default=1.0, metadata={"help": "Nucleus mass; 1 keeps everything."})
    top_k: int = field(default=0, metadata={"help": "Keep the k most likely tokens; 0 keeps all."})
    max_tokens: int = field(
        default=1024, metadata={"help": "Longest completion of a step, tokens."}
    )
    seed: int = field(
        default=0, metadata={"help": "Every request derives its own seed from this one."}
    )
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of the chat template, a JSON object: '{\"enable_thinking\": false}'."
        },
    )
    max_in_flight: int = field(
        default=64, metadata={"help": "Most episodes at the same time, on all servers."}
    )
    max_batch_tokens: int = field(
        default=65_536,
        metadata={
            "help": "Most tokens in one batch of a model folder: bounds the key-value cache."
        },
    )
    max_failed_fraction: float = field(
        default=0.05,
        metadata={
            "help": "Exit with status 3 when more than this fraction of the episodes failed, or overflowed."
        },
    )
    budget_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Start no episode after so many tokens of prompts and completions (status 4)."
        },
    )
    budget_money: float | None = field(
        default=None,
        metadata={"help": "Start no episode after so much money, by the prices (status 4)."},
    )
    prompt_price: float = field(default=0.0, metadata={"help": "Price of a million prompt tokens."})
    completion_price: float = field(
        default=0.0, metadata={"help": "Price of a million completion tokens."}
    )

    def __post_init__(self) -> None:
        if isinstance(self.policy, str):  # from a YAML file
            self.policy = [self.policy]
        check_choice("method", self.method, METHODS)
        if self.yarn_factor is not None and self.yarn_factor < 1:
            raise ConfigError(
                f"yarn_factor is {self.yarn_factor}: give 1 or more, or leave it unset."
            )
        for name in ("samples_per_task", "max_tokens", "max_in_flight", "max_batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give at least 1.")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(
                f"limit is {self.limit}: give at least 1, or leave it unset for all tasks."
            )
        if not 0 <= self.max_failed_fraction <= 1:
            raise ConfigError(
                f"max_failed_fraction is {self.max_failed_fraction}: give a number from 0 to 1."
            )
        check_sampling(self)
        if self.max_tokens >= self.context_tokens:
            raise ConfigError(
                f"max_tokens is {self.max_tokens} and context_tokens {self.context_tokens}, which is prompt and "
                "completion together: make max_tokens smaller."
            )
        _ = self.choice
        check_window("max_tokens", self.max_tokens, self.policy[0])
        self.make_budget()
        json_object("chat_template_kwargs", self.chat_template_kwargs)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`chat_template_kwargs`, whichever way it was given."""
        return json_object("chat_template_kwargs", self.chat_template_kwargs)

    @property
    def choice(self) -> PolicyChoice:
        """Which policy it is: evaluations that agree in it may share one.

        Raises:
            ConfigError: Its settings do not fit together.
        """
        names = tuple(self.policy)
        return PolicyChoice(
            names, self.api, self.model, self.tokenizer, self.max_in_flight, self.max_batch_tokens
        )

    @property
    def is_server(self) -> bool:
        """Whether `policy` is one or more URLs."""
        return is_server(self.policy)

    def make_budget(self) -> Budget:
        """The limits on spending, with nothing spent yet."""
        return Budget(
            self.budget_tokens, self.budget_money, self.prompt_price, self.completion_price
        )


Configs = tuple[EvalConfig, MemoryConfig, EmbedderConfig, EnvironmentConfig]


def parse_arguments(argv: Sequence[str], settings: Mapping[str, Any] | None = None) -> Configs:
    """Read the command line of ``atommem eval``.

    A flag wins over the YAML file (``--config``), that over the ``atommem_config.json`` of the model folder (the
    settings that it was trained with), that over the defaults.

    Args:
        argv: The command line.
        settings: What a suite says: in the place of the YAML file.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from trl import TrlParser

    class Parser(SettingsParser, TrlParser):
        """TRL's, with our help and our errors."""

    argv = with_config_path(argv, "eval")
    try:
        ahead = read_ahead(argv, "policy", settings)
        kinds: tuple[type, ...] = (
            EvalConfig,
            MemoryConfig,
            EmbedderConfig,
            ahead.environment.config_class,
        )
        titles = ("evaluation", "memory", "embedder", f"environment {ahead.environment.__name__}")
        parser = Parser(
            kinds,
            {title: names_of(kind) for title, kind in zip(titles, kinds, strict=True)},
            prog="atommem eval",
            description="Evaluate a policy on a task file. All flags can also be given in a YAML file: --config FILE, "
            "or the name of one of ours (`atommem configs`). Many that make one report: --suite FILE or NAME, "
            "whose own flags atommem eval --suite --help tells.",
        )
        stored = {name: ahead.stored[name] for name in _CHECKPOINT_FIELDS if name in ahead.stored}
        parser.set_defaults_with_config(**{**ahead.defaults, **stored, **(settings or {})})
        configs: Configs = parser.parse_args_and_config(argv)
    except ArgumentError as error:
        raise ConfigError(
            f"environment {ahead.environment.__name__} has a setting that this command has too ({error}): rename it."
        ) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{one_line(error)} (see atommem eval --help)") from error
    return configs

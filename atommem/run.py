"""One configuration of a run (flags, YAML, checkpoint), and the agent built from it.

Precedence: defaults < the checkpoint's ``atommem_config.json`` < YAML < flags.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from atommem import config
from atommem.arguments import Parser, find_flag, make
from atommem.config import EmbedderConfig, MemoryConfig, PolicyConfig, field_names
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder
from atommem.environment import (
    DEFAULT_ENVIRONMENT,
    EnvironmentConfig,
    EnvironmentFactory,
    find_environment,
    make_factory,
)
from atommem.errors import ConfigError
from atommem.policy.contract import Policy, Sampling
from atommem.policy.opening import model_folder, open_policy
from atommem.rollout import Agent


@dataclass(kw_only=True)
class RunConfig:
    """Everything that an agent is built from; `policy` is None if the caller brings it."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)
    environment: EnvironmentConfig = field(
        default_factory=lambda: find_environment(DEFAULT_ENVIRONMENT).config_class()
    )
    sampling: Sampling = field(default_factory=Sampling)
    policy: PolicyConfig | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_flat(cls, parsed: argparse.Namespace | Mapping[str, Any]) -> RunConfig:
        """Make it from validated values by name; ``policy`` may be missing."""
        values = parsed if isinstance(parsed, Mapping) else vars(parsed)
        environment = values.get("environment") or DEFAULT_ENVIRONMENT
        return cls(
            memory=make(MemoryConfig, values),
            embedder=make(EmbedderConfig, values),
            environment=make(find_environment(environment).config_class, values),
            sampling=make(Sampling, values),
            policy=make(PolicyConfig, values) if "policy" in values else None,
            chat_template_kwargs=values.get("chat_template_kwargs") or {},
        )

    def to_flat(self) -> dict[str, Any]:
        """Return all settings but the policy's by name, like ``atommem_config.json``."""
        parts = (self.memory, self.embedder, self.environment, self.sampling)
        values = {name: value for part in parts for name, value in asdict(part).items()}
        del values["affinity"]
        return values | {"chat_template_kwargs": self.chat_template_kwargs}


def find_stored(
    argv: Sequence[str], values: Mapping[str, Any], model_field: str = "policy"
) -> dict[str, Any]:
    """Return the settings stored with the model that flags or YAML name; see `stored_settings`."""

    def given(name: str) -> Any:
        return find_flag(argv, name) or values.get(name)

    model = given(model_field)
    if isinstance(model, list):
        model = next(iter(model), None)
    if model is not None and config.is_server([str(model)]):
        model = given("tokenizer")
    folder = model and config.shipped_policy(str(model))
    named = [name for name in CODE_SETTINGS if given(name)]
    return stored_settings(folder, given("environment"), named=named)


def stored_settings(
    folder: str | None,
    environment: str | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    named: Container[str] = (),
) -> dict[str, Any]:
    """Return the settings stored in a model's folder, or with a hub name, and `changes` on top.

    Among them is always the ``environment`` to use: the one given, stored, or the default.
    """
    found = config.load_config(folder) if folder else {}
    refuse_code(str(folder), found, named)
    found |= changes or {}
    if "max_tokens" in found:
        fix = f"max_completion_length now. Rename it in {config.CONFIG_FILE}"
        raise ConfigError(f"{folder}: its stored max_tokens is called {fix}.")
    name = environment or found.get("environment") or DEFAULT_ENVIRONMENT
    kinds = (MemoryConfig, EmbedderConfig, find_environment(name).config_class, Sampling)
    known = {field for kind in kinds for field in field_names(kind)} - {"affinity"}
    kept = {key: found[key] for key in found if key in known | {"chat_template_kwargs"}}
    return {**kept, "environment": name}


def warn_of_other_prompts(stored: Mapping[str, Any], memory: MemoryConfig) -> None:
    """Warn of settings that show a trained policy prompts unlike those of its training."""
    if "dialect" not in stored:
        return
    trained = MemoryConfig(**config.fields_of(MemoryConfig, stored))
    fixes = dict.fromkeys(("dialect", "templates", "layout"), "drop it")
    fixes = {name: fixes[name] for name in fixes if getattr(trained, name) != getattr(memory, name)}
    if memory.shows_capacity and not trained.shows_capacity:
        fixes["capacity"] = "capacity_notice=false hides it"
    for name, fix in fixes.items():
        problem = f"{name}={getattr(memory, name)}: the policy's training had no such prompts"
        warnings.warn(f"{problem}: {fix}.", stacklevel=2)


CODE_SETTINGS = ("environment", "retention", "admission", "tools", "reward")
"""Settings that may name an object of a module, which is then imported."""


def refuse_code(folder: str, stored: dict[str, Any], named: Container[str]) -> None:
    """Refuse modules that settings of a folder name, except in settings that the user names.

    A folder may be anybody's, and so may the files of the current folder. Entry points are code
    that the user has installed. A reward is left out instead: asking a policy does without.
    """
    if ":" in str(stored.get("reward")) and "reward" not in named:
        text = f"{folder}: its reward={stored.pop('reward')} is code, and not loaded"
        warnings.warn(f"{text}. To train or eval with it give --reward.", stacklevel=2)
    for name in CODE_SETTINGS:
        value = stored.get(name) or ()
        values = [value] if isinstance(value, str) else value
        if name not in named and any(":" in str(item).partition("(")[0] for item in values):
            text = f"{folder} names code to run: {name}={' '.join(values)}"
            raise ConfigError(f"{text}. If you trust it, give {name} yourself.")


def add_run_settings(
    parser: Parser, environment: str, *, policy: bool = True, scored: bool = True
) -> None:
    """Add the flags of a run; the help of one that is not `scored` leaves out what scores it."""
    if policy:
        parser.add_settings("policy", PolicyConfig)
    parser.add_settings("memory (defaults: as stored with the policy)", MemoryConfig)
    parser.add_settings("embedder", EmbedderConfig)
    parser.add_settings("sampling", Sampling, leave_out=["affinity"])
    config_class = find_environment(environment).config_class
    check_setting_names(environment, config_class, parser.setting_names())
    hidden = r"\Z" if scored else "reward|judge_|step_cost"
    parser.add_settings(f"environment {environment}", config_class, hide=hidden)
    parser.add_argument(
        "--chat_template_kwargs",
        type=dict[str, Any] | None,
        metavar="JSON",
        help="Arguments of the chat template: '{\"enable_thinking\": false}'.",
    )


def check_setting_names(environment: str, config_class: type, taken: Container[str]) -> None:
    """Raise ConfigError if an environment's setting has the name of another one of a command."""
    for name in field_names(config_class):
        if name in taken:
            problem = f"its setting {name} is one of this command too. Rename it."
            raise ConfigError(f"environment={environment}: {problem}")


def make_run(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> RunConfig:
    """Make a `RunConfig` without a policy from settings by name, on top of stored ones."""
    parser = Parser("settings")
    add_run_settings(parser, stored["environment"], policy=False)
    return RunConfig.from_flat(parser.read([], settings, stored))


def build_agent(
    run: RunConfig,
    policy: Policy,
    *,
    tokenizer: Any = None,
    embedder: Embedder | None = None,
    factory: EnvironmentFactory | None = None,
    **options: Any,
) -> Agent:
    """Build the agent of a run: for training, evaluation, serving, `atommem.Memory` and checks.

    Unset, `tokenizer` is the policy's, and `embedder` and `factory` are those that `run` describes.
    `options` are ``encode_threads`` and ``keep_prompts`` of `Agent`.
    """
    tokenizer = getattr(policy, "tokenizer", None) if tokenizer is None else tokenizer
    if tokenizer is None:
        raise ConfigError(f"policy={type(policy).__name__}: has no tokenizer. Give one.")
    return Agent(
        policy=policy,
        embedder=make_embedder(run.embedder) if embedder is None else embedder,
        tokenizer=tokenizer,
        factory=factory or make_factory(run.environment, tokenizer),
        memory=run.memory,
        sampling=run.sampling,
        chat_template_kwargs=run.chat_template_kwargs,
        **options,
    )


@dataclass
class Runtime:
    """An open policy with its embedder, environment and settings, shared by memories and forks.

    `given` are the settings that the user named; a saved memory keeps them.
    """

    agent: Agent
    run: RunConfig
    given: dict[str, Any]
    closed: bool = False

    @classmethod
    def open(
        cls,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        tokenizer: Any = None,
        embedder: str | Embedder | None = None,
        stored: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Runtime:
        """Open a policy and its embedder; arguments as of `atommem.api.AsyncMemory`.

        `stored` replaces settings stored with the policy, name by name.
        """
        opening = {name: given.pop(name) for name in field_names(PolicyConfig) if name in given}
        if base := opening.get("base_model"):
            opening["base_model"] = _absolute(base)
        opened: Any = policy
        names = [policy] if isinstance(policy, (str, os.PathLike)) else policy
        choice = None
        if isinstance(names, (list, tuple)):
            if tokenizer is not None:
                opening["tokenizer"], tokenizer = _absolute(tokenizer), None
            choice = PolicyConfig([_absolute(name) for name in names], **opening)
        if isinstance(embedder, str):
            given["embedder"], embedder = embedder, None
        folder = choice.settings_folder if choice else None
        stored = stored_settings(folder, given.get("environment"), stored, named=given)
        run = replace(make_run(given, stored), policy=choice)
        if choice is not None:
            if not choice.is_server:
                model_folder("policy", choice.policy[0])
            if embedder is None:  # before weights are loaded: it may be out of reach
                embedder = make_embedder(run.embedder)
            opened = open_policy(choice)
        run = _fitted(run, getattr(opened, "context_length", None), {**stored, **given})
        agent = build_agent(run, opened, tokenizer=tokenizer, embedder=embedder)
        settings = run.to_flat()
        return cls(agent, run, {name: settings[name] for name in given})

    def check_open(self) -> None:
        if self.closed:
            raise ConfigError("this memory is closed. Memory.load opens a saved one.")

    async def close(self) -> None:
        self.closed = True
        await self.agent.factory.close()
        await self.agent.policy.close()
        await self.agent.embedder.close()


def _fitted(run: RunConfig, context: int | None, chosen: Container[str]) -> RunConfig:
    """Return `run` with chunks of at most half of the policy's context, unless they were chosen."""
    tokens = getattr(run.environment, "chunk_tokens", 0)
    if context is None or tokens <= context // 2 or "chunk_tokens" in chosen:
        return run
    shorter: Any = {"chunk_tokens": context // 2}
    return replace(run, environment=replace(run.environment, **shorter))


def _absolute(name: str | os.PathLike[str]) -> str:
    """Return a folder as an absolute path, so that a saved memory finds it."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else os.fspath(name)

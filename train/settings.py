"""The settings of a run: read from the command line of a stage, its YAML file and the folder of its model."""

from __future__ import annotations

import math
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from inspect import get_annotations
from typing import Any, NamedTuple

import yaml
from trl import ModelConfig, TrlParser

from atommem.command_line import SettingsParser, check_writable, names_of, one_line
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import EnvironmentConfig
from atommem.envs.checkpoint_settings import Ahead, read_ahead
from atommem.errors import ConfigError
from atommem.policy.opening import check_window, model_folder
from atommem.train.checkpoints import GenerationSettings
from atommem.train.dry_run_config import DryRunConfig

STAGES = ("grpo", "sft", "async")
_MODEL = (
    "data",
    "eval_data",
    "model_name_or_path",
    "model_revision",
    "use_peft",
    "lora_r",
    "lora_alpha",
    "output_dir",
)
_UPDATE = ("max_steps", "num_train_epochs", "learning_rate", "beta", "seed")
_ROLLOUTS = (
    *(
        "temperature",
        "max_completion_length",
        "chat_template_kwargs",
        "max_in_flight",
        "max_inflight_tasks",
    ),
    *(
        "carried_groups",
        "dynamic_sampling",
        "episode_max_tokens",
        "episode_max_seconds",
        "max_failed_fraction",
    ),
    *(
        "rollout_batch_size",
        "rollout_batch_tokens",
        "use_vllm",
        "vllm_mode",
        "vllm_server_base_url",
    ),
    *("vllm_engine_kwargs", "max_staleness"),
)
_SAVING = (
    *("save_steps", "save_total_limit", "resume_from_checkpoint", "logging_steps", "eval_strategy"),
    *("report_to", "project", "run_name", "push_to_hub", "hub_model_id", "hub_private_repo"),
    *(
        "eval_steps",
        "eval_temperature",
        "num_generations_eval",
        "log_episodes",
        "log_episodes_steps",
        "save_traces",
    ),
    *("dry_run", "dry_run_device"),
)


class Settings(NamedTuple):
    """What a stage runs with; `args` are a `TrainConfig`, `ColdStartConfig` or `AsyncTrainConfig`."""

    args: Any
    memory: MemoryConfig
    embedder: EmbedderConfig
    environment: EnvironmentConfig
    model: ModelConfig

    @property
    def stored(self) -> list[Any]:
        """What is kept with the model, in its ``atommem_config.json``."""
        generation = GenerationSettings(
            self.args.max_completion_length or 1024, self.args.template_kwargs
        )
        return [self.memory, self.embedder, self.environment, generation]


def parse(
    stage: str, argv: Sequence[str], adapt: Callable[[type], type] = lambda config: config
) -> Settings:
    """Read the command line of a stage; in `sft`, memory and environment say what prompts look like.

    Args:
        stage: One of `STAGES`.
        argv: Its flags.
        adapt: Makes the class that is read in the place of the stage's own.

    Raises:
        AtomMemError: A setting is unknown or out of range, or a file cannot be read.
    """

    class Parser(SettingsParser, TrlParser):
        """TRL's, with our help and our errors."""

    config_class, model_class = _classes(stage)
    config_class = adapt(config_class)
    try:
        ahead = read_ahead(argv, "model_name_or_path")
        own = ahead.environment.config_class
        parser = Parser(
            (config_class, MemoryConfig, EmbedderConfig, own, model_class, DryRunConfig),
            _groups(config_class, own),
            prog=f"atommem train {stage}",
            description="All settings can also be given in a YAML file: --config FILE or NAME (atommem configs).",
        )
        parser.set_defaults_with_config(**folder_defaults(ahead))
        *found, _ = parser.parse_args_and_config(list(argv))
    except ArgumentError as error:
        raise ConfigError(
            f"environment {ahead.environment.__name__} has a setting that this command has too ({error}): rename it."
        ) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{one_line(error)} (see atommem train {stage} --help)") from error
    settings = Settings(*found)
    if not settings.args.data:
        raise ConfigError(f"data is not set: give --data FILE (see atommem train {stage} --help).")
    if settings.model.model_name_or_path is None:
        raise ConfigError("model_name_or_path is not set: give a model folder or hub name.")
    _check(settings.args, settings.model.model_name_or_path)
    return settings


def _classes(stage: str) -> tuple[type, type]:
    """The configuration of a stage, and that of its model."""
    if stage == "async":
        from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig

        return AsyncTrainConfig, AsyncModelConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

    return ColdStartConfig if stage == "sft" else TrainConfig, ModelConfig


def _check(args: Any, model: str) -> None:
    """What is wrong whatever the trainer, before anything is loaded or made.

    Raises:
        AtomMemError: A value is out of range, there is no such model folder, or the output folder cannot be written.
    """
    if not 0 <= args.learning_rate < math.inf:
        raise ConfigError(f"learning_rate is {args.learning_rate}: give 0 or more.")
    if not 0 < getattr(args, "temperature", 1.0) < math.inf:
        raise ConfigError(
            f"temperature is {args.temperature}: give a number above 0, for greedy episodes are all one."
        )
    length = args.max_completion_length
    if length is not None and length < 1:
        raise ConfigError(f"max_completion_length is {length}: give at least 1.")
    model_folder("model_name_or_path", model)
    if length is not None:
        check_window("max_completion_length", length, model)
    check_writable("output_dir", args.output_dir, folder=True)


def _groups(config_class: type, environment: type) -> dict[str, Sequence[str]]:
    """The settings that ``--help`` shows, by title: those of the model that most runs give, and all that are ours."""
    kinds = (kind for kind in config_class.__mro__ if kind.__module__.startswith("atommem."))
    ours = dict.fromkeys(name for kind in kinds for name in get_annotations(kind))
    elsewhere = {*_MODEL, *_UPDATE, *_ROLLOUTS, *_SAVING}
    return {
        "data and model": _MODEL,
        "memory": names_of(MemoryConfig),
        "environment": names_of(environment),
        "embedder": names_of(EmbedderConfig),
        "GRPO" if "num_generations" in ours else "training": [
            *_UPDATE,
            *(name for name in ours if name not in elsewhere),
        ],
        "rollouts": _ROLLOUTS,
        "saving, watching, resuming": _SAVING,
    }


def folder_defaults(ahead: Ahead) -> dict[str, Any]:
    """The settings that the model folder was trained with, under the names that they have here."""
    found = dict(ahead.defaults)
    if "max_tokens" in ahead.stored:
        found["max_completion_length"] = ahead.stored["max_tokens"]
    if ahead.stored.get("chat_template_kwargs"):
        found["chat_template_kwargs"] = ahead.stored["chat_template_kwargs"]
    return found

"""``atommem train``: cold start and GRPO from YAML files and flags."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from inspect import get_annotations
from typing import TYPE_CHECKING, Any

import yaml

from atommem.command_line import CommandParser, SettingsParser, check_writable, names_of, one_line
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import EnvironmentConfig
from atommem.envs.checkpoint_settings import Ahead, read_ahead
from atommem.errors import ConfigError
from atommem.policy.opening import check_window, model_folder
from atommem.shipped import with_config_path

if TYPE_CHECKING:
    from trl import ModelConfig

    from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

STAGES = ("grpo", "sft", "async")
_RESUME = ["--resume_from_checkpoint", "auto"]
_MODEL = ("data", "eval_data", "model_name_or_path", "model_revision", "use_peft", "lora_r", "lora_alpha", "output_dir")
_UPDATE = ("max_steps", "num_train_epochs", "learning_rate", "beta", "seed")
_ROLLOUTS = (
    *("temperature", "max_completion_length", "chat_template_kwargs", "max_in_flight", "max_inflight_tasks"),
    *("carried_groups", "dynamic_sampling", "episode_max_tokens", "episode_max_seconds", "max_failed_fraction"),
    *("rollout_batch_size", "rollout_batch_tokens", "use_vllm", "vllm_mode", "vllm_server_base_url"),
    *("vllm_engine_kwargs", "max_staleness"),
)
_SAVING = (
    *("save_steps", "save_total_limit", "resume_from_checkpoint", "logging_steps", "eval_strategy"),
    *("report_to", "project", "run_name", "push_to_hub", "hub_model_id", "hub_private_repo"),
    *("eval_steps", "eval_temperature", "num_generations_eval", "log_episodes", "log_episodes_steps", "save_traces"),
    *("dry_run", "dry_run_device"),
)
USAGE = """usage: atommem train [grpo|sft|async] [--config FILE|NAME] [--FIELD VALUE ...]

stages:
  grpo   reinforcement learning on a task file (the default)
  sft    cold start: supervised fine-tuning on traces
  async  as grpo, but episodes are sampled while the trainer steps
of a run:
  plot RUN     scores, action rates and store size over training (RUN: its output folder)
  replay DIR   repeat the update that stopped a GRPO run on the episodes that it had (DIR: failed/step-N)
  export CHECKPOINT --out DIR   a model folder of any checkpoint, with a card; needs no GPU

`atommem configs` lists the names of recipes. A flag wins over the YAML file, that over the atommem_config.json
of the model folder (a cold-started model keeps its memory settings), that over the defaults. --resume continues
from the last checkpoint in --output_dir, if there is one. --dry_run checks every setting and estimates memory and
hours, without weights or GPU. `atommem train STAGE --help` lists our settings, --help-all TRL's too.

exit status: 0 done; 75 stopped by SIGTERM, SIGUSR1 or Ctrl-C, --resume continues; 2 a setting is wrong, or the
run cannot go on (the message says why and where its data is)."""


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem train``.

    Raises:
        AtomMemError: A setting or a file is wrong.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]) or not argv:
        print(USAGE)
        return 0 if argv else 2
    stage, arguments = (argv[0], argv[1:]) if not argv[0].startswith("-") else ("grpo", argv)
    if stage == "plot":
        from atommem.train.watch.plot_training import main as plot

        return plot(arguments)
    if stage == "export":
        from atommem.train.resume.export import main as export

        return export(arguments)
    if stage == "replay":
        from atommem.train.loops.replay import main as replay

        return replay(arguments, parse_grpo)
    if stage not in STAGES:
        raise ConfigError(f"unknown stage {stage!r}: give one of {', '.join(STAGES)} (see atommem train --help).")
    arguments = with_config_path(arguments, "train")
    _check_model(arguments)
    if _dry_run(stage, arguments):
        return 0
    # One word for what a requeued job wants, in a form that a YAML file can say as well.
    arguments = [part for item in arguments for part in (_RESUME if item == "--resume" else [item])]
    from atommem.train.resume.interrupts import EXIT_INTERRUPTED, TrainingInterrupted

    try:
        _run(stage, arguments)
    except TrainingInterrupted as interrupted:
        print(f"atommem train: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _check_model(arguments: Sequence[str]) -> None:
    """The commonest mistake, a path where no model lies, is told before the seconds that TRL takes to be imported."""
    finder = CommandParser(add_help=False)
    finder.add_argument("--model_name_or_path", nargs="?")
    named = finder.parse_known_args(list(arguments))[0].model_name_or_path
    if named is not None and not {"-h", "--help", "--help-all", "--dry_run"} & set(arguments):
        model_folder("model_name_or_path", named)


def _run(stage: str, arguments: Sequence[str]) -> None:
    if stage == "sft":
        from atommem.train.loops.sft import run_sft

        run_sft(*parse_sft(arguments))
    elif stage == "async":
        from atommem.train.loops.asynchronous.async_run import run_async

        run_async(*parse_async(arguments))
    else:
        from atommem.train.loops.grpo import run_grpo

        run_grpo(*parse_grpo(arguments), command=arguments)


def _dry_run(stage: str, argv: Sequence[str]) -> bool:
    """Make, print and write a plan of the run if ``--dry_run`` asks for it."""
    from atommem.train.dry_run.dry_run_config import dry_run_settings

    settings = dry_run_settings(argv)
    if not settings.dry_run:
        return False
    from atommem.train.dry_run.plan import make_plan
    from atommem.train.dry_run.plan_text import print_plan, write_plan

    config_class, *model_class = _config_classes(stage)
    ahead = read_ahead(argv, "model_name_or_path")
    plan = make_plan(
        stage,
        argv,
        settings,
        lambda argv, adapt: _parse(argv, adapt(config_class), stage, *model_class),
        _defaults(ahead) if ahead.stored else {},
    )
    print_plan(plan)
    if settings.dry_run_json:
        write_plan(plan, settings.dry_run_json)
    return True


def _config_classes(stage: str) -> tuple[type, ...]:
    """The stage's config class, and that of its model where it is not TRL's."""
    if stage == "async":
        from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig

        return AsyncTrainConfig, AsyncModelConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

    return (ColdStartConfig if stage == "sft" else TrainConfig,)


def parse_grpo(argv: Sequence[str]) -> tuple[TrainConfig, MemoryConfig, EmbedderConfig, EnvironmentConfig, ModelConfig]:
    """Read the command line of the stage ``grpo``.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.train_config import TrainConfig

    args, memory, embedder, environment, model = _parse(argv, TrainConfig, "grpo")
    return args, memory, embedder, environment, model


def parse_sft(
    argv: Sequence[str],
) -> tuple[ColdStartConfig, MemoryConfig, EmbedderConfig, EnvironmentConfig, ModelConfig]:
    """Read the command line of the stage ``sft``; memory settings say what prompts look like.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.train_config import ColdStartConfig

    args, memory, embedder, environment, model = _parse(argv, ColdStartConfig, "sft")
    return args, memory, embedder, environment, model


def parse_async(
    argv: Sequence[str],
) -> tuple[AsyncTrainConfig, MemoryConfig, EmbedderConfig, EnvironmentConfig, AsyncModelConfig]:
    """Read the command line of the stage ``async``.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig

    args, memory, embedder, environment, model = _parse(argv, AsyncTrainConfig, "async", AsyncModelConfig)
    return args, memory, embedder, environment, model


def _parse(argv: Sequence[str], config_class: type, stage: str, model_class: type | None = None) -> tuple[Any, ...]:
    from trl import ModelConfig, TrlParser

    from atommem.train.dry_run.dry_run_config import DryRunConfig

    class Parser(SettingsParser, TrlParser):
        """TRL's, with our help and our errors."""

    try:
        ahead = read_ahead(argv, "model_name_or_path")
        own = ahead.environment.config_class
        parser = Parser(
            (config_class, MemoryConfig, EmbedderConfig, own, model_class or ModelConfig, DryRunConfig),
            _groups(config_class, own),
            prog=f"atommem train {stage}",
            description="All settings can also be given in a YAML file: --config FILE or NAME (atommem configs).",
        )
        parser.set_defaults_with_config(**_defaults(ahead))
        args, *others, _ = parser.parse_args_and_config(list(argv))
    except ArgumentError as error:
        raise ConfigError(
            f"environment {ahead.environment.__name__} has a setting that this command has too ({error}): rename it."
        ) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{one_line(error)} (see atommem train {stage} --help)") from error
    if not args.data:
        raise ConfigError(f"data is not set: give --data FILE (see atommem train {stage} --help).")
    if others[-1].model_name_or_path is None:
        raise ConfigError("model_name_or_path is not set: give a model folder or hub name.")
    _check(args, others[-1].model_name_or_path)
    return (args, *others)


def _check(args: Any, model: str) -> None:
    """What is wrong whatever the trainer, before anything is loaded or made.

    Raises:
        AtomMemError: A value is out of range, there is no such model folder, or the output folder cannot be written.
    """
    if not 0 <= args.learning_rate < math.inf:
        raise ConfigError(f"learning_rate is {args.learning_rate}: give 0 or more.")
    if not 0 < getattr(args, "temperature", 1.0) < math.inf:
        raise ConfigError(f"temperature is {args.temperature}: give a number above 0, for greedy episodes are all one.")
    length = args.max_completion_length
    if length is not None and length < 1:
        raise ConfigError(f"max_completion_length is {length}: give at least 1.")
    model_folder("model_name_or_path", model)
    if length is not None:
        check_window("max_completion_length", length, model)
    check_writable("output_dir", args.output_dir, folder=True)


def _groups(config_class: type, environment: type) -> dict[str, Sequence[str]]:
    """The settings that ``--help`` shows, by title: those of the model that most runs give, and all that are ours."""
    ours = dict.fromkeys(name for kind in config_class.__mro__ if _is_ours(kind) for name in get_annotations(kind))
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


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("atommem.")


def _defaults(ahead: Ahead) -> dict[str, Any]:
    """The settings that the model folder was trained with, under the names that they have here."""
    found = dict(ahead.defaults)
    if "max_tokens" in ahead.stored:
        found["max_completion_length"] = ahead.stored["max_tokens"]
    if ahead.stored.get("chat_template_kwargs"):
        found["chat_template_kwargs"] = ahead.stored["chat_template_kwargs"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())

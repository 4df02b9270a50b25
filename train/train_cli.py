"""``atommem train``: cold start and GRPO from YAML files and flags."""

from __future__ import annotations

import sys
from argparse import ArgumentError
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import yaml

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import EnvironmentConfig
from atommem.envs.checkpoint_settings import Ahead, read_ahead
from atommem.errors import ConfigError
from atommem.shipped import with_config_path

if TYPE_CHECKING:
    from trl import ModelConfig

    from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

STAGES = ("grpo", "sft", "async")
_RESUME = ["--resume_from_checkpoint", "auto"]
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
hours, without weights or GPU. `atommem train STAGE --help` lists all fields.

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

    try:
        ahead = read_ahead(argv, "model_name_or_path")
        own = ahead.environment.config_class
        parser = TrlParser(
            (config_class, MemoryConfig, EmbedderConfig, own, model_class or ModelConfig, DryRunConfig),
            prog=f"atommem train {stage}",
            description="All fields can also be given in a YAML file: --config FILE or NAME (atommem configs).",
            allow_abbrev=False,
        )
        parser.set_defaults_with_config(**_defaults(ahead))
        args, *others, _ = parser.parse_args_and_config(list(argv))
    except ArgumentError as error:
        raise ConfigError(
            f"environment {ahead.environment.__name__} has a setting that this command has too ({error}): rename it."
        ) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{error} (see atommem train {stage} --help)") from error
    if not args.data:
        raise ConfigError(f"data is not set: give --data FILE (see atommem train {stage} --help).")
    if others[-1].model_name_or_path is None:
        raise ConfigError("model_name_or_path is not set: give a model folder or hub name.")
    return (args, *others)


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

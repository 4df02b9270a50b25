"""``atommem train``: cold start and GRPO from YAML files and flags."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.envs.checkpoint_settings import stored_settings
from atommem.envs.longdoc.environment import LongDocConfig
from atommem.errors import ConfigError
from atommem.shipped import with_config_path

if TYPE_CHECKING:
    from trl import ModelConfig

    from atommem.train.loops.asynchronous.async_config import AsyncModelConfig, AsyncTrainConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

STAGES = ("grpo", "sft", "async")
_REPORTERS = ("wandb", "trackio", "tensorboard")
_WANDB_RUN = "wandb_run_id"
_RESUME = ["--resume_from_checkpoint", "auto"]
USAGE = """usage: atommem train [grpo|sft|async] [--config FILE|NAME] [--FIELD VALUE ...]

stages:
  grpo   reinforcement learning on a task file (the default)
  sft    cold start: supervised fine-tuning on traces
  async  as grpo, but episodes are sampled while the trainer steps
of a run:
  plot RUN     scores, action rates and store size over training (RUN: its output folder)
  replay DIR   repeat the update that stopped a GRPO run on the episodes that it had (DIR: failed/step-N)

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
    if stage == "replay":
        from atommem.train.loops.replay import main as replay

        return replay(arguments)
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
    plan = make_plan(
        stage,
        argv,
        settings,
        lambda argv, adapt: _parse(argv, adapt(config_class), stage, *model_class),
        _model_settings(argv),
    )
    print_plan(plan)
    if settings.dry_run_json:
        write_plan(plan, settings.dry_run_json)
    return True


def _config_classes(stage: str) -> tuple[type, ...]:
    """The stage's config class, and that of its model where it is not TRL's."""
    if stage == "async":
        from atommem.train.loops.asynchronous.async_config import AsyncModelConfig, AsyncTrainConfig

        return AsyncTrainConfig, AsyncModelConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

    return (ColdStartConfig if stage == "sft" else TrainConfig,)


def parse_grpo(argv: Sequence[str]) -> tuple[TrainConfig, MemoryConfig, EmbedderConfig, LongDocConfig, ModelConfig]:
    """Read the command line of the stage ``grpo``.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.train_config import TrainConfig

    args, memory, embedder, environment, model = _parse(argv, TrainConfig, "grpo")
    return args, memory, embedder, environment, model


def parse_sft(argv: Sequence[str]) -> tuple[ColdStartConfig, MemoryConfig, EmbedderConfig, LongDocConfig, ModelConfig]:
    """Read the command line of the stage ``sft``; memory settings say what prompts look like.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.train_config import ColdStartConfig

    args, memory, embedder, environment, model = _parse(argv, ColdStartConfig, "sft")
    return args, memory, embedder, environment, model


def parse_async(
    argv: Sequence[str],
) -> tuple[AsyncTrainConfig, MemoryConfig, EmbedderConfig, LongDocConfig, AsyncModelConfig]:
    """Read the command line of the stage ``async``.

    Raises:
        ConfigError: A setting is unknown or out of range, or a file cannot be read.
    """
    from atommem.train.loops.asynchronous.async_config import AsyncModelConfig, AsyncTrainConfig

    args, memory, embedder, environment, model = _parse(argv, AsyncTrainConfig, "async", AsyncModelConfig)
    return args, memory, embedder, environment, model


def run_sft(
    args: ColdStartConfig,
    memory: MemoryConfig,
    embedder_config: EmbedderConfig,
    environment: LongDocConfig,
    model_config: ModelConfig,
) -> Path:
    """Fine-tune on traces and save the model; returns its folder."""
    from atommem.train.loops.demonstrations import trace_demonstrations
    from atommem.train.loops.models import load_tokenizer, model_arguments
    from atommem.train.loops.sft import make_sft_trainer, sft_dataset
    from atommem.train.resume.checkpoint import GenerationSettings, resume_folder, save_final
    from atommem.train.watch.callbacks import SFT_COLUMNS, use_console

    prepare_reporters(args)
    tokenizer = load_tokenizer(model_config)
    rows = trace_demonstrations(args.data, tokenizer, memory, args.min_reward, args.template_kwargs)
    resume = resume_folder(args.resume_from_checkpoint, args.output_dir, memory)
    settings = [
        memory,
        embedder_config,
        environment,
        GenerationSettings(args.max_completion_length, args.template_kwargs),
    ]
    trainer = make_sft_trainer(
        args=args,
        dataset=sft_dataset(rows, args.max_length),
        tokenizer=tokenizer,
        settings=settings,
        **model_arguments(model_config, args),
    )
    use_console(trainer, SFT_COLUMNS)
    trainer.train(resume_from_checkpoint=resume)
    return finish(trainer, save_final(trainer, settings))


def finish(trainer: Any, folder: Path) -> Path:
    """Say where the model lies; returns the folder."""
    trainer.accelerator.print(f"saved to {folder}; evaluate it: atommem eval --policy {folder} --data FILE --out DIR")
    return folder


def _parse(argv: Sequence[str], config_class: type, stage: str, model_class: type | None = None) -> tuple[Any, ...]:
    from trl import ModelConfig, TrlParser

    from atommem.train.dry_run.dry_run_config import DryRunConfig

    parser = TrlParser(
        (config_class, MemoryConfig, EmbedderConfig, LongDocConfig, model_class or ModelConfig, DryRunConfig),
        prog=f"atommem train {stage}",
        description="All fields can also be given in a YAML file: --config FILE or NAME (atommem configs).",
        allow_abbrev=False,
    )
    try:
        parser.set_defaults_with_config(**_model_settings(argv))
        args, *others, _ = parser.parse_args_and_config(list(argv))
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{error} (see atommem train {stage} --help)") from error
    if not args.data:
        raise ConfigError(f"data is not set: give --data FILE (see atommem train {stage} --help).")
    if others[-1].model_name_or_path is None:
        raise ConfigError("model_name_or_path is not set: give a model folder or hub name.")
    return (args, *others)


def prepare_reporters(args: Any) -> None:
    """Check that what ``report_to`` names is installed, and keep wandb's files in the output folder.

    Without an account wandb would ask for one, and wait: it runs offline; ``WANDB_MODE=online`` in the environment
    sends them. A run that is resumed goes on in its run of wandb, whose id lies in the output folder.

    Raises:
        ConfigError: A service is not installed.
    """
    for name in args.report_to:
        if name in _REPORTERS and find_spec(name) is None:
            raise ConfigError(f"report_to names {name}, which is not installed: pip install {name}, or leave it out.")
    if "wandb" in args.report_to:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_DIR", str(args.output_dir))
        os.environ.setdefault("WANDB_RESUME", "allow")
        os.environ.setdefault("WANDB_RUN_ID", _wandb_run(args))


def _wandb_run(args: Any) -> str:
    """The id of this run in wandb: that of the run that is resumed, or a new one."""
    path = Path(args.output_dir) / _WANDB_RUN
    if args.resume_from_checkpoint not in (None, "false") and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    run = secrets.token_hex(4)
    if args.process_index == 0:  # the one that reports
        path.write_text(run + "\n", encoding="utf-8")
    return run


def _model_settings(argv: Sequence[str]) -> dict[str, Any]:
    """The settings that the model folder was trained with, under the names that they have here."""
    found, stored = stored_settings(argv, "model_name_or_path")
    if "max_tokens" in stored:
        found["max_completion_length"] = stored["max_tokens"]
    if stored.get("chat_template_kwargs"):
        found["chat_template_kwargs"] = stored["chat_template_kwargs"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())

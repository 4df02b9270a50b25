"""What every stage of ``atommem train`` does around its trainer: from checked settings to a saved model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from httpx import HTTPError
from transformers.trainer_utils import SaveStrategy

from atommem.environment import find_environment
from atommem.episode import Episode
from atommem.errors import format_error
from atommem.train.resume.checkpoint import resume_folder, save_final
from atommem.train.resume.faults import CheckpointError
from atommem.train.rollout.rollout_trainer import EpisodesHook
from atommem.train.settings import Settings
from atommem.train.watch.callbacks import Column, use_console
from atommem.train.watch.reporters import prepare_reporters, run_facts
from atommem.train.watch.sample_episodes import FOLDER, SampleEpisodes, trace_writer

_LEAST_SHUTDOWN = 300
"""Seconds that processes should have for their checkpoint when their launcher is told to end."""


def launch(settings: Settings, make_trainer: Callable[[], Any], columns: Sequence[Column]) -> Path:
    """Train, or go on training, and save the model; returns its folder.

    Args:
        settings: The stage's; those of the memory of a checkpoint that is resumed have to be the same.
        make_trainer: Called once the output folder and the reporters are found to be in order.
        columns: What the console shows of every update.

    Raises:
        AtomMemError: A setting or file is wrong, the run cannot go on, or was asked to stop.
    """
    args = settings.args
    resume = resume_folder(args, settings.run.memory)
    prepare_reporters(args)
    if args.save_strategy != SaveStrategy.NO and (problem := launcher_problem(os.environ)):
        PartialState().print(problem)
    trainer = make_trainer()
    args.facts = run_facts(trainer.settings, str(trainer.model.config._name_or_path))
    use_console(trainer, columns)
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        trainer.close()
    folder = save_final(trainer)
    if args.push_to_hub:
        push(trainer)
    data = getattr(args, "eval_data", None) or "TASKS"
    call = [
        "atommem",
        "eval",
        "--policy",
        str(folder),
        "--data",
        data,
        "--out",
        str(folder / "eval"),
    ]
    trainer.accelerator.print(f"saved to {folder}; evaluate it: {shlex.join(call)}")
    return folder


def push(trainer: Any) -> None:
    """Upload the model that is saved.

    Raises:
        CheckpointError: The hub refuses, or is out of reach.
    """
    try:
        trainer.push_to_hub()
    except (OSError, HTTPError) as error:
        raise CheckpointError(
            f"the model is in {trainer.args.output_dir}, but could not be pushed: {format_error(error).rstrip('.')}. The "
            "same command with --resume tries again."
        ) from error


def launcher_problem(environment: Mapping[str, str]) -> str | None:
    """What keeps the launcher of this process (torch's, which accelerate uses for several) from ending it in order."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    seconds = environment.get(
        "PET_SHUTDOWN_TIMEOUT", environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    )
    handled = environment.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "")
    if int(seconds) >= _LEAST_SHUTDOWN and "SIGUSR1" in handled:
        return None
    return (
        f"the launcher kills its processes {seconds} s after SIGTERM, saved or not, and hands on {handled} alone: "
        "start it with PET_SHUTDOWN_TIMEOUT=600 PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1 in its environment."
    )


def episode_arguments(settings: Settings, tokenizer: Any) -> dict[str, Any]:
    """What a trainer of episodes is given of the settings: its tasks, and what is kept and shown of its episodes."""
    args, memory = settings.args, settings.run.memory
    kind = find_environment(settings.run.environment.environment)
    tasks, out = kind.read_tasks(args.data), Path(args.output_dir)
    hooks: list[EpisodesHook] = []
    if args.save_traces:
        hooks.append(trace_writer(out / "traces", tasks, kind.describe, memory))
    if args.log_episodes and args.process_index == 0:
        shown: dict[str, Any] = {
            "count": args.log_episodes,
            "every": args.log_episodes_steps,
            "report_to": args.report_to,
        }
        hooks.append(SampleEpisodes(out / FOLDER, tasks, kind.describe, tokenizer, memory, **shown))

    def on_episodes(update: int, episodes: Sequence[Episode]) -> None:
        for hook in hooks:
            hook(update, episodes)

    return {
        "args": args,
        "tasks": tasks,
        "held_out": kind.read_tasks(args.eval_data) if args.eval_data else (),
        "processing_class": tokenizer,
        "on_episodes": on_episodes,
        "settings": settings.stored,
    }

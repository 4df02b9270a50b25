"""The stage ``grpo`` of ``atommem train``: from parsed settings to a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding import make_embedder
from atommem.records import Episode
from envs.files import load_tasks
from envs.longdoc import LongDocConfig
from train.backends.select import select_backend
from train.callbacks import GRPO_COLUMNS, use_console
from train.checkpoint import GenerationSettings, resume_folder, save_final
from train.cli import finish, prepare_reporters
from train.config import TrainConfig
from train.faults import FailedStep
from train.models import load_tokenizer, model_arguments
from train.replay import recorded_command
from train.rollouts import EpisodesHook
from train.samples import FOLDER, SampleEpisodes
from train.traces import TraceWriter
from train.trainer import MemoryGRPOTrainer

if TYPE_CHECKING:
    from trl import ModelConfig

    from train.asynchronous.config import AsyncTrainConfig
    from train.backends.base import Backend


def run_grpo(
    args: TrainConfig,
    memory: MemoryConfig,
    embedder: EmbedderConfig,
    environment: LongDocConfig,
    model: ModelConfig,
    *,
    command: Sequence[str] = (),
) -> Path:
    """Train and save the model; returns its folder.

    Args:
        args, memory, embedder, environment, model: Settings.
        command: The flags that they come from: kept with the data of an update that fails.

    Raises:
        AtomMemError: A setting or file is wrong, the run cannot go on, or was asked to stop.
    """
    resume = resume_folder(args.resume_from_checkpoint, args.output_dir, memory)
    prepare_reporters(args)
    trainer = grpo_trainer(args, memory, embedder, environment, model, command=command)
    use_console(trainer, GRPO_COLUMNS)
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        trainer.close()
    return finish(trainer, save_final(trainer, trainer.settings))


def grpo_trainer(
    args: TrainConfig,
    memory: MemoryConfig,
    embedder: EmbedderConfig,
    environment: LongDocConfig,
    model: ModelConfig,
    *,
    make_backend: Callable[[Any], Backend] | None = None,
    command: Sequence[str] = (),
    callbacks: Sequence[Any] = (),
) -> MemoryGRPOTrainer:
    """The trainer that these settings describe.

    Args:
        args, memory, embedder, environment, model: Settings.
        make_backend: What samples; unset is what the settings say.
        command: See `run_grpo`.
        callbacks: Further callbacks.
    """
    tasks = load_tasks(args.data)
    tokenizer = load_tokenizer(model)
    if make_backend is None:
        make_backend = select_backend(args, tokenizer, make_embedder(embedder), memory, environment)
    generation = GenerationSettings(args.max_completion_length or 1024, args.template_kwargs)
    return MemoryGRPOTrainer(
        args=args,
        tasks=tasks,
        processing_class=tokenizer,
        make_backend=make_backend,
        on_episodes=episode_hooks(args, tasks, tokenizer, memory),
        held_out=load_tasks(args.eval_data) if args.eval_data else (),
        settings=[memory, embedder, environment, generation],
        failed_step=FailedStep(recorded_command(command)),
        callbacks=list(callbacks),
        **model_arguments(model, args),
    )


def episode_hooks(
    args: TrainConfig | AsyncTrainConfig, tasks: Sequence[Any], tokenizer: Any, memory: MemoryConfig
) -> EpisodesHook:
    """What is kept and shown of the episodes of every update."""
    out = Path(args.output_dir)
    hooks: list[EpisodesHook] = []
    if args.save_traces:
        hooks.append(TraceWriter(out / "traces", tasks, memory))
    if args.log_episodes and args.process_index == 0:
        hooks.append(
            SampleEpisodes(
                out / FOLDER,
                tasks,
                tokenizer,
                memory,
                count=args.log_episodes,
                every=args.log_episodes_steps,
                report_to=args.report_to,
            )
        )

    def hook(update: int, episodes: Sequence[Episode]) -> None:
        for one in hooks:
            one(update, episodes)

    return hook

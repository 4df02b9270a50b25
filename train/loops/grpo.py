"""The stage ``grpo`` of ``atommem train``: from parsed settings to a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.loops.launch import episode_arguments, launch
from atommem.train.loops.models import load_embedder, load_tokenizer, model_arguments
from atommem.train.resume.faults import FailedStep, recorded_command
from atommem.train.rollout.episodes import Rollouts
from atommem.train.rollout.local_backend import local_backend
from atommem.train.settings import Settings
from atommem.train.watch.callbacks import GRPO_COLUMNS

if TYPE_CHECKING:
    from atommem.train.rollout.backend import Backend


def run_grpo(settings: Settings, command: Sequence[str] = ()) -> Path:
    """Train and save the model; returns its folder.

    Args:
        settings: With a `TrainConfig`.
        command: The flags that they come from: kept with the data of an update that fails.

    Raises:
        AtomMemError: A setting or file is wrong, the run cannot go on, or was asked to stop.
    """
    return launch(settings, lambda: grpo_trainer(settings, command), GRPO_COLUMNS)


def grpo_trainer(
    settings: Settings,
    command: Sequence[str] = (),
    make_backend: Callable[[Any], Backend] | None = None,
    callbacks: Sequence[Any] = (),
) -> MemoryGRPOTrainer:
    """The trainer that these settings describe.

    Args:
        settings, command: See `run_grpo`.
        make_backend: What samples; unset is what the settings say.
        callbacks: Further callbacks.
    """
    args, run = settings.args, settings.run
    tokenizer = load_tokenizer(settings.model)
    given = episode_arguments(settings, tokenizer)
    if make_backend is None:
        make_backend = partial(
            select_backend,
            Rollouts(args, tokenizer, load_embedder(run.embedder), run.memory, run.environment),
        )
    return MemoryGRPOTrainer(
        make_backend=make_backend,
        failed_step=FailedStep(recorded_command(command)),
        callbacks=list(callbacks),
        **given,
        **model_arguments(settings.model, args),
    )


def select_backend(rollouts: Rollouts, model: Any) -> Backend:
    """The one that the settings ask for, by ``use_vllm`` and ``vllm_mode``, of `model`, which is trained."""
    if not rollouts.args.use_vllm:
        return local_backend(rollouts, model)
    if rollouts.args.vllm_mode == "server":
        from atommem.train.rollout.server_backend import server_backend

        return server_backend(rollouts, model)
    from atommem.train.rollout.colocate_backend import colocate_backend

    return colocate_backend(rollouts, model)

"""``atommem train async``: asynchronous training from parsed settings to a saved model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trl import get_peft_config

from atommem.errors import ConfigError
from atommem.train.loops.asynchronous.async_trainer import AsyncMemoryGRPOTrainer
from atommem.train.loops.asynchronous.samplers import make_runner
from atommem.train.loops.launch import episode_arguments, launch
from atommem.train.loops.models import load_embedder, load_tokenizer
from atommem.train.rollout.episodes import Rollouts
from atommem.train.settings import Settings
from atommem.train.watch.callbacks import GRPO_COLUMNS

ASYNC_COLUMNS = (
    *(column for column in GRPO_COLUMNS if column[0] != "roll s"),
    ("stale", "sample/staleness_mean", ".2f"),
)


def run_async(settings: Settings) -> Path:
    """Train asynchronously, with an `AsyncTrainConfig`, and save the model; returns its folder.

    Raises:
        ConfigError: The model is an adapter, or a folder is wrong.
    """
    args, run, model_config = settings.args, settings.run, settings.model
    model = str(model_config.model_name_or_path)
    if (Path(model) / "adapter_config.json").is_file():
        raise ConfigError(
            f"{model} is a peft adapter: merge it into its base model to train it asynchronously."
        )

    def make() -> AsyncMemoryGRPOTrainer:
        tokenizer = load_tokenizer(model_config)
        given = episode_arguments(settings, tokenizer)
        rollouts = Rollouts(
            args, tokenizer, load_embedder(run.embedder), run.memory, run.environment
        )
        args.model_init_kwargs = {
            "revision": model_config.model_revision,
            **(args.model_init_kwargs or {}),
        }
        return AsyncMemoryGRPOTrainer(
            model=model,
            make_runner=partial(make_runner, rollouts, model),
            peft_config=get_peft_config(model_config),
            **given,
        )

    return launch(settings, make, ASYNC_COLUMNS)

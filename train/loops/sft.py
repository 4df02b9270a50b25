"""The cold start: supervised fine-tuning on demonstrations, with TRL's `SFTTrainer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import SFTTrainer

from atommem.errors import ConfigError
from atommem.train.loops.demonstrations import Demonstration, trace_demonstrations
from atommem.train.loops.launch import launch
from atommem.train.loops.models import load_tokenizer, model_arguments, tune_lm_head_for_cpu
from atommem.train.packing.padding import IGNORED
from atommem.train.resume.resumable_trainer import ResumableTrainer
from atommem.train.settings import Settings
from atommem.train.train_config import ColdStartConfig
from atommem.train.watch.callbacks import SFT_COLUMNS


def sft_dataset(rows: Sequence[Demonstration], max_length: int | None = None) -> Dataset:
    """Rows of (prompt ids, completion ids) as TRL takes them, with the loss on the completion only.

    Nothing is tokenised: the ids are trained on as they are.

    Args:
        rows: At least one.
        max_length: Longest row.

    Raises:
        ConfigError: There are no rows, or one is too long.
    """
    if not rows:
        raise ConfigError("there are no demonstrations to learn from.")
    lengths = [len(prompt) + len(completion) for prompt, completion in rows]
    if max_length is not None and max(lengths) > max_length:
        count = sum(length > max_length for length in lengths)
        raise ConfigError(
            f"{count} of {len(rows)} demonstrations exceed max_length {max_length}, the longest has {max(lengths)} "
            "tokens: raise max_length, or make chunk_tokens smaller."
        )
    return Dataset.from_dict(
        {
            "input_ids": [[*prompt, *completion] for prompt, completion in rows],
            "labels": [[IGNORED] * len(prompt) + list(completion) for prompt, completion in rows],
        }
    )


class ColdStartTrainer(ResumableTrainer, SFTTrainer):
    """TRL's, with checkpoints that are whole or absent."""


def make_sft_trainer(
    model: Any, args: ColdStartConfig, dataset: Dataset, tokenizer: Any, **kwargs: Any
) -> ColdStartTrainer:
    """A trainer on `dataset` as it is.

    Args:
        model: A model, or the path or hub name of one.
        args: Settings.
        dataset: Columns ``input_ids`` and ``labels`` (`sft_dataset`, or labels of one's own).
        tokenizer: The model's; its padding token fills batches.
        kwargs: Further arguments of `ResumableTrainer` and `SFTTrainer` (settings, peft_config, quantization_config,
            callbacks).
    """
    args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    trainer = ColdStartTrainer(
        model=model, args=args, train_dataset=dataset, processing_class=tokenizer, **kwargs
    )
    tune_lm_head_for_cpu(trainer.accelerator.device.type)
    return trainer


def run_sft(settings: Settings) -> Path:
    """Fine-tune on traces, with a `ColdStartConfig`, and save the model; returns its folder.

    Raises:
        AtomMemError: A setting or file is wrong, the run cannot go on, or was asked to stop.
    """
    args, run, model = settings.args, settings.run, settings.model

    def make() -> ColdStartTrainer:
        tokenizer = load_tokenizer(model)
        rows = trace_demonstrations(
            args.data, tokenizer, run.memory, run.environment, args.min_reward, args.template_kwargs
        )
        dataset = sft_dataset(rows, args.max_length)
        arguments = model_arguments(model, args)
        return make_sft_trainer(
            args=args, dataset=dataset, tokenizer=tokenizer, settings=settings.stored, **arguments
        )

    return launch(settings, make, SFT_COLUMNS)

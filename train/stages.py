"""The stages of ``atommem train``: from parsed settings to a saved model."""

import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peft import PeftModel

from atommem.embedding import make_embedder
from atommem.environment import find_environment
from atommem.envs.question_answering import check_golds
from atommem.errors import ConfigError
from atommem.plugins import find
from atommem.policy.local import hide_weight_bars
from atommem.train.checkpoints import checkpoint_to_resume
from atommem.train.console import ASYNC_COLUMNS, GRPO_COLUMNS, SFT_COLUMNS, Column, use_console
from atommem.train.episode_logs import EpisodeFiles
from atommem.train.loops.async_trainer import AsyncMemoryGRPOTrainer, make_runner
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.loops.models import load_tokenizer, loading_whole, model_arguments
from atommem.train.loops.sft import ColdStartTrainer, sft_dataset, trace_demonstrations
from atommem.train.rollout.backends import Backend, make_local_backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.server_backend import make_server_backend, make_server_pool
from atommem.train.settings import Settings, parse
from atommem.train.train_config import (
    AsyncTrainConfig,
    ColdStartConfig,
    PolicyModelConfig,
    SampledModelConfig,
    TrainConfig,
)

_OF_CALLER = "tasks of the caller"
_TRAINERS = {"args", "callbacks", "processing_class", "optimizers", "compute_metrics"}


def make_grpo_trainer(settings: Settings) -> MemoryGRPOTrainer:
    args, tokenizer = settings.args, load_tokenizer(settings.model)
    return MemoryGRPOTrainer(
        **episode_arguments(settings, tokenizer),
        make_backend=partial(make_backend, make_rollouts(settings, tokenizer)),
        **model_arguments(settings.model, args),
    )


def make_backend(rollouts: Rollouts, model: Any) -> Backend:
    if not rollouts.args.use_vllm:
        return make_local_backend(rollouts, model)
    if rollouts.args.vllm_mode == "colocate":
        from atommem.train.rollout.colocate_backend import make_colocate_backend

        return make_colocate_backend(rollouts, model)
    pool = make_server_pool(rollouts, max_in_flight=1024)  # servers queue the rest
    lora = isinstance(model, PeftModel)
    return make_server_backend(rollouts.args, rollouts.runner(pool), lora)


def make_async_trainer(settings: Settings) -> AsyncMemoryGRPOTrainer:
    args, model = settings.args, settings.model
    name = str(model.model_name_or_path)
    if (Path(name) / "adapter_config.json").is_file():
        raise ConfigError(
            f"model_name_or_path={name}: this is an adapter. Merge it into its base model to train "
            "it asynchronously (merge_and_unload of peft), and copy tokenizer and settings along."
        )
    tokenizer = load_tokenizer(model)
    return AsyncMemoryGRPOTrainer(
        **episode_arguments(settings, tokenizer),
        **model_arguments(model, args),  # before the runner reads `args.model_init_kwargs`
        make_runner=partial(make_runner, make_rollouts(settings, tokenizer), name),
    )


def make_sft_trainer(settings: Settings) -> ColdStartTrainer:
    args, tokenizer = settings.args, load_tokenizer(settings.model)
    rows = trace_demonstrations(args.data, tokenizer, settings.run, args.min_reward)
    return ColdStartTrainer(
        args=args,
        dataset=sft_dataset(rows, args.max_length),
        tokenizer=tokenizer,
        settings=settings.stored_with(tokenizer),
        **model_arguments(settings.model, args),
    )


def make_rollouts(settings: Settings, tokenizer: Any) -> Rollouts:
    with loading_whole():
        embedder = make_embedder(settings.run.embedder)
    return Rollouts(settings.args, settings.run, tokenizer, embedder)


def episode_arguments(settings: Settings, tokenizer: Any) -> dict[str, Any]:
    args = settings.args
    kind = find_environment(settings.run.environment.environment)
    tasks = kind.read_tasks(args.data) if settings.tasks is None else settings.tasks
    check_golds(settings.run.environment, tasks)
    return {
        "args": args,
        "tasks": tasks,
        "held_out": settings.held_out
        or (kind.read_tasks(args.eval_data) if args.eval_data else ()),
        "processing_class": tokenizer,
        "on_episodes": EpisodeFiles(args, map(kind.describe, tasks), settings.run.memory),
        "settings": settings.stored_with(tokenizer),
    }


def make_trainer(
    stage: str = "grpo",
    config: str | Path | None = None,
    *,
    tasks: Iterable[Any] | None = None,
    held_out: Iterable[Any] = (),
    **settings: Any,
) -> Any:
    """Make the trainer of ``atommem train``, a transformers `Trainer` over episodes.

    Use it in a ``with`` block, which frees what samples the episodes.

    Args:
        stage: grpo, sft or async.
        config: A recipe's name, or a YAML file.
        tasks: Tasks instead of those of the file `data`.
        held_out: Tasks of `evaluate`, also during training (`eval_strategy`).
        settings: Settings of the stage by name, over the recipe's; `reward` may be a function.
    """
    tasks, held_out = tasks if tasks is None else list(tasks), list(held_out)
    for name, file, items in (("tasks", "data", tasks), ("held_out", "eval_data", held_out)):
        if items and settings.get(file):
            raise ConfigError(f"{name}, {file}: both are given. Give one of them.")
        if any(isinstance(item, str | Mapping) for item in items or ()):
            raise ConfigError(f"{name}: not tasks. Give {file}=FILE, or load_tasks(FILE).")
    if tasks is not None and stage == "sft":
        raise ConfigError("tasks: sft learns from traces. Give data=FOLDER.")
    for name in sorted(_TRAINERS & settings.keys()):
        fix = "Give settings by name; trainer.add_callback adds callbacks"
        raise ConfigError(f"{name}: of transformers' Trainer, and no setting. {fix}.")
    arguments = [] if config is None else ["--config", str(config)]
    given = {name: str(v) if isinstance(v, Path) else v for name, v in settings.items()}
    given |= {} if tasks is None else {"data": _OF_CALLER}
    if held_out and str(given.get("eval_strategy", "no")) != "no":
        given["eval_data"] = _OF_CALLER
    if callable(reward := given.get("reward")):
        given["reward"] = f"{reward.__module__}:{getattr(reward, '__qualname__', '')}"
        found = None
        with suppress(ConfigError):
            found = find("reward", given["reward"])
        if found != reward:
            fix = "not found by its name. Give a function of a module's top level"
            raise ConfigError(f"reward={reward!r:.80}: {fix}.")
    parsed = replace(parse(stage, arguments, given), tasks=tasks, held_out=held_out)
    out, start = parsed.args.output_dir, parsed.model.model_name_or_path
    if Path(out).resolve() == Path(start or "").resolve():
        raise ConfigError(f"output_dir={out}: it holds the model to train. Give another folder.")
    return find("atommem.stages", stage).prepare(parsed)


@dataclass(frozen=True)
class TrainerStage:
    """A `Stage` with a trainer in this process."""

    config_class: type
    make_trainer: Callable[[Settings], Any]
    columns: Sequence[Column]
    model_class: type = PolicyModelConfig

    def prepare(self, settings: Settings) -> Any:
        hide_weight_bars()
        prepare_reporters(settings.args)
        settings.args.facts = settings.facts
        trainer = self.make_trainer(settings)
        use_console(trainer, self.columns)
        return trainer

    def run(self, settings: Settings) -> Path:
        """Train or resume, and save the model; returns its folder."""
        args = settings.args
        args.facts = settings.facts
        resume = checkpoint_to_resume(args)
        with self.prepare(settings) as trainer:
            trainer.train(resume_from_checkpoint=resume)
        finish = trainer.push_to_hub if args.push_to_hub else trainer.save_final
        folder: Path = finish()
        flags = ["--data", getattr(args, "eval_data", None) or "TASKS"]
        flags += ["--output_dir", str(folder / "eval")]
        command = shlex.join(["atommem", "eval", "--policy", str(folder), *flags])
        trainer.accelerator.print(f"saved to {folder}; evaluate it: {command}")
        return folder


def prepare_reporters(args: Any) -> None:
    """Name the run for the services of ``report_to``, and keep its files in the output folder.

    wandb, which would wait for a login, runs offline. A resumed run continues its run there.
    """
    for name in set(args.report_to) & {"wandb", "trackio", "tensorboard"}:
        if find_spec(name) is None:
            raise ConfigError(f"report_to={name}: it is not installed. pip install {name}.")
    out = Path(args.output_dir)
    args.run_name = args.run_name or out.resolve().name
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(out / "runs" / args.run_name))
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_DIR", str(out))
    os.environ.setdefault("WANDB_PROJECT", args.project)
    if "wandb" in args.report_to and args.process_index == 0:
        out.mkdir(parents=True, exist_ok=True)
        file = out / "run_id"
        resumes = str(args.resume_from_checkpoint or "false").lower() != "false"
        if not (resumes and file.is_file()):
            file.write_text(secrets.token_hex(4), encoding="utf-8")
        os.environ.setdefault("WANDB_RESUME", "allow")
        os.environ.setdefault("WANDB_RUN_ID", file.read_text(encoding="utf-8"))


GRPO = TrainerStage(TrainConfig, make_grpo_trainer, GRPO_COLUMNS, SampledModelConfig)
SFT = TrainerStage(ColdStartConfig, make_sft_trainer, SFT_COLUMNS)
ASYNC = TrainerStage(AsyncTrainConfig, make_async_trainer, ASYNC_COLUMNS, SampledModelConfig)

"""Read the settings of a training stage from flags, YAML and the model folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import get_annotations
from typing import Any

from trl import ModelConfig

from atommem.arguments import Parser, make, split_config
from atommem.config import EmbedderConfig, MemoryConfig, check_least
from atommem.environment import find_environment
from atommem.errors import ConfigError, check_writable, format_error
from atommem.policy.contract import Sampling
from atommem.policy.opening import model_folder
from atommem.run import Checkpoint, RunConfig
from atommem.train.checkpoints import GenerationSettings
from atommem.train.dry_run_config import DryRunConfig

_MODEL = "data eval_data model_name_or_path model_revision use_peft lora_r lora_alpha output_dir"
_UPDATE = "max_steps num_train_epochs learning_rate beta seed"
_ROLLOUTS = """temperature max_completion_length chat_template_kwargs max_in_flight
    max_inflight_tasks dynamic_sampling episode_max_tokens episode_max_seconds max_failed_fraction
    rollout_batch_size rollout_batch_tokens use_vllm vllm_mode vllm_server_base_url
    vllm_engine_kwargs max_staleness"""
_SAVING = """save_steps save_total_limit resume_from_checkpoint logging_steps eval_strategy
    report_to project run_name push_to_hub hub_model_id hub_private_repo eval_steps
    eval_temperature num_generations_eval log_episodes log_episodes_steps save_traces dry_run
    dry_run_device"""


@dataclass
class Settings:
    """The settings of a stage."""

    args: Any  # a TrainConfig, ColdStartConfig or AsyncTrainConfig
    run: RunConfig  # what the agent is built from; its policy is the model in training
    model: ModelConfig
    dry_run: DryRunConfig
    sources: dict[str, str]  # setting -> flag, file, model folder or default

    @property
    def stored(self) -> list[Any]:
        """The dataclasses that a checkpoint's ``atommem_config.json`` holds."""
        run = self.run
        generation = GenerationSettings(run.sampling.max_tokens, run.chat_template_kwargs)
        return [run.memory, run.embedder, run.environment, generation]


def parse(
    stage: str, argv: Sequence[str], adapt: Callable[[type], type] = lambda config: config
) -> Settings:
    """Read the command line of a stage (grpo, sft or async).

    In `sft`, memory and environment describe the prompts. `adapt` replaces the configuration class.

    Raises:
        AtomMemError: A setting is unknown or out of range, or a file cannot be read.
    """
    settings = read_settings(stage, argv, adapt)
    args, model = settings.args, settings.model.model_name_or_path
    if not args.data:
        raise ConfigError("--data is missing. Give a task file (atommem data build).")
    if model is None:
        raise ConfigError("--model_name_or_path is missing. Give a model folder or hub name.")
    check_least(args, learning_rate=0, max_completion_length=1)
    model_folder("model_name_or_path", model)
    check_writable("output_dir", args.output_dir, folder=True)
    return settings


def read_settings(
    stage: str, argv: Sequence[str], adapt: Callable[[type], type] = lambda config: config
) -> Settings:
    """Read as `parse` does, but accept a run without data or model, which the demo makes itself."""
    config_class, model_class = _classes(stage)
    config_class = adapt(config_class)
    argv, values = split_config(argv, "train")
    checkpoint = Checkpoint.find(argv, values, "model_name_or_path")
    stored = dict(checkpoint.stored)
    if "max_tokens" in stored:
        stored["max_completion_length"] = stored.pop("max_tokens")
    environment = find_environment(checkpoint.environment).config_class
    parser = Parser(
        f"atommem train {stage}",
        "All settings can also stand in a YAML file: --config FILE, or a shipped NAME (atommem "
        "configs). --help-all also shows those of TRL and transformers, and every text in full.",
        usage=f"atommem train {stage} [--config FILE|NAME] [--SETTING VALUE ...]",
        show_all="--help-all" in argv,
    )
    kinds = (config_class, MemoryConfig, EmbedderConfig, environment, model_class, DryRunConfig)
    try:
        _add_groups(parser, kinds)
        parsed = parser.read(["--help" if a == "--help-all" else a for a in argv], values, stored)
        made: list[Any] = [make(kind, parsed) for kind in kinds]
    except (ValueError, OSError) as error:
        raise ConfigError(f"{format_error(error)} See atommem train {stage} --help.") from error
    args, memory, embedder, world, model, dry_run = made
    run = RunConfig(
        memory=memory,
        embedder=embedder,
        environment=world,
        sampling=Sampling(
            temperature=getattr(args, "temperature", 1.0),
            max_tokens=args.max_completion_length or 1024,
        ),
        chat_template_kwargs=args.template_kwargs,
    )
    return Settings(args, run, model, dry_run, _sources(parsed, argv, values, stored))


def parse_dry_run(argv: Sequence[str]) -> DryRunConfig:
    """Read the settings of the dry run alone, which the other settings' checks depend on."""
    argv, values = split_config(argv, "train")
    flags: list[str] = []
    is_ours = False
    for word in argv:
        is_ours = word.startswith("--dry_run") or (is_ours and not word.startswith("--"))
        if is_ours:
            flags.append(word)
    parser = Parser("atommem train")
    parser.add_settings("dry run", DryRunConfig)
    values = {name: value for name, value in values.items() if name.startswith("dry_run")}
    return make(DryRunConfig, parser.read(flags, values))


def _classes(stage: str) -> tuple[type, type]:
    """Return the configuration classes of a stage and of its model."""
    if stage == "async":
        from atommem.train.async_config import AsyncModelConfig, AsyncTrainConfig

        return AsyncTrainConfig, AsyncModelConfig
    from atommem.train.train_config import ColdStartConfig, TrainConfig

    return ColdStartConfig if stage == "sft" else TrainConfig, ModelConfig


def _add_groups(parser: Parser, kinds: Sequence[type]) -> None:
    """Add all flags, grouped by topic; TRL's own are hidden."""
    config_class, memory, embedder, environment, *_ = kinds
    model, update, rollouts, saving = (
        names.split() for names in (_MODEL, _UPDATE, _ROLLOUTS, _SAVING)
    )
    ours = [kind for kind in config_class.__mro__ if kind.__module__.startswith("atommem.")]
    own = dict.fromkeys(name for kind in ours for name in get_annotations(kind))
    elsewhere = {*model, *update, *rollouts, *saving}
    groups: dict[str, Iterable[str]] = {
        "data and model": model,
        "memory": (item.name for item in fields(memory)),
        "environment": (item.name for item in fields(environment)),
        "embedder": (item.name for item in fields(embedder)),
        "training": [*update, *(name for name in own if name not in elsewhere)],
        "rollouts": rollouts,
        "saving, logging, resuming": saving,
    }
    for title, names in groups.items():
        parser.add_settings(title, *kinds, names=names)
    parser.add_settings("TRL and transformers", *kinds, hidden=True)


def _sources(
    parsed: Any, argv: Sequence[str], values: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, str]:
    flags = {word[2:].partition("=")[0] for word in argv if word.startswith("--")}
    places = {"flag": flags, "file": values, "model folder": stored}
    return {
        name: next((place for place, names in places.items() if name in names), "default")
        for name in vars(parsed)
    }

"""Read the settings of a training stage from flags, YAML and the model folder."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from inspect import get_annotations
from pathlib import Path
from typing import Any

from trl import ModelConfig

from atommem import config
from atommem.arguments import Parser, find_flag, make, pop_flags, split_config
from atommem.chat_format import ChatFormat
from atommem.dialects import get_dialect
from atommem.environment import find_environment
from atommem.errors import ConfigError, check_writable, format_error
from atommem.files import file_digest
from atommem.plugins import find
from atommem.policy.contract import Sampling
from atommem.policy.opening import model_folder
from atommem.run import RunConfig, check_setting_names, find_stored
from atommem.train.checkpoints import GenerationSettings
from atommem.train.devices import DryRunConfig
from atommem.train.train_config import check_refused, refused_names

_SHOWN = """data eval_data model_name_or_path model_revision use_peft lora_r lora_alpha output_dir
    max_steps num_train_epochs learning_rate beta seed temperature use_vllm vllm_mode
    save_steps save_total_limit resume_from_checkpoint logging_steps report_to run_name
    eval_strategy eval_steps push_to_hub hub_model_id"""
"""The first settings in the help: ours and TRL's that most runs need."""


@dataclass(frozen=True)
class Stage:
    """A stage of ``atommem train`` behind an entry point in ``atommem.stages``."""

    config_class: type
    run: Callable[[Settings], Path]
    model_class: type = ModelConfig


@dataclass
class Settings:
    """The settings of a stage."""

    args: Any  # a TrainConfig, ColdStartConfig or AsyncTrainConfig
    run: RunConfig  # what the agent is built from; its policy is the model in training
    model: ModelConfig
    dry_run: DryRunConfig
    tasks: Sequence[Any] | None = None  # unset: those of the file `data`
    held_out: Sequence[Any] = ()  # empty: those of the file `eval_data`

    @property
    def stored(self) -> list[Any]:
        """The dataclasses that a checkpoint's ``atommem_config.json`` holds."""
        run, longest = self.run, self.run.sampling.max_completion_length
        generation = GenerationSettings(longest, run.chat_template_kwargs)
        return [run.memory, run.embedder, run.environment, generation]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return all settings, before a trainer changes `args`: for checkpoints, and wandb."""
        found = self.args.to_dict()
        found |= {name: value for part in self.stored for name, value in asdict(part).items()}
        for name in self.run.environment.operational:
            found.pop(name, None)
        data = Path(self.args.data)
        files = sorted(data.rglob("*.jsonl") if data.is_dir() else [data])
        digests = "".join(file_digest(file) for file in files if file.is_file())
        found |= asdict(self.model) | {"data_digest": sha256(digests.encode()).hexdigest()[:16]}
        # A folder may have been moved.
        found["model_name_or_path"] = Path(str(self.model.model_name_or_path)).name
        return found | {"atommem_version": version("atommem")}

    def stored_with(self, tokenizer: Any) -> list[Any]:
        """`stored`, with what was found out of the ordinary in the chat template."""
        *parts, generation = self.stored
        memory, options = self.run.memory, self.run.chat_template_kwargs
        templates = get_dialect(memory.dialect, memory.templates).templates
        chat = ChatFormat(tokenizer, templates.join, options, chat=templates.chat)
        return [*parts, replace(generation, **chat.record())]


def parse(stage: str, argv: Sequence[str], given: Mapping[str, Any] | None = None) -> Settings:
    """Read flags over settings `given` by name, over YAML, over those of the model's folder."""
    settings = read_settings(stage, argv, given)
    args, model = settings.args, settings.model.model_name_or_path
    if not args.data:
        raise ConfigError("--data is missing. Give a task file (atommem data build).")
    if model is None:
        raise ConfigError("--model_name_or_path is missing. Give a model folder or hub name.")
    config.check_least(args, learning_rate=0, max_completion_length=1)
    name = model_folder("model_name_or_path", config.shipped_policy(model))
    settings.model.model_name_or_path = name
    check_writable("output_dir", args.output_dir, folder=True)
    return settings


def read_settings(
    stage: str, argv: Sequence[str], given: Mapping[str, Any] | None = None
) -> Settings:
    """Read as `parse` does, but accept a run without data or model, which the demo makes itself."""
    found = find("atommem.stages", stage)
    config_class, model_class = found.config_class, found.model_class
    recipe = find_flag(argv, "config")
    argv, values = split_config(argv, "train")
    values |= given or {}
    stored = find_stored(argv, values, "model_name_or_path")
    environment = find_environment(stored["environment"]).config_class
    parser = Parser(
        f"atommem train {stage}",
        "All settings can also stand in a YAML file: --config FILE, or a shipped NAME (atommem "
        "configs). --resume continues from the last checkpoint of output_dir, or starts.",
        usage=f"atommem train {stage} [--config FILE|NAME] [--resume] [--SETTING VALUE]",
    )
    others = (config_class, model_class, config.MemoryConfig, config.EmbedderConfig, DryRunConfig)
    taken = {name for kind in others for name in config.field_names(kind)}
    check_setting_names(stored["environment"], environment, taken)
    ours = [kind for kind in config_class.__mro__ if kind.__module__.startswith("atommem.")]
    shown = [*_SHOWN.split(), *(name for kind in ours for name in get_annotations(kind))]
    try:
        parser.add_settings("training", config_class, model_class, names=shown)
        parser.add_settings("memory", config.MemoryConfig)
        parser.add_settings("environment", environment)
        parser.add_settings("embedder", config.EmbedderConfig)
        parser.add_settings("dry run", DryRunConfig)
        parser.add_settings("TRL and transformers", config_class, model_class)
        for action in parser._actions:
            if action.dest in refused_names(*config_class.refused, f"{stage}_model"):
                action.help = SUPPRESS  # it would be refused with its reason
        parsed = parser.read(argv, values, stored)
        args: Any = make(config_class, parsed)
        sampling = Sampling(
            temperature=getattr(args, "temperature", 1.0),
            max_completion_length=args.max_completion_length or 1024,
        )
        run = RunConfig.from_flat(vars(parsed) | asdict(sampling))
        model = make(model_class, parsed)
        check_refused(model, f"{stage}_model")
        return Settings(args, run, model, make(DryRunConfig, parsed))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{format_error(error)} See atommem train {stage} --help.") from error
    except ConfigError as error:
        of = stage_of(recipe)
        if of in (None, stage):
            raise
        problem = f"config={recipe}: for atommem train {of}, not {stage}. {error}"
        raise ConfigError(problem) from error


def stage_of(recipe: str | None) -> str | None:
    """Return the stage of a shipped recipe, which its name begins with (GRPO's do not)."""
    if recipe is None or Path(recipe).is_file():
        return None
    kind = recipe.removeprefix("train/").partition("_")[0]
    return kind if kind in ("async", "sft") else "grpo"


def parse_dry_run(argv: Sequence[str]) -> DryRunConfig:
    """Read the settings of the dry run alone, which the other settings' checks depend on."""
    argv, values = split_config(argv, "train")
    parser = Parser("atommem train")
    parser.add_settings("dry run", DryRunConfig)
    words, _ = pop_flags(argv, config.field_names(DryRunConfig))
    flags = [word for name in words for word in (f"--{name}", *words[name])]
    values = {name: value for name, value in values.items() if name.startswith("dry_run")}
    return make(DryRunConfig, parser.read(flags, values))

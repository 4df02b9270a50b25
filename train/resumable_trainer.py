"""A transformers Trainer with atomic checkpoints, whose ranks stop and save together."""

import math
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate.utils import DistributedType, gather_object
from httpx import HTTPError
from huggingface_hub import HfApi, ModelCardData
from peft import PeftModel
from rich.console import Console
from torch.distributed.fsdp import StateDictType
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from atommem.config import save_config
from atommem.errors import AtomMemError, ConfigError, format_error
from atommem.files import let_others_read
from atommem.process import frozen_heap
from atommem.train import checkpoints
from atommem.train.errors import (
    WRITE_ERRORS,
    CheckpointError,
    DivergedError,
    MemoryFault,
    RolloutFailedError,
    TrainingInterrupted,
)
from atommem.train.objective.rows import signal_report
from atommem.train.stop_request import StopRequest

_CONTINUE, _STOP, _BROKEN = range(3)  # reports of a rank in `sync_stop`; the largest wins
_CARD = """A policy that reads with a memory, trained with AtomMem: `atommem eval --policy`, \
`atommem serve` and `atommem ask` use it. `atommem_config.json` holds its prompts."""
_PRIVATE = ["_*", ".*", "checkpoint-*", "wandb/*", "traces/*", "samples/*", "eval/*", "adapters/*"]


class ResumableTrainer(Trainer, AbstractContextManager[Any]):
    """A transformers Trainer, and a mixin: ``class T(ResumableTrainer, SFTTrainer)``.

    - Checkpoints are whole or absent (`atommem.train.checkpoints`), with ``atommem_config.json``,
      which holds the fields of the dataclasses `settings`.
    - SIGTERM, SIGUSR1 and Ctrl-C end the run at the next step boundary, or in the middle of a
      rollout, with a checkpoint of the last finished update; all ranks together.
    - A NaN, an outage or a failed write ends the run with the reason and how to continue.
    """

    def __init__(self, *args: Any, settings: Sequence[Any] = (), **kwargs: Any) -> None:
        self.stop_request = StopRequest()
        self.settings = settings
        self.console: Console | None = None  # a terminal that shows progress bars
        self._is_idle = False  # a finished run that was resumed
        self._saved_step: int | None = None
        """The last update that is in a checkpoint (0: none is needed); unset before training."""
        try:
            super().__init__(*args, **kwargs)
        except HTTPError as error:  # it makes the hub's repository
            raise ConfigError(f"push_to_hub: {error}. Go online, or leave it out.") from error
        loaded = str(self.model.config.dtype or self.model.dtype)  # a name once it was saved
        self._loaded_dtype = getattr(torch, loaded.removeprefix("torch."))
        keep_in_float32(self.model, self.accelerator)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as `Trainer.train`; the error that ends a run says how to continue it."""
        if resume_from_checkpoint:  # true: the last one
            self.args.resume_from_checkpoint = str(resume_from_checkpoint)
            resume_from_checkpoint = checkpoints.checkpoint_to_resume(self.args)
        if resume_from_checkpoint:
            folder = Path(str(resume_from_checkpoint))
            plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
            shards = getattr(plugin, "state_dict_type", None) == StateDictType.SHARDED_STATE_DICT
            if (folder / checkpoints.SHARDED_MODEL).is_dir() != shards:
                raise ConfigError(
                    f"resume_from_checkpoint={folder}: FSDP and other launchers cannot read each "
                    "other's checkpoints. Resume it under the launcher that it was written under, "
                    "or start a new run from it (--model_name_or_path)."
                )
            self.load_extra_state(folder)
        saves = self.args.save_strategy != "no"
        stops = (TrainingInterrupted, RolloutFailedError, DivergedError, MemoryFault)
        with self.stop_request.installed() if saves else nullcontext(), frozen_heap():
            try:
                return super().train(resume_from_checkpoint, **kwargs)
            except stops as stop:
                # DeepSpeed has stepped inside the backward pass: its parameters are lost.
                deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
                if saves and not (deepspeed and isinstance(stop, DivergedError)):
                    self._save_last_update()
                hint = checkpoints.resume_hint(self.args)
                raise type(stop)(f"{str(stop).rstrip('.')}. {hint}") from stop

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Free what a subclass holds beyond the model."""

    def save_extra_state(self, folder: Path) -> None:
        """Write what else a subclass needs to resume; not collective."""

    def load_extra_state(self, folder: Path) -> None:
        """Read what `save_extra_state` wrote, before training."""

    def save_final(self) -> Path:
        """Save model, tokenizer, card and settings to the output folder; collective."""
        folder = Path(self.args.output_dir)
        try:
            weights = self.accelerator.get_state_dict(self.model_wrapped)
            if self.args.should_save:
                self._save_in_loaded_dtype(folder, weights)
                self.processing_class.save_pretrained(folder)
                save_config(folder, *self.settings)
                self.create_model_card()
        except WRITE_ERRORS as error:
            raise CheckpointError(
                f"the trained model could not be written to {folder}: {error}. Run the same "
                "command with --resume to write it."
            ) from error
        return folder

    def push_to_hub(self, commit_message: str | None = None, *_: Any, **__: Any) -> Path:
        """Upload what `save_final` saves, as `hub_*` say, and no text of the data; collective."""
        folder = self.save_final()
        try:
            self.init_hf_repo(self.args.hub_token)
            if self.is_world_process_zero():
                HfApi(token=self.args.hub_token).upload_folder(
                    repo_id=self.hub_model_id,
                    folder_path=folder,
                    commit_message=commit_message or "End of training",
                    revision=self.args.hub_revision,
                    ignore_patterns=_PRIVATE,
                )
        except (OSError, HTTPError) as error:
            reason = format_error(error).rstrip(".")
            raise CheckpointError(
                f"the model is in {folder}, but could not be pushed: {reason}. The same command "
                "with --resume, or push_to_hub, tries again."
            ) from error
        return folder

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save as `Trainer.save_model`, with ``atommem_config.json``; collective."""
        super().save_model(output_dir, *args, **kwargs)
        if self.settings and self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_config(folder, *self.settings)

    def _save_in_loaded_dtype(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        """Save a model as it was loaded, not in float32 as it is trained; adapters as they are."""
        model = self.accelerator.unwrap_model(self.model)
        if not isinstance(model, PeftModel):
            names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
            converted: dict[int, torch.Tensor] = {}  # tied weights stay one tensor
            for name in names & weights.keys():
                saved = weights[name].to(self._loaded_dtype)
                weights[name] = converted.setdefault(weights[name].data_ptr(), saved)
        model.save_pretrained(folder, state_dict=weights)
        let_others_read(folder)
        if not isinstance(model, PeftModel):
            model.config.dtype = self._loaded_dtype
            model.config.save_pretrained(folder)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        base, folder = self.model.config.name_or_path, Path(self.args.output_dir)
        data = ModelCardData(
            base_model=base if base and not Path(base).exists() else None,
            library_name="peft" if isinstance(self.model, PeftModel) else "transformers",
            tags=["atommem", "memory-policy"],
        )
        card = f"---\n{data.to_yaml()}\n---\n\n# {folder.resolve().name}\n\n{_CARD}\n"
        if report := signal_report(self.state.log_history):
            card += f"\n## Training signal\n\n{report}\n"
        if self.is_world_process_zero():
            folder.mkdir(parents=True, exist_ok=True)  # TRL writes a card before a checkpoint
            (folder / "README.md").write_text(card, encoding="utf-8")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output_dir = Path(self.args.output_dir)
        partial = output_dir / checkpoints.PARTIAL
        folder = partial / checkpoints.name_of(self.state.global_step)
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        error: BaseException | None = None
        try:
            with patch.object(self.args, "output_dir", str(partial)):
                super()._save_checkpoint(model, trial)
            self.save_extra_state(folder)
            if self.args.should_save:
                self._describe_checkpoint(folder, output_dir)
        except WRITE_ERRORS as failure:
            error = failure
        if not any(gather_object([error is not None])) and self.args.should_save:
            try:
                checkpoints.publish_checkpoint(folder, output_dir, self.args)
                checkpoints.prune_checkpoints(
                    output_dir, self.args.save_total_limit, self.state.best_model_checkpoint
                )
            except OSError as failure:
                error = failure
        if self.args.should_save:
            shutil.rmtree(partial, ignore_errors=True)
        if any(gather_object([error is not None])):
            free = shutil.disk_usage(output_dir).free
            raise CheckpointError(
                f"the checkpoint of update {self.state.global_step} could not be written: "
                f"{error or 'another process failed'}. {free / 1e6:,.1f} MB are free on its disk. "
                f"{checkpoints.resume_hint(self.args)}"
            ) from error
        self._saved_step = self.state.global_step

    def _describe_checkpoint(self, folder: Path, output_dir: Path) -> None:
        """Add settings and, beside sharded weights, what makes the folder a model folder."""
        if (folder / checkpoints.SHARDED_MODEL).is_dir():
            model = self.accelerator.unwrap_model(self.model)
            configs = (model.config, model.generation_config)
            for part in getattr(model, "peft_config", {}).values() or configs:
                part.save_pretrained(folder)
            self.processing_class.save_pretrained(folder)
        # transformers looked for the best checkpoint in the folder that it wrote to.
        if best := self.state.best_global_step:
            final = output_dir / checkpoints.name_of(best)
            if best == self.state.global_step or final.is_dir():
                self.state.best_model_checkpoint = str(final)
            self.state.save_to_json(str(folder / "trainer_state.json"))

    def _save_last_update(self) -> None:
        """Save the state after the last finished update, if this process finished one."""
        if self._saved_step not in (None, self.state.global_step):
            self._save_checkpoint(self.model, trial=None)
            self.callback_handler.on_save(self.args, self.state, self.control)

    # Where all ranks stop together --------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an update: a point where all ranks can stop."""
        if self._saved_step is None:
            self._saved_step = self.state.global_step
            self._set_rates()
        self.sync_stop()
        if self.state.global_step >= self.state.max_steps:
            # A finished run that is resumed: transformers would train one more update.
            self.control.should_training_stop = self._is_idle = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _set_rates(self) -> None:
        """Set the learning rates that the schedule has here; a checkpoint's are of its own end."""
        schedule = self.lr_scheduler
        if isinstance(schedule, LambdaLR):
            pairs = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            schedule._last_lr = [base * rate(schedule.last_epoch) for base, rate in pairs]
            for group, rate in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
                group["lr"] = rate

    def log(self, logs: dict[str, Any], *args: Any) -> None:
        """Log, unless a run that was finished had nothing left to do."""
        if not self._is_idle:
            super().log(logs, *args)

    def sync_stop(self, error: Exception | None = None, lost: str = "") -> None:
        """End the run on all ranks if one has to stop, for `error` or a signal; collective."""
        asked = _STOP if self.stop_request.requested else _CONTINUE
        report = max(gather_object([asked if error is None else _BROKEN]))
        update, reason = self.state.global_step + 1, "see the other processes"
        if report == _BROKEN:
            if error is not None:
                reason = str(error) if isinstance(error, AtomMemError) else repr(error)
            raise RolloutFailedError(f"update {update} cannot be sampled: {reason}") from error
        if report == _STOP:
            raise TrainingInterrupted(f"stopped before update {update}{lost}")

    def check_finite(self, name: str, value: float) -> None:
        """Raise DivergedError if a value, the same on all ranks, is NaN or infinite."""
        if not math.isfinite(value):
            raise DivergedError(f"the {name} of update {self.state.global_step + 1} is {value}")

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is not None:
            self.check_finite("gradient norm", float(norm))
        return norm


def keep_in_float32(model: Any, accelerator: Any) -> None:
    """Convert trained 16-bit parameters to float32: in bfloat16, steps of 1e-6 round away.

    DeepSpeed keeps its own float32 copy. accelerate would convert for FSDP2, on every rank; where
    rank 0 hands out its weights, others need memory that is reserved and never touched.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    one_loads = plugin is not None and plugin.cpu_ram_efficient_loading
    gets_weights = one_loads and not accelerator.is_main_process
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            empty = torch.empty_like(parameter, dtype=torch.float32)
            parameter.data = empty if gets_weights else parameter.data.float()


def _restore_to_numbered_cpu(storage: Any, location: str) -> Any:
    """Load a tensor saved on ``cpu:0``, a name that accelerate uses and torch does not know."""
    return storage if location.startswith("cpu:") else None


torch.serialization.register_package(15, lambda storage: None, _restore_to_numbered_cpu)

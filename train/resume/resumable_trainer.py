"""A transformers trainer that loses nothing: checkpoints are whole or absent, and every ending leaves one behind."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from accelerate.utils import DistributedType, gather_object
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from atommem.errors import AtomMemError, BudgetSpentError, ConfigError
from atommem.garbage import frozen_heap
from atommem.train.resume import sharded
from atommem.train.resume.checkpoint import TRAINING_ARGS, check_whole
from atommem.train.resume.checkpoint_files import (
    checkpoint_name,
    last_checkpoint,
    partial_folder,
    prune,
    publish,
    seal,
    share,
)
from atommem.train.resume.faults import (
    CheckpointError,
    DivergedError,
    FailedStep,
    RolloutFailedError,
    TrainingFault,
    is_disk_full,
    why_not_written,
)
from atommem.train.resume.hub import HubTrainer
from atommem.train.resume.interrupts import StopRequest, TrainingInterrupted
from atommem.train.watch.progress import ProgressBars

Result = TypeVar("Result")

_GO_ON, _STOP, _SPENT, _BROKEN = range(4)
"""What a rank has to report at a point where all ranks meet; the largest counts."""


class ResumableTrainer(HubTrainer):
    """Goes in front of a TRL trainer: ``class T(ResumableTrainer, GRPOTrainer)``.

    - Checkpoints are written aside and renamed when they are complete (`atommem.train.resume.checkpoint_files`),
      with the ``atommem_config.json`` of `settings` and all training arguments in them.
    - SIGTERM, SIGUSR1 and Ctrl-C end the run at the next step boundary, or in the middle of a rollout, with a
      checkpoint of the state before it; all ranks together. A second signal ends the process at once. Where no
      checkpoints are wanted, signals do what they do elsewhere.
    - A NaN, an outage or a full disk ends the run with the data of the step (`atommem.train.resume.faults`).

    Args:
        settings: Dataclasses whose fields go into ``atommem_config.json``.
        failed_step: Keeps the episodes of the running update.
        kwargs: The trainer's.

    Raises (from `train`):
        TrainingInterrupted: The run was asked to stop.
        BudgetSpentError: Nothing is left of what it may spend.
        TrainingFault: It cannot go on.
    """

    def __init__(
        self,
        *args: Any,
        settings: Sequence[Any] = (),
        failed_step: FailedStep | None = None,
        **kwargs: Any,
    ) -> None:
        self.stop_request = StopRequest()
        self.settings = settings
        self.failed_step = failed_step or FailedStep()
        self.progress: ProgressBars | None = None
        """Of a terminal; none for log files, and for all processes but the main one."""
        self._writing_to: Path | None = None
        self._saved_step: int | None = None
        self._before: dict[str, Any] | None = None
        super().__init__(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """`Trainer.train`, with the endings above."""
        saves = self.args.save_strategy != SaveStrategy.NO
        with self.stop_request.installed() if saves else nullcontext(), frozen_heap():
            try:
                return super().train(*args, **kwargs)
            except (TrainingInterrupted, BudgetSpentError) as stop:
                saved = saves and self._save_before_step()
                raise type(stop)(f"{stop} {_resume_hint(saved, self.args.output_dir)}") from None
            except TrainingFault as fault:
                # DeepSpeed steps inside the backward pass: its parameters are beyond saving by now.
                stepped = self.accelerator.distributed_type == DistributedType.DEEPSPEED
                if not isinstance(
                    fault, (CheckpointError, DivergedError) if stepped else CheckpointError
                ):
                    self._save_before_step()
                self._fail(fault, fault)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._fail(TrainingFault(f"the disk is full: {error}."), error)
            finally:
                if self.progress is not None:
                    self.progress.close()

    def close(self) -> None:
        """Free what a subclass holds beyond the model. The trainer cannot train afterwards."""

    def log_with_update(self, values: Mapping[str, float]) -> None:
        """Log `values` with the running update; TRL takes means where several updates make one entry."""
        for name, value in values.items():
            self._metrics["train"][name].append(value)

    # Checkpoints --------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._writing_to or super()._get_output_dir(trial))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A whole model also where checkpoints are sharded: transformers saves none there."""
        super().save_model(output_dir, _internal_call)
        if sharded.writes_shards(self) and self._writing_to is None:
            weights = self.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(output_dir, state_dict=weights)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL asks for one at every checkpoint, which gets ours (`_save_beside`)."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The checkpoint of the trainer below, written aside, then published."""
        output_dir = Path(super()._get_output_dir(trial))
        partial = partial_folder(output_dir)
        folder = partial / checkpoint_name(self.state.global_step)
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()

        def write() -> None:
            self._writing_to = partial
            try:
                super(ResumableTrainer, self)._save_checkpoint(model, trial)
            finally:
                self._writing_to = None
            self._name_best_checkpoint(output_dir)
            # Last: a full disk may only end this where no process waits for the others any more.
            self.save_extra_state(folder)
            if self.args.should_save:
                self._save_beside(folder)

        self._all_or_nothing(write, folder, output_dir)
        rank, ranks = self.args.process_index, self.args.world_size
        checksums = self._all_or_nothing(
            lambda: seal(folder, share(folder, rank, ranks)), folder, output_dir
        )
        everywhere = gather_object([checksums])
        self._all_or_nothing(
            lambda: self._publish(folder, output_dir, everywhere), folder, output_dir
        )
        self._saved_step = self.state.global_step

    def save_extra_state(self, folder: Path) -> None:
        """Write what else a subclass needs to resume; called on every process, none of which may wait for another."""

    def load_extra_state(self, folder: Path) -> None:
        """Read it back; called on every process when weights and optimizer are those of the checkpoint."""

    def _save_beside(self, folder: Path) -> None:
        if sharded.is_sharded(folder):
            sharded.save_description(self, folder)
        facts = self.describe(folder)
        (folder / TRAINING_ARGS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        self.state.save_to_json(str(folder / TRAINER_STATE_NAME))

    def _publish(
        self, folder: Path, output_dir: Path, checksums: Sequence[Mapping[str, int]]
    ) -> None:
        if self.args.should_save:
            publish(folder, output_dir, dict(item for part in checksums for item in part.items()))
            kept = (self.state.best_model_checkpoint, self.pushing())
            prune(
                output_dir,
                self.args.save_total_limit,
                [Path(one) for one in kept if one is not None],
            )
            shutil.rmtree(folder.parent, ignore_errors=True)
            self.push_checkpoint(output_dir / folder.name)

    def _name_best_checkpoint(self, output_dir: Path) -> None:
        """The trainer below looked for the best checkpoint where it wrote this one: name it where it will be."""
        if self.state.best_global_step:
            best = checkpoint_name(self.state.best_global_step)
            if (
                self.state.best_global_step == self.state.global_step
                or (output_dir / best).is_dir()
            ):
                self.state.best_model_checkpoint = str(output_dir / best)

    def _all_or_nothing(self, part: Callable[[], Result], folder: Path, output_dir: Path) -> Result:
        """Do a part of writing a checkpoint; where it fails on one process, all give the checkpoint up.

        Raises:
            CheckpointError: It failed here, or on another process.
        """
        error: BaseException | None = None
        result: Any = None
        try:
            result = part()
        except CheckpointException as failure:  # torch's: of all processes, by rank
            error = next(iter(failure.failures.values()))[0]
        except (OSError, RuntimeError, SafetensorError) as failure:
            error = failure
        if self._all_agree(error is None):
            return result
        if self.args.should_save:
            shutil.rmtree(folder.parent, ignore_errors=True)
        last = last_checkpoint(output_dir)
        raise CheckpointError(
            f"the checkpoint of update {self.state.global_step} could not be written: "
            f"{'another process failed' if error is None else why_not_written(error, output_dir)}. "
            + (f"The last good one is {last}." if last else "There is none before it.")
        ) from error

    def _save_before_step(self) -> bool:
        """Save the state after the last finished update, whatever has begun since; all ranks together.

        Returns whether there is such a checkpoint: not before the first update of a fresh run.
        """
        if self._before is None or self._saved_step == self.state.global_step:
            return self.state.global_step > 0
        set_rng_states(self._before["rng"])
        self.state.num_input_tokens_seen = self._before["tokens"]
        self._save_checkpoint(self.model, trial=None)
        self.callback_handler.on_save(self.args, self.state, self.control)
        return True

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._in_parts(resume_from_checkpoint):
            sharded.load_model(self, resume_from_checkpoint)
        elif sharded.writes_shards(self) and not sharded.is_sharded(resume_from_checkpoint):
            raise ConfigError(
                f"{resume_from_checkpoint} holds whole weights, and FSDP reads parts here: resume it under the "
                "launcher that it was written under, or begin a run with it as --model_name_or_path."
            )
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._in_parts(checkpoint):
            sharded.load_optimizer(self, checkpoint)
            self.lr_scheduler.load_state_dict(
                torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True)
            )
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.load_extra_state(Path(checkpoint))

    def _load_best_model(self) -> None:
        check_whole(Path(self.state.best_model_checkpoint))
        if self._in_parts(self.state.best_model_checkpoint):
            sharded.load_model(self, self.state.best_model_checkpoint)
        else:
            super()._load_best_model()

    def _in_parts(self, checkpoint: str) -> bool:
        """Whether processes that shared a model wrote the checkpoint, and this one does not share its model."""
        return sharded.is_sharded(checkpoint) and not self.is_fsdp_enabled

    # Where all ranks meet -----------------------------------------------------------------------

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # An update has ended: this is the state that an abandoned one goes back to.
        self._before = {"rng": rng_states(), "tokens": self.state.num_input_tokens_seen}
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Called at the beginning of every update, on all ranks: a safe place to stop."""
        self.meet()
        if (
            self.state.global_step >= self.state.max_steps
        ):  # resumed after its end: transformers would train once more
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def meet(self, broken: Exception | None = None) -> None:
        """All ranks find out whether one of them has to end the run; one collective operation.

        Raises:
            TrainingInterrupted: A rank was asked to stop.
            BudgetSpentError: A rank has nothing left to spend (`broken` is such an error).
            RolloutFailedError: On a rank, sampling has `broken` down.
        """
        code = _STOP if self.stop_request.requested else _GO_ON
        if broken is not None:
            code = _SPENT if isinstance(broken, BudgetSpentError) else _BROKEN
        code = int(self._largest(code))
        update, reason = self.state.global_step + 1, "see the other processes"
        if broken is not None:
            reason = str(broken) if isinstance(broken, AtomMemError) else repr(broken)
        if code == _BROKEN:
            raise RolloutFailedError(f"update {update} cannot be sampled: {reason}") from broken
        if code == _SPENT:
            raise BudgetSpentError(f"stopped before update {update}: {reason}") from broken
        if code == _STOP:
            raise TrainingInterrupted(f"stopped before update {update}.")

    def check_failed_fraction(
        self, failed: int, episodes: int, most: float, of: str | None = None
    ) -> None:
        """End the run when a rollout lost too many episodes to go by the rest; the same on all ranks.

        Args:
            failed, episodes: Of all ranks.
            most: Fraction of `episodes` that may fail.
            of: What the episodes were for; unset is the running update.

        Raises:
            RolloutFailedError: More than the fraction `most` of `episodes` failed.
        """
        if failed > most * episodes:
            reasons = sorted(
                {str(episode.error) for episode in self.failed_step.episodes if episode.failed}
            )
            raise RolloutFailedError(
                f"{failed} of {episodes} episodes of {of or f'update {self.state.global_step + 1}'} failed, more than "
                f"max_failed_fraction {most:g}: {reasons[0] if reasons else 'see the other processes'}"
            )

    def check_loss(self, loss: float) -> None:
        """End the run at a loss that is no number; `loss` has to be the same on all ranks.

        Raises:
            DivergedError: `loss` is NaN or infinite.
        """
        if not math.isfinite(loss):
            raise DivergedError(f"the loss of update {self.state.global_step + 1} is {loss}")

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The gradient norm, before the optimizer steps.

        Raises:
            DivergedError: It is NaN or infinite, as it is after a NaN in the loss.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        value = math.nan if norm is None else float(norm)
        if norm is not None and not math.isfinite(value):
            raise DivergedError(
                f"the gradient norm of update {self.state.global_step + 1} is {value}; the parameters are as they "
                "were before it."
            )
        return norm

    def _all_agree(self, good: bool) -> bool:
        return self._largest(float(not good)) == 0.0

    def _largest(self, value: float) -> float:
        if self.accelerator.num_processes == 1:
            return value
        everywhere = self.accelerator.gather(torch.tensor([value], device=self.accelerator.device))
        return float(everywhere.max())

    def _fail(self, fault: TrainingFault, error: BaseException) -> NoReturn:
        """Write the step's data and raise `fault` with where it is and what to do."""
        output_dir = self.args.output_dir
        checkpoint = last_checkpoint(output_dir)
        folder = self.failed_step.save(
            output_dir,
            self.state.global_step,
            error,
            checkpoint=checkpoint,
            rng=None if self._before is None else self._before["rng"],
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )
        kept = f" Its data is in {folder}." if folder else ""
        if folder and self.failed_step.settings:
            kept = f" Its data is in {folder}: `atommem train replay {folder}` repeats it."
        raise type(fault)(
            f"{str(fault).rstrip('.')}.{kept} {_resume_hint(checkpoint is not None, output_dir)}"
        ) from error


def _restore_to_numbered_cpu(storage: Any, location: str) -> Any:
    """accelerate calls the device of a CPU process ``cpu:0``, a place that `torch.load` does not know by itself."""
    return storage if location.startswith("cpu:") else None


torch.serialization.register_package(15, lambda storage: None, _restore_to_numbered_cpu)


def _resume_hint(saved: bool, output_dir: str) -> str:
    if saved:
        return f"The same command with --resume continues from the last checkpoint in {output_dir}."
    return "There is no checkpoint yet: the same command starts again."


def rng_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's generators, on the devices of this process too."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def set_rng_states(states: Mapping[str, Any]) -> None:
    """Go back to `states`."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.random.set_rng_state(states["cuda"])

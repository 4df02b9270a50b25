"""Guards what `atommem.train.loops.asynchronous` relies on inside TRL: a version that moves it fails here."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import trl.experimental.async_grpo.async_grpo_trainer as trl_async
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from atommem.train.async_config import ASYNC_REFUSED
from atommem.train.loops.asynchronous.samplers import CopyTransfer
from atommem.train.loops.asynchronous.worker import RolloutWorker


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (AsyncGRPOTrainer.training_step, ["self", "model", "inputs", "num_items_in_batch"]),
        (AsyncGRPOTrainer._log_step_metrics, ["self"]),
        (AsyncGRPOTrainer._sync_weight, ["self"]),
        (AsyncGRPOTrainer._save_checkpoint, ["self", "model", "trial"]),
        (trl_async.get_peak_flops_per_device, ["accelerator", "dtype"]),
        (trl_async.save_lora_adapter, ["model", "accelerator", "adapter_name", "dest_dir"]),
    ],
)
def test_signatures(function: object, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (AsyncGRPOTrainer.__init__, "self._peak_flops_per_device = get_peak_flops_per_device(self.accelerator, dtype)"),
        (AsyncGRPOTrainer.__init__, "if weight_transfer is None and is_peft_model(model):"),
        (AsyncGRPOTrainer.__init__, "register_tree_attention()"),
        (AsyncGRPOTrainer.__init__, 'outputs=("log_probs", "entropy")'),
        (AsyncGRPOTrainer.__init__, "self.add_callback(StepIntervalCallback(self._log_step_metrics, 1))"),
        (AsyncGRPOTrainer.__init__, "self.add_callback(StepIntervalCallback(self._sync_weight, "),
        (trl_async._TrainBeginCallback.on_train_begin, "self._trainer._sync_weight()"),
        (AsyncGRPOTrainer._save_checkpoint, "isinstance(self.rollout_worker, AsyncRolloutWorker)"),
        (trl_async._reduce_metric, "if isinstance(values[0], tuple):"),
    ],
)
def test_trl_does_what_we_build_on(function: object, line: str) -> None:
    assert line in inspect.getsource(function)  # type: ignore[arg-type]


def test_protocols() -> None:
    for name in ("start", "stop", "update_model_version", "check_health"):
        ours, theirs = (inspect.signature(getattr(c, name)) for c in (RolloutWorker, trl_async.RolloutWorkerProtocol))
        assert list(ours.parameters) == list(theirs.parameters)
    for name in ("init_weight_transfer", "pause", "send_weights", "resume", "destroy"):
        theirs = inspect.signature(getattr(trl_async.WeightTransferProtocol, name))
        assert list(inspect.signature(getattr(CopyTransfer, name)).parameters) == list(theirs.parameters)


def test_refused_fields_exist() -> None:
    assert set(ASYNC_REFUSED) <= {item.name for item in fields(AsyncGRPOConfig)}

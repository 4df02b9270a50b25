"""Lines of TRL and transformers that training relies on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trl.experimental.async_grpo.async_grpo_trainer as trl_async
import trl.trainer.utils
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from atommem.train.async_config import ASYNC_REFUSED
from atommem.train.train_config import REFUSED

LINES: list[tuple[Any, str]] = [
    (GRPOTrainer.__init__, 'outputs=("log_probs", "entropy"),'),
    (GRPOTrainer.__init__, "self.ref_model = prepare_fsdp(self.ref_model, self.accelerator)"),
    (Trainer.training_step, "self.accelerator.backward(loss, **kwargs)"),
    (Trainer._save_checkpoint, "run_dir = self._get_output_dir(trial=trial)"),
    (trl.trainer.utils.add_fused_lm_head, "_CHUNKED_LOGPROB_CHUNK_SIZE"),
    (AsyncGRPOTrainer.__init__, "register_tree_attention()"),
    (AsyncGRPOTrainer.__init__, "self.add_callback(StepIntervalCallback(self._sync_weight, "),
    (trl_async._TrainBeginCallback.on_train_begin, "self._trainer._sync_weight()"),
]


@pytest.mark.parametrize(("function", "line"), LINES)
def test_library_function_contains_the_line_we_rely_on(function: Any, line: str) -> None:
    assert line in inspect.getsource(function)


def test_trainer_epoch_calls_hooks_in_the_expected_order() -> None:
    """`ResumableTrainer` stops where batches are fetched, and an update ends with its log."""
    body = inspect.getsource(Trainer._run_epoch)
    calls = ["self.get_batch_samples(", "self.training_step(", "self.optimizer.step()"]
    calls += ["self.state.global_step += 1", "self._maybe_log_save_evaluate("]
    places = [body.index(call) for call in calls]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("refused", "config"), [(REFUSED, GRPOConfig), (ASYNC_REFUSED, AsyncGRPOConfig)]
)
def test_refused_fields_exist_in_the_library(refused: dict[str, Any], config: Any) -> None:
    assert refused.keys() - config.__dataclass_fields__.keys() == set()

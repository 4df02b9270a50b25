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
from trl.trainer.utils import FusedCausalLMOutput

from atommem.train.async_config import ASYNC_REFUSED
from atommem.train.train_config import REFUSED


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (
            GRPOTrainer.__init__,
            [
                "self._metrics = {",
                "self._dist = DistributedBackend(self.accelerator)",
                'outputs=("log_probs", "entropy"),',
                "temperature=self.temperature,",
                "self.ref_model = create_model_from_path(",
                "self.ref_model = prepare_fsdp(self.ref_model, self.accelerator)",
                "self._tokenizer =",
            ],
        ),
        (GRPOTrainer.log, ["self._metrics[mode].items()"]),
        # A training step that we replace does no more than ours; TRL's keeps time (see below);
        # transformers' prepares, computes the loss, and goes backward.
        (GRPOTrainer.training_step, ["super().training_step(model, inputs, num_items_in_batch)"]),
        (
            Trainer.training_step,
            [
                'kwargs["scale_wrt_gas"] = False',
                "self.accelerator.backward(loss, **kwargs)",
                "return loss.detach()",
            ],
        ),
        # A checkpoint is written to `_get_output_dir`.
        (Trainer._save_checkpoint, ["run_dir = self._get_output_dir(trial=trial)"]),
        # `tune_lm_head_for_cpu` sets what the fused head reads at every call.
        (
            trl.trainer.utils.add_fused_lm_head,
            [
                "labels = shift_labels",
                "_CHUNKED_LOGPROB_CHUNK_SIZE",
                "compact = _use_triton(hidden_states.device)",
            ],
        ),
        (
            AsyncGRPOTrainer.__init__,
            [
                "self._peak_flops_per_device = get_peak_flops_per_device(self.accelerator, dtype)",
                "if weight_transfer is None and is_peft_model(model):",
                "register_tree_attention()",
                'outputs=("log_probs", "entropy")',
                "self.add_callback(StepIntervalCallback(self._log_step_metrics, 1))",
                "self.add_callback(StepIntervalCallback(self._sync_weight, ",
            ],
        ),
        (trl_async._TrainBeginCallback.on_train_begin, ["self._trainer._sync_weight()"]),
        (
            AsyncGRPOTrainer._save_checkpoint,
            ["isinstance(self.rollout_worker, AsyncRolloutWorker)"],
        ),
        (trl_async._reduce_metric, ["if isinstance(values[0], tuple):"]),
    ],
)
def test_library_functions_contain_the_lines_we_rely_on(function: Any, lines: list[str]) -> None:
    body = inspect.getsource(function)
    assert [line for line in lines if line not in body] == []


def test_replaced_functions_have_not_grown() -> None:
    assert len(inspect.getsource(GRPOTrainer.training_step).strip().splitlines()) == 10
    assert "self.args.output_dir" not in inspect.getsource(Trainer._save_checkpoint)
    assert {"log_probs", "entropy", "label_mask"} <= set(FusedCausalLMOutput.__dataclass_fields__)
    assert isinstance(trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE, int)


def test_trainer_calls_hooks_in_the_expected_order() -> None:
    """`ResumableTrainer` stops where batches are fetched, and an update ends with its log."""
    body = inspect.getsource(Trainer._run_epoch)
    moments = [
        "self.get_batch_samples(",
        "self.training_step(",
        "self._get_grad_norm(",
        "self.optimizer.step()",
    ]
    moments += ["self.state.global_step += 1", "self._maybe_log_save_evaluate("]
    places = [body.index(moment) for moment in moments]
    assert places == sorted(places)
    after = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert (
        after.index("self.log(")
        < after.index("self._evaluate(")
        < after.index("self._save_checkpoint(")
    )


@pytest.mark.parametrize(
    ("refused", "config"), [(REFUSED, GRPOConfig), (ASYNC_REFUSED, AsyncGRPOConfig)]
)
def test_refused_fields_exist(refused: dict[str, Any], config: Any) -> None:
    assert refused.keys() - config.__dataclass_fields__.keys() == set()

"""Guards what on-policy training relies on inside TRL and transformers: a version that moves it fails here."""

from __future__ import annotations

import inspect

import pytest
import trl.trainer.utils
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.packing import TreeRow
from trl.trainer.utils import FusedCausalLMOutput, use_adapter

from atommem.train.train_config import REFUSED


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (GRPOTrainer.get_train_dataloader, ["self"]),
        (GRPOTrainer.training_step, ["self", "model", "inputs", "num_items_in_batch"]),
        (use_adapter, ["model", "adapter_name"]),
        (TreeRow.add, ["self", "sample"]),
        (Trainer._save_checkpoint, ["self", "model", "trial"]),
        (Trainer._get_output_dir, ["self", "trial"]),
        (Trainer._get_grad_norm, ["self", "model", "grad_norm"]),
        (Trainer.get_batch_samples, ["self", "epoch_iterator", "num_batches", "device"]),
        (Trainer.evaluate, ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"]),
    ],
)
def test_signatures(function: object, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters  # type: ignore[arg-type]


def test_the_trainer_makes_what_we_take_from_it() -> None:
    body = inspect.getsource(GRPOTrainer.__init__)
    for line in (
        "self._metrics = {",
        "self._dist = DistributedBackend(self.accelerator)",
        'outputs=("log_probs", "entropy"),',
        "temperature=self.temperature,",
        "self.ref_model = create_model_from_path(",
        "self.ref_model = prepare_fsdp(self.ref_model, self.accelerator)",
        "self._tokenizer =",
    ):
        assert line in body, line
    assert "self._metrics[mode].items()" in inspect.getsource(GRPOTrainer.log)


def test_a_training_step_that_we_replace_does_no_more_than_ours() -> None:
    """TRL's keeps time; transformers' prepares, computes the loss, and goes backward."""
    body = inspect.getsource(GRPOTrainer.training_step)
    assert len(body.strip().splitlines()) == 10
    assert "super().training_step(model, inputs, num_items_in_batch)" in body
    body = inspect.getsource(Trainer.training_step)
    for line in (
        'kwargs["scale_wrt_gas"] = False',
        "self.accelerator.backward(loss, **kwargs)",
        "return loss.detach()",
    ):
        assert line in body, line


def test_the_fused_head_scores_what_is_labelled() -> None:
    assert {"log_probs", "entropy", "label_mask"} <= set(FusedCausalLMOutput.__dataclass_fields__)
    body = inspect.getsource(trl.trainer.utils.add_fused_lm_head)
    assert "labels = shift_labels" in body
    # `tune_lm_head_for_cpu` sets what is read at every call.
    assert isinstance(trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE, int)
    assert "_CHUNKED_LOGPROB_CHUNK_SIZE" in body
    assert "compact = _use_triton(hidden_states.device)" in body


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_fields_exist(name: str) -> None:
    assert name in GRPOConfig.__dataclass_fields__


def test_an_update_begins_and_ends_where_we_think() -> None:
    """`atommem.train.resume.resumable_trainer` stops where batches are fetched, and takes the state of the generators
    where an update ends."""
    body = inspect.getsource(Trainer._run_epoch)
    moments = ["self.get_batch_samples(", "self.training_step(", "self._get_grad_norm(", "self.optimizer.step()"]
    moments += ["self.state.global_step += 1", "self._maybe_log_save_evaluate("]
    places = [body.index(moment) for moment in moments]
    assert places == sorted(places)
    after = inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert after.index("self.log(") < after.index("self._evaluate(") < after.index("self._save_checkpoint(")


def test_a_checkpoint_is_written_where_the_trainer_is_told() -> None:
    body = inspect.getsource(Trainer._save_checkpoint)
    assert "run_dir = self._get_output_dir(trial=trial)" in body
    assert "self.args.output_dir" not in body

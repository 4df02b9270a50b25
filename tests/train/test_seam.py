"""Guards what `train/loops/grpo_trainer.py` relies on inside TRL and transformers: a version that moves it fails
here."""

from __future__ import annotations

import inspect

import pytest
import trl.trainer.utils
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler, use_adapter

from atommem.train.train_config import _FIXED


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (GRPOTrainer._prepare_inputs, ["self", "generation_batch"]),
        (GRPOTrainer._generate_and_score_completions, ["self", "inputs"]),
        (GRPOTrainer._get_train_sampler, ["self", "dataset"]),
        (GRPOTrainer._compute_loss, ["self", "model", "inputs"]),
        (GRPOTrainer.compute_loss, ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]),
        (GRPOTrainer.training_step, ["self", "model", "inputs", "num_items_in_batch"]),
        (Trainer.training_step, ["self", "model", "inputs", "num_items_in_batch"]),
        (
            RepeatSampler.__init__,
            ["self", "data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed"],
        ),
        (use_adapter, ["model", "adapter_name"]),
        (Trainer._save_checkpoint, ["self", "model", "trial"]),
        (Trainer._get_output_dir, ["self", "trial"]),
        (Trainer._get_grad_norm, ["self", "model", "grad_norm"]),
        (Trainer.get_batch_samples, ["self", "epoch_iterator", "num_batches", "device"]),
        (Trainer.evaluate, ["self", "eval_dataset", "ignore_keys", "metric_key_prefix"]),
    ],
)
def test_signatures(function: object, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters  # type: ignore[arg-type]


def test_log_probabilities_take_these_first() -> None:
    parameters = list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
    assert parameters[:5] == ["self", "model", "input_ids", "attention_mask", "logits_to_keep"]


@pytest.mark.parametrize(
    "line",
    [
        'mask = completion_mask if "tool_mask" not in inputs else completion_mask * inputs["tool_mask"]',
        'normalizer = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes',
        "normalizer = normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        "loss = (per_token_loss * mask).sum() / normalizer",
        "old_per_token_logps = per_token_logps.detach() if old_per_token_logps is None else old_per_token_logps",
        'ref_per_token_logps = inputs["ref_per_token_logps"]',
    ],
)
def test_the_loss_is_weighted_and_normalized_as_we_assume(line: str) -> None:
    assert line in inspect.getsource(GRPOTrainer._compute_loss)


def test_trainer_and_trl_do_not_touch_what_we_bypass() -> None:
    """Our step replaces TRL's, which does no more than keep time and count."""
    body = inspect.getsource(GRPOTrainer.training_step)
    assert len(body.strip().splitlines()) == 10
    assert "super().training_step(model, inputs, num_items_in_batch)" in body
    assert "self._prepare_inputs(inputs)" in inspect.getsource(Trainer.training_step)


def test_the_tile_width_is_read_at_every_call() -> None:
    assert isinstance(trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE, int)
    assert "_CHUNKED_LOGPROB_CHUNK_SIZE" in inspect.getsource(trl.trainer.utils.add_fused_lm_head)


@pytest.mark.parametrize("name", sorted(_FIXED))
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

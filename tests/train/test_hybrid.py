"""Hybrids of attention and DeltaNet layers (Qwen3.5): padded rows and sampling."""

from typing import Any

import pytest
import torch
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
)
from trl.trainer.utils import add_fused_lm_head

from atommem.policy.contract import Sampling
from atommem.policy.decoding import Row, decode
from atommem.policy.local import LocalPolicy, evaluating
from atommem.train.loops.models import load_model
from atommem.train.packing.micro_batch import pad_rows
from atommem.train.packing.tree_attention import tree_obstacle
from tests.tokenizer_shapes import byte_level
from tests.train.harness import make_config
from tests.train.toys import EOS, PAD, VOCABULARY, make_row

LENGTHS = (5, 70, 130)  # DeltaNet is computed in chunks of 64 tokens


def hybrid_config() -> Any:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 1}
    return Qwen3_5TextConfig(
        **{"vocab_size": VOCABULARY + 2, "hidden_size": 16, "intermediate_size": 32},
        **{**heads, **linear, "linear_num_value_heads": 2, "num_hidden_layers": 4},
        **{"pad_token_id": PAD, "eos_token_id": EOS},
        initializer_range=0.1,  # a larger spread enlarges rounding
    )


def make_hybrid() -> Any:
    torch.manual_seed(0)
    return Qwen3_5ForCausalLM(hybrid_config())


@pytest.mark.slow
def test_text_model_of_a_vision_language_checkpoint_is_trained_and_evaluated(tmp_path):
    """The names of an adapter's weights differ between the two, which peft only warns of."""
    size = {"hidden_size": 16, "num_heads": 2}
    vision = {**size, "depth": 1, "intermediate_size": 16, "out_hidden_size": 16}
    config = Qwen3_5Config(text_config=hybrid_config().to_dict(), vision_config=vision)
    Qwen3_5ForConditionalGeneration(config).save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    trained = load_model(str(tmp_path), make_config(tmp_path))
    evaluated = LocalPolicy.from_pretrained(tmp_path).model
    assert type(trained) is type(evaluated) is Qwen3_5ForCausalLM
    torch.testing.assert_close(trained.state_dict(), evaluated.state_dict(), atol=0, rtol=0)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.mark.slow
def test_padded_rows_of_a_hybrid_equal_rows_one_by_one():
    model = make_hybrid()
    assert tree_obstacle(model) == "it has linear_attention layers"
    add_fused_lm_head(model)
    rows = [make_row(prompt, prompt[: 3 + index]) for index, prompt in enumerate(prompts())]

    def scores(batches: list[list[Any]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        logps = torch.cat([pad_rows(batch, PAD).score(model)[0] for batch in batches])
        return logps, list(torch.autograd.grad(logps.sum(), list(model.parameters())))

    together, alone = scores([rows]), scores([[row] for row in rows])
    torch.testing.assert_close(together[0], alone[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(together[1], alone[1], atol=1e-5, rtol=1e-4)
    # What stands in the other rows changes not a bit.
    others = [make_row(row.prompt_ids[::-1].tolist(), [1] * len(row.logprobs)) for row in rows]
    mixed = pad_rows([rows[0], others[1], rows[2]], PAD).score(model)[0].split([3, 4, 5])
    for index in (0, 2):
        assert torch.equal(mixed[index], together[0].split([3, 4, 5])[index])


@pytest.mark.slow
def test_sampling_of_a_hybrid_is_the_same_in_a_batch_and_in_training():
    model = make_hybrid()

    def sampled(*batch: list[int]) -> list[Row]:
        rows = [
            Row(ids, Sampling(1.0, max_completion_length=6 + len(ids) % 7, seed=len(ids)))
            for ids in batch
        ]
        with evaluating(model):
            decode(model, rows, {EOS}, PAD)
        return rows

    first, second, third = prompts()
    batch = sampled(first, second, third, second)  # equal prompts share a prefill
    add_fused_lm_head(model)
    for row, (alone,) in zip(batch, map(sampled, (first, second, third, second)), strict=True):
        assert row.token_ids == alone.token_ids
        assert row.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        scored = pad_rows([make_row(row.prompt_ids, row.token_ids)], PAD).score(model)[0]
        assert row.logprobs == pytest.approx(scored.tolist(), abs=1e-5)

"""Attention over tries against the dense mask that defines it."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

from atommem.train.packing.micro_batch import pack_rows
from atommem.train.packing.planning import lexicographic
from atommem.train.packing.tree_attention import (
    Tree,
    flex_mask,
    flex_tree_attention,
    tree_attention,
    tree_obstacle,
)
from tests.train.toys import make_model, make_row

# Two roots; the first has two branches of which one branches again.
SPANS = ((0, 5, 20), (5, 8, 14), (8, 10, 10), (10, 14, 14), (14, 20, 20), (20, 22, 22))


def heads(tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries of four heads, keys and values of two."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, n, tokens, 16, generator=generator).to(dtype).requires_grad_()
        for n in (4, 2, 2)
    ]


def dense(tree: Tree) -> torch.Tensor:
    """The visibility rule, written out."""
    visible = torch.zeros(tree.length, tree.length, dtype=torch.bool)
    for start, end, below in tree.spans:
        for q in range(start, below):
            visible[q, start : min(q + 1, end)] = True
    return visible


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_tree_attention_equals_the_dense_mask(dtype: torch.dtype, tolerance: float) -> None:
    tree = Tree(SPANS)
    ours = heads(22, dtype)
    out, _ = tree_attention(torch.nn.Identity(), *ours, None, tree=tree, scaling=0.3)
    exact = [x.detach().float().requires_grad_() for x in ours]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *exact, attn_mask=dense(tree), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    weights = torch.randn_like(expected)
    got = torch.autograd.grad((out * weights.to(dtype)).sum(), ours)
    wanted = torch.autograd.grad((expected * weights).sum(), exact)
    for a, b in zip((out, *got), (expected, *wanted), strict=True):
        assert a.dtype == dtype
        assert torch.allclose(a.float(), b, atol=tolerance, rtol=tolerance)


def random_tree(seed: int, rows: int, longest: int) -> Tree:
    rng = random.Random(seed)
    prompts = [rng.choices([0, 1], (9, 1), k=rng.randint(1, longest)) for _ in range(rows)]
    return pack_rows(lexicographic([make_row(prompt, [2]) for prompt in prompts])).tree


@pytest.mark.parametrize("seed", range(4))
def test_flex_mask_equals_the_dense_mask(seed: int) -> None:
    tree = random_tree(seed, 1 + 4 * seed, 600)
    visible = dense(tree)
    expected = create_block_mask(
        lambda b, h, q, k: visible[q, k], None, None, tree.length, tree.length, device="cpu"
    )
    mask = flex_mask(tree, torch.device("cpu"))
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name
        indices = name.replace("num_blocks", "indices")
        assert torch.equal(getattr(mask, indices), getattr(expected, indices)), indices
    assert mask.seq_lengths == expected.seq_lengths
    everywhere = torch.arange(tree.length)
    assert torch.equal(mask.mask_mod(0, 0, everywhere[:, None], everywhere), visible)


def test_flex_tree_attention_equals_tree_attention() -> None:
    """Without gradients, which `flex_attention` lacks on CPU."""
    tree = random_tree(0, 6, 200)
    query, key, value = (x.detach() for x in heads(tree.length))
    out = flex_tree_attention(query, key, value, tree, 0.25, flex=flex_attention)
    expected, _ = tree_attention(
        torch.nn.Identity(), query, key, value, None, tree=tree, scaling=0.25
    )
    assert torch.allclose(out, expected, atol=1e-6)


def test_tree_obstacle_names_what_a_model_has() -> None:
    model = make_model()
    llama = LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    assert tree_obstacle(model) is tree_obstacle(LlamaForCausalLM(llama)) is None
    model.config.layer_types = ["linear_attention"] * 2
    assert "linear_attention layers" in str(tree_obstacle(model))
    windowed = make_model()
    windowed.config = Qwen3Config(
        sliding_window=8, use_sliding_window=True, layer_types=["full_attention"] * 32
    )
    assert "sliding window of 8" in str(tree_obstacle(windowed))

"""Attention over tries against the dense mask that defines it."""

from __future__ import annotations

import inspect
import random

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config
from trl.experimental.async_grpo.packing import tree_attention as trl_kernel

from atommem.train.packing import tree_attention as module
from atommem.train.packing.micro_batch import pack_rows
from atommem.train.packing.planning import lexicographic
from atommem.train.packing.tree_attention import (
    Tree,
    flex_mask,
    flex_tree_attention,
    has_flash_attention_3,
    register_tree_attention,
    tree_attention,
    tree_obstacle,
    use_tree_attention,
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


def test_tree_is_not_copied_by_fsdp2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FSDP2 casts the arguments of every layer, and copies dataclasses among them."""
    seen = []

    def record(*arguments: object, tree: Tree, **kwargs: object) -> tuple[torch.Tensor, None]:
        seen.append(tree)
        return attention(*arguments, tree=tree, **kwargs)  # type: ignore[arg-type]

    attention = module.tree_attention
    monkeypatch.setattr(module, "tree_attention", record)
    register_tree_attention()
    model = make_model()
    packed = pack_rows([make_row([1, 2, 3], [4, token]) for token in (5, 6, 7)])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for part in (*model.model.layers, model):
            fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        with use_tree_attention(model):
            model(
                **{name: packed.inputs[name] for name in ("input_ids", "position_ids")},
                tree=packed.tree,
            )
    finally:
        dist.destroy_process_group()
        monkeypatch.undo()
        register_tree_attention()
    assert len(seen) == len(model.model.layers)
    assert all(tree is packed.tree for tree in seen)


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


@pytest.mark.parametrize(
    ("hopper", "dtype"), [(True, torch.bfloat16), (True, torch.float32), (False, torch.bfloat16)]
)
def test_tree_attention_selects_the_kernel_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, hopper: bool, dtype: torch.dtype
) -> None:
    """TRL's kernel for half precision on Hopper; flex_attention elsewhere."""
    assert not has_flash_attention_3(torch.device("cpu"))
    monkeypatch.setattr(module, "has_flash_attention_3", lambda device: hopper)
    monkeypatch.setattr(
        module.trl_packing, "tree_attention", lambda *_, **given: ("kernel", sorted(given))
    )
    monkeypatch.setattr(
        module, "_compiled_flex_attention", lambda: lambda query, *_, **given: query
    )
    query, key, value = (x.detach().to("meta", dtype) for x in heads(22))
    out, names = tree_attention(torch.nn.Identity(), query, key, value, None, tree=Tree(SPANS))
    if hopper and dtype == torch.bfloat16:
        accepted = inspect.signature(trl_kernel).parameters
        assert out == "kernel"
        assert set(names) <= set(accepted)
    else:
        assert out.shape == (1, 22, 4, 16)


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

"""Balancing and cutting rows, packed tries and padded rows, and attention over tries."""

import itertools
import random
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import (
    balance,
    cut,
    lexicographic,
    pack_rows,
    shared_prefixes,
)
from atommem.train.packing.tree_attention import (
    Tree,
    describe_kernel,
    flash_tree_attention,
    flex_tree_attention,
    key_paths,
    load_flash_attention,
    tree_attention,
)
from tests.train.toys import make_row


def sorted_rows(seed: int, count: int) -> list[Row]:
    """Rows over two tokens: they share prefixes of all lengths, and some are equal."""
    rng = random.Random(seed)
    ids = [[rng.choices(range(2), k=rng.randint(1, 6)) for _ in range(2)] for _ in range(count)]
    return lexicographic([make_row(*both) for both in ids])


@given(st.lists(st.lists(st.floats(0.1, 50), max_size=12), min_size=1, max_size=6))
def test_balance_never_raises_the_largest_load(costs):
    owners = balance(costs)
    loads = [0.0] * len(costs)
    for rank_costs, rank_owners in zip(costs, owners, strict=True):
        for cost, owner in zip(rank_costs, rank_owners, strict=True):
            loads[owner] += cost
    assert max(loads) <= max(map(sum, costs)) + 1e-9


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(3, 40))
def test_cut_of_sorted_rows_keeps_the_budget(seed, count, budget):
    rows = sorted_rows(seed, count)
    counts = cut([len(row) for row in rows], shared_prefixes(rows), 0.1, budget)
    assert sum(counts) == count
    for end, size in zip(itertools.accumulate(counts), counts, strict=True):
        assert size == 1 or pack_rows(rows[end - size : end]).computed <= budget
    # 24 equal rows are 8 budgets of keys, which FlashAttention-3 gets for each of them.
    assert cut([10] * 30, [0, *[10] * 29], 0.1, 30) == [24, 6]


@given(st.integers(0, 10_000), st.integers(1, 14))
def test_pack_rows_has_the_path_of_every_row(seed, count):
    rows = sorted_rows(seed, count)
    packed = pack_rows(rows)
    ids, labels = (packed.inputs[name][0] for name in ("input_ids", "shift_labels"))
    # A token is shared by the rows that agree up to its next token.
    assert len(ids) == len({(i, *row.ids[: i + 2]) for row in rows for i in range(len(row))})
    index, queries, keys, *_ = key_paths(packed.tree, torch.device("cpu"))
    visible: dict[int, torch.Tensor] = {}
    for (first, after), (start, end) in zip(*map(pairs, (queries, keys)), strict=True):
        for position in range(first, after):
            visible[position] = index[start : end - (after - 1 - position)]
    ends = itertools.accumulate(len(row.completion_ids) for row in rows)
    for row, end in zip(rows, ends, strict=True):
        scored = packed.token_index[end - len(row.completion_ids) : end]
        assert ids[visible[int(scored[-1])]].tolist() == list(row.ids[:-1])
        assert labels[scored].tolist() == list(row.completion_ids)


def pairs(ends: torch.Tensor) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(ends.tolist())


def heads(tokens: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, tokens, 16) for heads in (4, 2, 2)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def dense(tree: Tree) -> torch.Tensor:
    visible = torch.zeros(tree.length, tree.length, dtype=torch.bool)
    for start, end, below in tree.spans:
        for q in range(start, below):
            visible[q, start : min(q + 1, end)] = True
    return visible


@pytest.mark.parametrize(
    ("dtype", "width", "tolerance"),
    [(torch.float32, 16, 1e-5), (torch.bfloat16, 16, 2e-2), (torch.float32, 8, 1e-5)],
)
def test_tree_attention_equals_the_dense_mask(dtype, width, tolerance):
    """Values of latent attention (DeepSeek's) are narrower than queries."""
    # Two roots; the first has two branches of which one branches again.
    tree = Tree(((0, 5, 20), (5, 8, 14), (8, 10, 10), (10, 14, 14), (14, 20, 20), (20, 22, 22)))
    query, key, value = heads(22)
    ours = [x.to(dtype).requires_grad_() for x in (query, key, value[..., :width])]
    out, _ = tree_attention(torch.nn.Identity(), *ours, None, tree=tree, scaling=0.3)
    exact = [x.detach().float().requires_grad_() for x in ours]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *exact, attn_mask=dense(tree), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    weights = torch.randn_like(expected)
    got = torch.autograd.grad((out * weights.to(dtype)).sum(), ours)
    wanted = torch.autograd.grad((expected * weights).sum(), exact)
    for a, b in zip((out, *got), (expected, *wanted), strict=True):
        torch.testing.assert_close(a, b.to(dtype), atol=tolerance, rtol=tolerance)


class Flash:
    """FlashAttention-3's kernel for rows of several lengths, row by row."""

    @staticmethod
    def flash_attn_varlen_func(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        queries: torch.Tensor, keys: torch.Tensor, most: int, longest: int,
        *, softmax_scale: float, causal: bool,
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        out = []
        for (first, after), (start, end) in zip(pairs(queries), pairs(keys), strict=True):
            count, length = after - first, end - start
            assert count <= most
            assert length <= longest
            visible = torch.ones(count, length, dtype=torch.bool).tril(length - count)
            parts = (
                x.transpose(0, 1) for x in (query[first:after], key[start:end], value[start:end])
            )
            settings: Any = {"attn_mask": visible, "scale": softmax_scale, "enable_gqa": True}
            attend = torch.nn.functional.scaled_dot_product_attention
            out.append(attend(*parts, **settings).transpose(0, 1))
        return torch.cat(out)


def test_flash_attention_3_is_used_on_hopper_and_equals_tree_attention(monkeypatch):
    gpu = torch.device("cuda")
    load_flash_attention.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert describe_kernel(gpu) == "flex_attention (FlashAttention-3 needs a Hopper GPU)"
    load_flash_attention.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "kernels", None)
    assert "pip install -e '.[gpu]'" in describe_kernel(gpu)
    load_flash_attention.cache_clear()
    kernels: Any = ModuleType("kernels")
    found = {("kernels-community/flash-attn3", 1): Flash}
    kernels.get_kernel = lambda name, version: found[name, version]
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    assert describe_kernel(gpu) == "FlashAttention-3"
    assert_equals_tree_attention(flash_tree_attention, load_flash_attention(gpu))
    load_flash_attention.cache_clear()


def assert_equals_tree_attention(attend: Any, kernel: Any) -> None:
    rng = random.Random(0)
    prompts = [rng.choices([0, 1], (9, 1), k=rng.randint(1, 200)) for _ in range(6)]
    tree = pack_rows(lexicographic([make_row(prompt, [2]) for prompt in prompts])).tree
    states = heads(tree.length)
    expected, _ = tree_attention(torch.nn.Identity(), *states, None, tree=tree, scaling=0.25)
    out = attend(*states, tree, 0.25, kernel)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_flex_tree_attention_equals_tree_attention():
    """Without gradients, which `flex_attention` lacks on CPU."""
    assert_equals_tree_attention(flex_tree_attention, flex_attention)

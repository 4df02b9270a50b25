"""Balancing and cutting rows, packed tries, attention over them, and padded rows of hybrids."""

import itertools
import random
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from trl.trainer.utils import add_fused_lm_head

from atommem.policy import decoding
from atommem.policy.contract import Sampling
from atommem.policy.local import LocalPolicy, evaluating
from atommem.train.loops.models import load_model
from atommem.train.objective.rows import Row
from atommem.train.packing import micro_batch, tree_attention
from atommem.train.packing.micro_batch import cut, lexicographic, pack_rows, pad_rows
from atommem.train.packing.tree_attention import Tree, describe_kernel, load_flash_attention
from tests.tokenizer_shapes import byte_level
from tests.train.harness import make_config
from tests.train.toys import EOS, PAD, VOCABULARY, make_row


def sorted_rows(seed: int, count: int) -> list[Row]:
    """Rows over two tokens: they share prefixes of all lengths, and some are equal."""
    rng = random.Random(seed)
    ids = [[rng.choices(range(2), k=rng.randint(1, 6)) for _ in range(2)] for _ in range(count)]
    return lexicographic([make_row(*both) for both in ids])


@given(st.lists(st.lists(st.floats(0.1, 50), max_size=12), min_size=1, max_size=6))
def test_balance_never_raises_the_largest_load(costs):
    owners = micro_batch.balance(costs)
    loads = [0.0] * len(costs)
    for rank_costs, rank_owners in zip(costs, owners, strict=True):
        for cost, owner in zip(rank_costs, rank_owners, strict=True):
            loads[owner] += cost
    assert max(loads) <= max(map(sum, costs)) + 1e-9


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(3, 40))
def test_cut_of_sorted_rows_keeps_the_budget(seed, count, budget):
    rows = sorted_rows(seed, count)
    counts = cut([len(row) for row in rows], micro_batch.shared_prefixes(rows), 0.1, budget)
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
    index, queries, keys, *_ = tree_attention.key_paths(packed.tree, torch.device("cpu"))
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
    # Two roots; the first has two branches of which one branches again.
    tree = Tree(((0, 5, 20), (5, 8, 14), (8, 10, 10), (10, 14, 14), (14, 20, 20), (20, 22, 22)))
    query, key, value = heads(22)
    ours = [x.to(dtype).requires_grad_() for x in (query, key, value[..., :width])]
    out, _ = tree_attention.tree_attention(torch.nn.Identity(), *ours, None, tree=tree, scaling=0.3)
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
    assert_equals_tree_attention(tree_attention.flash_tree_attention, load_flash_attention(gpu))
    load_flash_attention.cache_clear()


def assert_equals_tree_attention(attend: Any, kernel: Any) -> None:
    rng = random.Random(0)
    prompts = [rng.choices([0, 1], (9, 1), k=rng.randint(1, 200)) for _ in range(6)]
    tree = pack_rows(lexicographic([make_row(prompt, [2]) for prompt in prompts])).tree
    states = heads(tree.length)
    expected, _ = tree_attention.tree_attention(
        torch.nn.Identity(), *states, None, tree=tree, scaling=0.25
    )
    out = attend(*states, tree, 0.25, kernel)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_flex_tree_attention_equals_tree_attention():
    """Without gradients, which `flex_attention` lacks on CPU."""
    assert_equals_tree_attention(tree_attention.flex_tree_attention, flex_attention)


# Hybrids of attention and DeltaNet layers (Qwen3.5): padded rows and sampling ---


LENGTHS = (5, 70, 130)  # DeltaNet is computed in chunks of 64 tokens


def hybrid_config() -> Any:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 1}
    return hf.Qwen3_5TextConfig(
        **{"vocab_size": VOCABULARY + 2, "hidden_size": 16, "intermediate_size": 32},
        **{**heads, **linear, "linear_num_value_heads": 2, "num_hidden_layers": 4},
        **{"pad_token_id": PAD, "eos_token_id": EOS},
        initializer_range=0.1,  # a larger spread enlarges rounding
    )


def make_hybrid() -> Any:
    torch.manual_seed(0)
    return hf.Qwen3_5ForCausalLM(hybrid_config())


@pytest.mark.slow
def test_text_model_of_a_vision_language_checkpoint_is_trained_and_evaluated(tmp_path):
    """The names of an adapter's weights differ between the two, which peft only warns of."""
    size = {"hidden_size": 16, "num_heads": 2}
    vision = {**size, "depth": 1, "intermediate_size": 16, "out_hidden_size": 16}
    config = hf.Qwen3_5Config(text_config=hybrid_config().to_dict(), vision_config=vision)
    hf.Qwen3_5ForConditionalGeneration(config).save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    trained = load_model(str(tmp_path), make_config(tmp_path))
    evaluated = LocalPolicy.from_pretrained(tmp_path).model
    assert type(trained) is type(evaluated) is hf.Qwen3_5ForCausalLM
    torch.testing.assert_close(trained.state_dict(), evaluated.state_dict(), atol=0, rtol=0)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.mark.slow
def test_padded_rows_of_a_hybrid_equal_rows_one_by_one():
    model = make_hybrid()
    assert tree_attention.tree_obstacle(model) == "it has linear_attention layers"
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

    def sampled(*batch: list[int]) -> list[decoding.Row]:
        rows = [
            decoding.Row(ids, Sampling(1.0, max_completion_length=6 + len(ids) % 7, seed=len(ids)))
            for ids in batch
        ]
        with evaluating(model):
            decoding.decode(model, rows, {EOS}, PAD)
        return rows

    first, second, third = prompts()
    batch = sampled(first, second, third, second)  # equal prompts share a prefill
    add_fused_lm_head(model)
    for row, (alone,) in zip(batch, map(sampled, (first, second, third, second)), strict=True):
        assert row.token_ids == alone.token_ids
        assert row.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        scored = pad_rows([make_row(row.prompt_ids, row.token_ids)], PAD).score(model)[0]
        assert row.logprobs == pytest.approx(scored.tolist(), abs=1e-5)

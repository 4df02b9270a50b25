"""Token tries packed into one row, and attention over them for CPU and GPU.

Tokens are in depth-first pre-order, where a *segment* is a run of tokens
without a branch. A token sees the tokens of its own segment up to itself, and every token of the
segments above it. In pre-order the tokens below a segment are contiguous, so with ``end[k]`` the
position after the last descendant of token k's segment::

    query q sees key k  <=>  k <= q < end[k]

On CPU no mask is built: each segment attends causally to itself, everything below it attends to it
in one dense block, and the parts are merged by their log-sum-exp (as in flash and ring attention).
On Hopper GPUs it is FlashAttention-3 (from the library ``kernels``), on others `flex_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION_NAME = "atommem_tree"

PASS_NOTHING_ON = ("nemotron",)  # models whose layers keep the tree from their attention
BLOCK = 128  # queries and keys per block of `flex_mask`


class Tree:
    """The shape of a packed trie of `length` tokens.

    `spans` has for each segment, in packed order: its first position, the position after its last
    one, and the position after the last token below it. Not a dataclass: FSDP2 would copy it, with
    what `cached` holds, for every layer.
    """

    def __init__(self, spans: tuple[tuple[int, int, int], ...]) -> None:
        self.spans = spans
        self._cache: dict[Any, Any] = {}

    @classmethod
    def from_segments(cls, boundaries: list[int], depths: list[int]) -> Tree:
        """Build the trie: where segments begin, then the row's length; depths of first tokens."""
        spans = []
        for i, depth in enumerate(depths):
            # In pre-order, what is below a segment ends at the next one that starts no deeper.
            after = (j for j in range(i + 1, len(depths)) if depths[j] <= depth)
            spans.append((boundaries[i], boundaries[i + 1], boundaries[next(after, -1)]))
        return cls(tuple(spans))

    @property
    def length(self) -> int:
        return self.spans[-1][1]

    def cached(self, make: Callable[[Tree, torch.device], Any], device: torch.device) -> Any:
        """Return ``make(self, device)``, computed once for all layers and the backward pass."""
        if make not in self._cache:
            self._cache[make] = make(self, device)
        return self._cache[make]

    def ends(self, device: torch.device) -> Tensor:
        """Return the ``end[k]`` of the visibility rule, (length,) int32."""
        spans = torch.tensor(self.spans, dtype=torch.int32)
        return spans[:, 2].repeat_interleave((spans[:, 1] - spans[:, 0]).long()).to(device)


def flex_mask(tree: Tree, device: torch.device) -> BlockMask:
    """Return the visibility rule as a block mask, without a dense mask of length x length.

    A block of keys is visible to a whole later block of queries if all of its segments end after
    the last query, and to some of them if any segment ends after the first query.
    """
    ends = tree.ends(device)
    blocks = -(-tree.length // BLOCK)
    of_blocks = torch.nn.functional.pad(ends, (0, blocks * BLOCK - tree.length)).view(blocks, BLOCK)
    first = BLOCK * torch.arange(blocks, device=device)[:, None]
    before = first > first.T
    whole = before & (first + BLOCK <= of_blocks.amin(1))
    part = before & ~whole & (first < of_blocks.amax(1)) | (first == first.T)

    def visible(batch: Any, head: Any, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[k])

    def ordered(seen: Tensor) -> tuple[Tensor, Tensor]:
        # How many key blocks each query block sees, and their indices first.
        numbers = seen.byte().argsort(dim=-1, descending=True, stable=True)
        return seen.sum(-1)[None, None].int(), numbers[None, None].int()

    lengths = (tree.length, tree.length)
    return BlockMask.from_kv_blocks(
        *ordered(part), *ordered(whole), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=lengths
    )


def key_paths(tree: Tree, device: torch.device) -> tuple[Any, ...]:
    """Return each segment's path of keys, as variable-length attention takes them.

    In order: indices of the keys, segment after segment; cumulative lengths of queries and of
    keys; the longest of each. Every layer gathers the keys: at most ``num_generations x
    token_budget`` keys and values if rows share prefixes within their group.
    """
    paths: list[np.ndarray] = []
    above: list[tuple[int, int, int]] = []
    for span in tree.spans:
        above = [*(outer for outer in above if outer[2] > span[0]), span]
        paths.append(np.concatenate([np.arange(start, end) for start, end, _ in above]))
    lengths = [[end - start for start, end, _ in tree.spans], [len(path) for path in paths]]
    ends = (torch.tensor([0, *accumulate(part)], dtype=torch.int32).to(device) for part in lengths)
    return torch.from_numpy(np.concatenate(paths)).to(device), *ends, *map(max, lengths)


class _MergedAttention(torch.autograd.Function):
    """Exact attention from unmasked blocks.

    Queries are (group, key heads, tokens, width), keys and values (1, key heads, tokens, width):
    `group` query heads share a key head. The backward pass of a block needs only the *merged*
    output and log-sum-exp, so neither probabilities nor the blocks' own outputs are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float
    ) -> Tensor:
        # Accumulate in float32, whatever the model computes in.
        out = torch.zeros_like(query, dtype=torch.float32)
        lse = query.new_full(query.shape[:-1], -torch.inf, dtype=torch.float32)
        for queries, keys, causal in _blocks(tree):
            part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, queries],
                *_expand(key, value, keys, len(query)),
                0.0,
                causal,
                scale=scale,
            )
            before = lse[:, :, queries]
            total = torch.logaddexp(before, part_lse)
            out[:, :, queries].mul_((before - total).exp().unsqueeze(-1))
            out[:, :, queries].add_(part * (part_lse - total).exp().unsqueeze(-1))
            before.copy_(total)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        gradients = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
        for queries, keys, causal in _blocks(ctx.tree):
            d_query, d_key, d_value = (
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grads[0][:, :, queries],
                    query[:, :, queries],
                    *_expand(key, value, keys, len(query)),
                    out[:, :, queries],
                    lse[:, :, queries],
                    0.0,
                    causal,
                    scale=ctx.scale,
                )
            )
            gradients[0][:, :, queries] += d_query
            gradients[1][:, :, keys] += d_key.sum(0, keepdim=True)
            gradients[2][:, :, keys] += d_value.sum(0, keepdim=True)
        return *(gradient.to(query.dtype) for gradient in gradients), None, None


def _blocks(tree: Tree) -> Iterator[tuple[slice, slice, bool]]:
    """Yield (queries, keys, causal) of every block; together they are the visibility rule."""
    for start, end, below in tree.spans:
        yield slice(start, end), slice(start, end), True
        if below > end:
            yield slice(end, below), slice(start, end), False


def _expand(key: Tensor, value: Tensor, keys: slice, group: int) -> tuple[Tensor, Tensor]:
    return key[:, :, keys].expand(group, -1, -1, -1), value[:, :, keys].expand(group, -1, -1, -1)


@cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def flex_tree_attention(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float, flex: Any = None
) -> Tensor:
    """Attend with `flex` (compiled `flex_attention`) under the tree's block mask."""
    flex = flex or _compiled_flex_attention()
    mask, grouped = tree.cached(flex_mask, query.device), query.size(1) != key.size(1)
    return flex(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped).transpose(1, 2)


def flash_tree_attention(
    query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float, flash: Any
) -> Tensor:
    """Attend from each segment to the keys of its path, with the kernels of `flash`."""
    index, *lengths = tree.cached(key_paths, query.device)
    query, key, value = (x.transpose(1, 2)[0] for x in (query, key, value))
    keys = key.index_select(0, index), value.index_select(0, index)
    out = flash.flash_attn_varlen_func(query, *keys, *lengths, softmax_scale=scale, causal=True)
    return (out[0] if isinstance(out, tuple) else out)[None]


@cache
def load_flash_attention(device: torch.device) -> Any:
    """Return the FlashAttention-3 kernels, or why they do not run here."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "FlashAttention-3 needs a Hopper GPU"
    try:
        from kernels import get_kernel

        return get_kernel("kernels-community/flash-attn3", version=1)
    except ImportError:
        return "FlashAttention-3 needs the extra gpu: pip install -e '.[gpu]'"
    except Exception as error:  # any error of a download or an incompatible library
        return f"FlashAttention-3 cannot be loaded: {error}"


def describe_kernel(device: torch.device) -> str:
    """Name the attention kernel of `device`, and why it is not FlashAttention-3."""
    if device.type == "cpu":
        return "dense blocks of scaled_dot_product_attention"
    flash = load_flash_attention(device)
    return f"flex_attention ({flash})" if isinstance(flash, str) else "FlashAttention-3"


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Tree,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within one packed row, as transformers calls an attention function.

    Queries are (1, heads, tokens, width), keys and values (1, key heads, tokens, width), the result
    (1, tokens, heads, width). `tree` is passed through the model's forward as a keyword argument.
    """
    # Under autocast, normalized and rotated queries and keys are float32, values bfloat16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    (_, heads, tokens, width), key_heads = query.shape, key.size(1)
    scale = width**-0.5 if scaling is None else scaling
    # Values of latent attention (DeepSeek's) are narrower; kernels want one width.
    own = value.size(-1)
    value = torch.nn.functional.pad(value, (0, width - own))
    flash = load_flash_attention(query.device)
    if query.device.type == "cpu":
        # Query head h reads key head h // group.
        grouped = query.view(key_heads, heads // key_heads, tokens, width).transpose(0, 1)
        out = _MergedAttention.apply(grouped, key, value, tree, scale)
        out = out.permute(2, 1, 0, 3).reshape(1, tokens, heads, width)
    elif value.dtype == torch.float32 or isinstance(flash, str):
        out = flex_tree_attention(query, key, value, tree, scale)
    else:
        out = flash_tree_attention(query, key, value, tree, scale, flash)
    return out[..., :own], None


AttentionInterface.register(ATTENTION_NAME, tree_attention)
AttentionMaskInterface.register(ATTENTION_NAME, lambda **kwargs: None)


@contextmanager
def use_tree_attention(model: Any) -> Iterator[None]:
    """Make `model` attend along tries.

    Enclose the backward pass too: gradient checkpointing repeats the forward pass there.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def tree_obstacle(model: Any) -> str | None:
    """Return why `model` cannot attend along tries; None if it can."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if layers:
        return f"it has {', '.join(sorted(layers))} layers"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"its attention has a sliding window of {config.sliding_window} tokens"
    if any(name.endswith(".sinks") for name, _ in base.named_parameters()):
        return "its attention has sinks"
    if getattr(config, "attn_logit_softcapping", None):
        return "its attention scores are soft-capped"
    if not base._supports_attention_backend or config.model_type in PASS_NOTHING_ON:
        return "its attention cannot be replaced"
    return None

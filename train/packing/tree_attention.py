"""Attention over a token trie (`atommem.train.packing.tree`) for CPU and GPU.

On CPU no mask is built: each segment attends causally to itself, everything below it attends to it
in one dense block, and the parts are merged by their log-sum-exp (as in flash and ring attention).
On Hopper GPUs it is TRL's FlashAttention-3 kernel if available, on others `flex_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import trl.experimental.async_grpo.packing as trl_packing
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils import is_kernels_available, logging

from atommem.train.packing.tree import Tree, flex_mask, kernel_arguments

ATTENTION_NAME = "atommem_tree"
logger = logging.get_logger(__name__)


class _MergedAttention(torch.autograd.Function):
    """Exact attention from unmasked blocks.

    Queries are (group, key heads, tokens, width), keys and values (1, key heads, tokens, width):
    `group` query heads share a key head. The backward pass of a block needs only the *merged*
    output and log-sum-exp, so neither probabilities nor the blocks' own outputs are kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        tree: Tree,
        scale: float,
    ) -> torch.Tensor:
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
            _merge(out[:, :, queries], lse[:, :, queries], part, part_lse)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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


def _expand(
    key: torch.Tensor, value: torch.Tensor, keys: slice, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return key[:, :, keys].expand(group, -1, -1, -1), value[:, :, keys].expand(group, -1, -1, -1)


def _merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> None:
    """Merge a block into the running output of its queries, in place."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp_().unsqueeze(-1)).add_(
        part * (part_lse - total).exp_().unsqueeze(-1)
    )
    lse.copy_(total)


@cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention, dynamic=True)


def flex_tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Tree,
    scale: float,
    flex: Any = None,
) -> torch.Tensor:
    """Attend with `flex_attention` under the tree's block mask; shapes as in `tree_attention`.

    `flex` replaces the compiled `flex_attention`.
    """
    flex = flex or _compiled_flex_attention()
    mask, grouped = tree.cached(flex_mask, query.device), query.size(1) != key.size(1)
    return flex(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped).transpose(1, 2)


@cache
def has_flash_attention_3(device: torch.device) -> bool:
    """Return whether TRL's kernel runs here: needs a Hopper GPU and the ``kernels`` library."""
    if (
        device.type != "cuda"
        or torch.cuda.get_device_capability(device)[0] != 9
        or not is_kernels_available()
    ):
        return False
    try:
        trl_packing._flash_attn()
    except Exception as error:  # any error of a download or an incompatible library
        logger.warning(f"FlashAttention-3 cannot be loaded ({error}): using flex_attention.")
        return False
    return True


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: Tree,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within one packed row, as transformers calls an attention function.

    Args:
        module: The attention layer.
        query: (1, heads, tokens, width).
        key, value: (1, key heads, tokens, width).
        attention_mask: Not used.
        tree: Passed through the model's forward as a keyword argument.
        scaling: Of the scores; default ``1 / sqrt(width)``.
        kwargs: Not used.

    Returns:
        (1, tokens, heads, width), and no attention weights.
    """
    # Under autocast, normalized and rotated queries and keys are float32, values bfloat16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    device = query.device
    if device.type != "cpu":
        if value.dtype != torch.float32 and has_flash_attention_3(device):
            arguments = tree.cached(kernel_arguments, device)
            return trl_packing.tree_attention(
                module, query, key, value, None, scaling=scale, **arguments
            )
        return flex_tree_attention(query, key, value, tree, scale), None
    _, heads, tokens, width = query.shape
    key_heads = key.size(1)
    # Query head h reads key head h // group.
    grouped = query.view(key_heads, heads // key_heads, tokens, width).transpose(0, 1)
    out = _MergedAttention.apply(grouped, key, value, tree, scale)
    return out.permute(2, 1, 0, 3).reshape(1, tokens, heads, width), None


def register_tree_attention() -> None:
    """Register `tree_attention` with transformers, without a mask."""
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
    if not base._supports_attention_backend:
        return "its attention cannot be replaced"
    return None

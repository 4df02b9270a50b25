"""The attention of TRL's tree packing without its FlashAttention-3 kernel."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from trl.experimental.async_grpo.packing import TREE_ATTENTION

from atommem.train.packing.tree_attention import Tree, tree_attention


class PackedTreeAttention:
    """`atommem.train.packing.tree_attention.tree_attention`, called with what TRL's packing hands through the model."""

    def __init__(self) -> None:
        self._tree: tuple[torch.Tensor, Tree] | None = None

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        tree_cu_seqlens_q: torch.Tensor,
        tree_cu_seqlens_k: torch.Tensor,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention over one packed row, as transformers calls it; shapes are those of `tree_attention`."""
        # All layers get the same tensor object: the tree is read off it once a row.
        if self._tree is None or self._tree[0] is not tree_cu_seqlens_q:
            self._tree = tree_cu_seqlens_q, _tree_of(tree_cu_seqlens_q, tree_cu_seqlens_k)
        return tree_attention(module, query, key, value, attention_mask, tree=self._tree[1], scaling=scaling)


def _tree_of(segments: torch.Tensor, paths: torch.Tensor) -> Tree:
    """The trie from the boundaries of its segments and of the paths that lead from the root to each one's end."""
    boundaries = segments.tolist()
    lengths = segments.diff().tolist()
    depths = [path - length for path, length in zip(paths.diff().tolist(), lengths, strict=True)]
    return Tree.from_segments(boundaries, depths)


def has_flash_attention_3(device: torch.device) -> bool:
    """Whether TRL's kernel runs here: a Hopper GPU, and the ``kernels`` library that fetches it."""
    from transformers.utils import is_kernels_available

    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9 and is_kernels_available()


def use_torch_tree_attention() -> None:
    """Put `PackedTreeAttention` in the place of TRL's kernel."""
    AttentionInterface.register(TREE_ATTENTION, PackedTreeAttention())

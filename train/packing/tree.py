"""The shape of a token trie packed into one row, and its attention masks for GPU kernels.

Tokens are in depth-first pre-order (as in TRL's `TreeRow`), where a *segment* is a run of tokens
without a branch. A token sees the tokens of its own segment up to itself, and every token of the
segments above it. In pre-order the tokens below a segment are contiguous, so with ``end[k]`` the
position after the last descendant of token k's segment::

    query q sees key k  <=>  k <= q < end[k]
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Queries and keys per block of `flex_mask`."""


class Tree:
    """The shape of a packed trie of `length` tokens.

    Not a dataclass: FSDP2 would copy it, with what `cached` holds, for every layer.

    Args:
        spans: For each segment, in packed order: its first position, the position after its last
            one, and the position after the last token below it.
    """

    def __init__(self, spans: tuple[tuple[int, int, int], ...]) -> None:
        self.spans = spans
        self._cache: dict[Any, Any] = {}

    @classmethod
    def from_segments(cls, boundaries: list[int], depths: list[int]) -> Tree:
        """Build the trie from its segments.

        Args:
            boundaries: Where segments begin, then the length of the row (``tree_cu_seqlens_q``).
            depths: Depth of each segment's first token, which is its position id.
        """
        count = len(depths)
        ends = [boundaries[-1]] * count
        open_segments: list[int] = []
        for index, depth in enumerate(depths):
            # In pre-order, a segment that does not start deeper than an open one is not below it.
            while open_segments and depths[open_segments[-1]] >= depth:
                ends[open_segments.pop()] = boundaries[index]
            open_segments.append(index)
        return cls(tuple((boundaries[i], boundaries[i + 1], ends[i]) for i in range(count)))

    @property
    def length(self) -> int:
        """Tokens in the row."""
        return self.spans[-1][1]

    def cached(self, make: Callable[[Tree, torch.device], Any], device: torch.device) -> Any:
        """Return ``make(self, device)``, computed once for all layers and the backward pass."""
        if make not in self._cache:
            self._cache[make] = make(self, device)
        return self._cache[make]

    def ends(self, device: torch.device) -> torch.Tensor:
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

    def visible(batch: Any, head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < ends[k])

    def ordered(seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many key blocks each query block sees, and their indices first."""
        numbers = seen.byte().argsort(dim=-1, descending=True, stable=True)
        return seen.sum(-1)[None, None].int(), numbers[None, None].int()

    lengths = (tree.length, tree.length)
    return BlockMask.from_kv_blocks(
        *ordered(part), *ordered(whole), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=lengths
    )


def kernel_arguments(tree: Tree, device: torch.device) -> dict[str, Any]:
    """Return the arguments of TRL's `tree_attention` kernel: each segment's path of keys."""
    paths: list[np.ndarray] = []
    above: list[tuple[int, int, int]] = []
    for span in tree.spans:
        above = [*(outer for outer in above if outer[2] > span[0]), span]
        paths.append(np.concatenate([np.arange(start, end) for start, end, _ in above]))
    lengths = {
        "q": [end - start for start, end, _ in tree.spans],
        "k": [len(path) for path in paths],
    }
    return {
        "tree_kv_index": torch.from_numpy(np.concatenate(paths)).to(device),
        **{
            f"tree_cu_seqlens_{x}": torch.tensor(
                [0, *accumulate(lengths[x])], dtype=torch.int32
            ).to(device)
            for x in lengths
        },
        **{f"tree_max_seqlen_{x}": max(lengths[x]) for x in lengths},
    }

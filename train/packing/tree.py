"""The shape of a token trie that is laid out in one row, and what the attention of a GPU needs of it.

The layout is that of `trl.experimental.async_grpo.packing.TreeRow`: tokens in depth-first pre-order, where
a *segment* is a run of tokens without a branch. A token then sees exactly the tokens of its own segment
up to itself, and every token of the segments above it. In pre-order the tokens below a segment are
contiguous, so that this is, with ``end[k]`` the position after the last descendant of token k's segment::

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
"""Queries, and keys, of a block of `flex_mask`."""


class Tree:
    """The shape of a packed trie of `length` tokens.

    No dataclass: FSDP2 casts what it hands to every layer, and would copy one each time, with what `once` has made.

    Args:
        spans: For each segment, in packed order: its first position, the position after its last one,
            and the position after the last token below it.
    """

    def __init__(self, spans: tuple[tuple[int, int, int], ...]) -> None:
        self.spans = spans
        self._made: dict[Any, Any] = {}

    @classmethod
    def from_segments(cls, boundaries: list[int], depths: list[int]) -> Tree:
        """Read the trie off its segments.

        Args:
            boundaries: Where segments begin, and the length of the row in the end (``tree_cu_seqlens_q``).
            depths: Depth of each segment's first token, which is its position id.
        """
        count = len(depths)
        ends = [boundaries[-1]] * count
        open_segments: list[int] = []
        for index, depth in enumerate(depths):
            # Pre-order: a segment that does not begin deeper than an open one lies beside it, not below.
            while open_segments and depths[open_segments[-1]] >= depth:
                ends[open_segments.pop()] = boundaries[index]
            open_segments.append(index)
        return cls(tuple((boundaries[i], boundaries[i + 1], ends[i]) for i in range(count)))

    @property
    def length(self) -> int:
        """Tokens in the row."""
        return self.spans[-1][1]

    def once(self, make: Callable[[Tree, torch.device], Any], device: torch.device) -> Any:
        """What `make` makes of the tree: by the first layer that asks, for all layers and the backward pass."""
        if make not in self._made:
            self._made[make] = make(self, device)
        return self._made[make]

    def ends(self, device: torch.device) -> torch.Tensor:
        """The ``end[k]`` of the visibility rule, (length,) int32."""
        spans = torch.tensor(self.spans, dtype=torch.int32)
        return spans[:, 2].repeat_interleave((spans[:, 1] - spans[:, 0]).long()).to(device)


def flex_mask(tree: Tree, device: torch.device) -> BlockMask:
    """The visibility rule as a block mask, without the dense mask of length x length that `create_block_mask` makes.

    A block of keys before a block of queries is seen by all of them where the first of its segments to end does so
    behind the last query, and by some where the last to end does so behind the first query.
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
        """How many blocks of keys each block of queries sees, and their numbers before those of the others."""
        numbers = seen.byte().argsort(dim=-1, descending=True, stable=True)
        return seen.sum(-1)[None, None].int(), numbers[None, None].int()

    lengths = (tree.length, tree.length)
    return BlockMask.from_kv_blocks(
        *ordered(part), *ordered(whole), BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=lengths
    )


def kernel_arguments(tree: Tree, device: torch.device) -> dict[str, Any]:
    """The same for TRL's kernel (`trl.experimental.async_grpo.packing.tree_attention`): each segment's path of keys."""
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

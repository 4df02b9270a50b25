"""Micro-batches: rows as one packed trie, or padded, and which rank trains which of them.

Rows are in lexicographic order of their tokens, so that neighbours share the longest prefixes. A
row then adds to its micro-batch only the tokens that it does not share with the row before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor

from atommem.train.objective.rows import Row
from atommem.train.packing.tree_attention import Tree

IGNORED = -100  # label of a token that is not scored, as in transformers


@dataclass(frozen=True)
class MicroBatch:
    """Some rows as a model takes them."""

    inputs: dict[str, Tensor]  # (rows, tokens) each; labels are `IGNORED` or the next token
    token_index: Tensor  # (M,) flat positions that predict the completion tokens
    tree: Tree | None = None  # which tokens see which in a packed row

    def to(self, device: torch.device) -> MicroBatch:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return MicroBatch(inputs, self.token_index.to(device), self.tree)

    @property
    def computed(self) -> int:
        return self.inputs["input_ids"].numel()

    def score(self, model: Any) -> tuple[Tensor, Tensor | None]:
        """Return log-probability (nats) and entropy of every completion token: (M,) each.

        `model` has TRL's fused head (`trl.trainer.utils.add_fused_lm_head`); entropies are None if
        that does not compute them. A packed row needs `use_tree_attention`.
        """
        tree = {} if self.tree is None else {"tree": self.tree}
        outputs = model(**self.inputs, **tree, fused_lm_head=True)
        entropies = None if outputs.entropy is None else outputs.entropy.flatten()[self.token_index]
        return outputs.log_probs.flatten()[self.token_index], entropies


def pad_rows(rows: Sequence[Row], pad_token_id: int) -> MicroBatch:
    """Make a right-padded rectangle of (rows, longest row)."""
    shape = (len(rows), max(map(len, rows)))
    input_ids = torch.full(shape, pad_token_id)
    mask = torch.zeros(shape).long()
    labels = torch.full(shape, IGNORED)
    for index, row in enumerate(rows):
        prompt, end = len(row.prompt_ids), len(row)
        input_ids[index, :end] = torch.from_numpy(row.ids)
        mask[index, :end] = 1
        labels[index, prompt - 1 : end - 1] = input_ids[index, prompt:end]
    inputs = {"input_ids": input_ids, "attention_mask": mask, "shift_labels": labels}
    return MicroBatch(inputs, (labels != IGNORED).flatten().nonzero()[:, 0])


def pack_rows(rows: Sequence[Row]) -> MicroBatch:
    """Pack rows that share prefixes into one row of unique tokens, a trie.

    The layout is that of TRL's `TreeRow`, built without a Python loop over tokens: in lexicographic
    order every row shares a prefix with the row before it and adds the rest, so the trie in
    pre-order is these rests, one after the other. Each row has a prompt token.
    """
    path, scored, starts, length = np.zeros(0, dtype=np.int64), [], {0}, 0
    shared = shared_prefixes(rows)
    for row, common in zip(rows, shared, strict=True):
        added = len(row) - common
        if added:
            # A segment ends where a row leaves the path of the one before it, and where a row ends.
            starts |= {*path[common : common + 1].tolist(), length}
        path = np.concatenate((path[:common], np.arange(length, length + added)))
        scored.append(path[len(row.prompt_ids) - 1 : -1])
        length += added
    token_index = np.concatenate(scored)
    own = list(zip(rows, shared, strict=True))
    ids = np.concatenate([row.ids[common:] for row, common in own]).astype(np.int64)
    depths = np.concatenate([np.arange(common, len(row)) for row, common in own])
    labels = np.full(length, IGNORED)
    labels[token_index] = np.concatenate([row.completion_ids for row in rows])
    boundaries = sorted(starts)
    arrays = {"input_ids": ids, "position_ids": depths, "shift_labels": labels}
    return MicroBatch(
        {name: torch.from_numpy(array)[None] for name, array in arrays.items()},
        torch.from_numpy(token_index),
        Tree.from_segments([*boundaries, length], depths[boundaries].tolist()),
    )


def shared_prefixes(rows: Sequence[Row]) -> list[int]:
    """Return how many tokens of each row `pack_rows` shares with the row before it.

    A token is shared if the rows also agree on the next one, so that every packed token has one
    next token to predict.
    """
    shared = [0] * bool(rows)
    for before, after in pairwise(row.ids for row in rows):
        length = min(len(before), len(after))
        different = before[:length] != after[:length]
        common = int(different.argmax()) if different.any() else length
        shared.append(common if len(before) == len(after) == common else max(0, common - 1))
    return shared


TOLERANCE = 0.02  # ranks are balanced if their costs differ by at most this fraction of the mean
GATHERED = 8  # budgets: FlashAttention-3 gets keys of whole rows, shared prefixes again


def plan_micro_batches(
    rows: Sequence[Row], pair: float, budget: int, prefix_sharing: bool, rank: int
) -> list[list[Row]]:
    """Return the micro-batches of `rank` in an update, as many as on every rank; collective.

    `budget` is the most tokens in a micro-batch of more than one row: unique ones with
    `prefix_sharing`, padded ones without.
    """

    def order(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
        if prefix_sharing:
            return (ordered := lexicographic(rows)), shared_prefixes(ordered)
        return sorted(rows, key=len, reverse=True), [0] * len(rows)

    ordered, shared = order(exchange(*order(rows), pair, rank))
    lengths = [len(row) for row in ordered]
    given = lengths, shared, pair, budget
    counts = cut(*given) if prefix_sharing else cut_padded(lengths, budget)
    most = max(gather_object([len(counts)]))
    if prefix_sharing:
        counts = cut_evenly(*given, most)
    ends = list(accumulate(counts + [0] * (most - len(counts))))
    return [ordered[start:end] for start, end in pairwise([0, *ends])]


def exchange(rows: Sequence[Row], shared: Sequence[int], pair: float, rank: int) -> list[Row]:
    """Move whole prefix groups to ranks with less to do; returns the rows of `rank`."""
    lengths = [len(row) for row in rows]
    spans = prefix_groups(lengths, shared)
    running = [0.0, *accumulate(row_costs(lengths, shared, pair))]
    owners = balance(gather_object([[running[end] - running[start] for start, end in spans]]))
    groups = [(owner, rows[a:b]) for owner, (a, b) in zip(owners[rank], spans, strict=True)]
    found = [row for owner, group in groups if owner == rank for row in group]
    # Not gathered, which needs the memory of the largest sender's rows times the ranks.
    for sender in (rank for rank, to in enumerate(owners) if {*to} - {rank}):
        sent = [group for group in groups if group[0] != sender] if sender == rank else []
        (sent,) = broadcast_object_list([sent], from_process=sender)
        found += [row for owner, group in sent if owner == rank for row in group]
    return found


def lexicographic(rows: Sequence[Row]) -> list[Row]:
    # Big-endian bytes compare like the numbers do, at the speed of memcmp.
    return sorted(rows, key=lambda row: row.ids.astype(">u4").tobytes())


def pair_cost(config: Any) -> float:
    """Return the cost of one attended (query, key) pair, in tokens.

    A token costs 2 FLOPs per weight of a layer, a pair ``2 * 2 * heads * head_dim`` (scores and
    values); for layers of four projections and a gated MLP, or as many experts as a token has.
    """
    hidden, inner, query, key = widths(config)
    return 4 * query / (2 * (2 * hidden * (query + key) + 3 * hidden * inner))


def widths(config: Any) -> tuple[int, int, int, int]:
    """Return the widths of hidden states, MLP (or a token's experts), queries and keys."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    if active := getattr(config, "num_experts_per_tok", None):
        shared = getattr(config, "n_shared_experts", None) or 0
        inner = (getattr(config, "moe_intermediate_size", None) or inner) * (active + shared)
    head = getattr(config, "head_dim", None) or hidden // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return hidden, inner, heads * head, key_heads * head


def row_costs(lengths: Sequence[int], shared: Sequence[int], pair: float) -> list[float]:
    """Return the cost of each row after the one before it, in tokens."""
    return [
        (length - common) + pair * (length * (length + 1) - common * (common + 1)) / 2
        for length, common in zip(lengths, shared, strict=True)
    ]


def prefix_groups(lengths: Sequence[int], shared: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and end of the runs of rows that each share half or more with the one before."""
    pairs = enumerate(zip(lengths, shared, strict=True))
    starts = [index for index, (length, common) in pairs if not index or 2 * common < length]
    return list(pairwise([*starts, len(lengths)]))


def balance(costs: Sequence[Sequence[float]]) -> list[list[int]]:
    """Assign prefix groups to ranks so that all ranks cost about the same.

    Groups stay where they are unless a move helps: repeatedly, the costliest rank gives the group
    that comes closest to half the difference to the cheapest rank. Takes the costs of each rank's
    groups, and returns the new rank of each.
    """
    owners = [[rank] * len(group_costs) for rank, group_costs in enumerate(costs)]
    groups = [(cost, home, i) for home, held in enumerate(costs) for i, cost in enumerate(held)]
    loads = [sum(group_costs) for group_costs in costs]
    enough = TOLERANCE * sum(loads) / max(len(loads), 1)
    # Rounding margin: two ranks that differ by one group would pass it back and forth for ever.
    margin = 1e-9 * sum(loads)
    while True:
        high, low = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[high] - loads[low]
        movable = [g for g in groups if owners[g[1]][g[2]] == high and g[0] < gap - margin]
        if gap <= enough or not movable:
            return owners
        # Every move reduces the sum of squared loads, so this ends.
        cost, home, index = min(movable, key=lambda group: abs(group[0] - gap / 2))
        loads[high] -= cost
        loads[low] += cost
        owners[home][index] = low


def cut_padded(lengths: Sequence[int], budget: int) -> list[int]:
    """Cut rows, the longest first, by padded tokens; returns row counts, at least 1 each."""
    counts: list[int] = []
    start = 0
    while start < len(lengths):
        counts.append(min(max(1, budget // lengths[start]), len(lengths) - start))
        start += counts[-1]
    return counts


def cut_evenly(
    lengths: Sequence[int], shared: Sequence[int], pair: float, budget: int, count: int
) -> list[int]:
    """Cut as `cut` does, into at most `count` micro-batches, the costliest as cheap as possible."""
    alone = row_costs(lengths, [0] * len(lengths), pair)
    low, high = max(alone, default=0.0), sum(alone)
    best = cut(lengths, shared, pair, budget)
    # Cutting at the first row over a cost limit gives the fewest pieces: bisect that limit.
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        pieces = cut(lengths, shared, pair, budget, middle)
        if len(pieces) <= count:
            best, high = pieces, middle
        else:
            low = middle
    return best


def cut(
    lengths: Sequence[int], shared: Sequence[int], pair: float, budget: int, cost_limit: float = inf
) -> list[int]:
    """Cut rows into as few micro-batches of `budget` unique tokens as possible; returns row counts.

    A row of `lengths` tokens shares `shared` with the row before it. With shared tokens a
    micro-batch has at most `GATHERED` times the budget; one of a single row may exceed it.
    """
    counts: list[int] = []
    tokens, keys, cost = 0, 0, 0.0
    alone = row_costs(lengths, [0] * len(lengths), pair)
    beside = row_costs(lengths, shared, pair)
    for i, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        within = tokens + length - common <= budget and keys + length <= GATHERED * budget
        if counts and within and cost + beside[i] <= cost_limit:
            counts[-1] += 1
            tokens, keys, cost = tokens + length - common, keys + length, cost + beside[i]
        else:
            counts.append(1)
            tokens, keys, cost = length, length, alone[i]
    return counts

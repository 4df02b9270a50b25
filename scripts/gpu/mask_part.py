"""Part ``mask``: the cost and exactness of the trie's attention, and when it recompiles."""

from __future__ import annotations

from typing import Any

import torch
from part import Part, make_group
from torch.nn.functional import scaled_dot_product_attention

from atommem.train.packing.micro_batch import pack_rows
from atommem.train.packing.tree_attention import Tree, tree_attention

HEADS, KEY_HEADS, WIDTH = 16, 8, 128  # of Qwen3-0.6B
# Error of one attention next to float32 on a dense mask: ||out - ref|| / ||ref||.
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}


def make_tree(tokens: int, seed: int) -> Tree:
    shared = tokens // 2
    tree = pack_rows(make_group(16, shared, shared // 32, shared // 32, 1000, seed)).tree
    assert tree is not None, "packed rows have one"
    return tree


def inputs(tree: Tree, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    return [
        torch.randn(1, heads, tree.length, WIDTH, device=device).to(dtype).requires_grad_()
        for heads, dtype in zip((HEADS, KEY_HEADS, KEY_HEADS), dtypes, strict=True)
    ]


def attend(parts: list[torch.Tensor], tree: Tree) -> torch.Tensor:
    query, key, value = parts
    return tree_attention(torch.nn.Identity(), query, key, value, None, tree=tree)[0]


def dense(parts: list[torch.Tensor], tree: Tree) -> torch.Tensor:
    device = parts[0].device
    positions = torch.arange(tree.length, device=device)
    mask = (positions <= positions[:, None]) & (positions[:, None] < tree.ends(device))
    query, key, value = (part.float() for part in parts)
    found = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return found.transpose(1, 2)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def exactness(part: Part, name: str, tree: Tree, dtypes: tuple[torch.dtype, ...]) -> None:
    parts = inputs(tree, part.device, dtypes)
    wanted, found = dense(parts, tree), attend(parts, tree)
    toward = torch.randn_like(wanted)
    expected = torch.autograd.grad((wanted * toward).sum(), parts)
    got = torch.autograd.grad((found.float() * toward).sum(), parts)
    backward = max(error(one, other.float()) for one, other in zip(got, expected, strict=True))
    forward, limit = error(found, wanted), LIMITS[dtypes[-1]]
    figures = {"output": forward, "gradient": backward, "limit": limit}
    part.add(name, ok=max(forward, backward) <= limit, **figures)


def cost(part: Part, tokens: int) -> None:
    half: tuple[torch.dtype, ...] = (torch.bfloat16,) * 3

    def step(tree: Tree) -> Any:
        return attend(parts, tree).float().sum().backward()

    tree = make_tree(tokens, 1)
    parts = inputs(tree, part.device, half)
    fresh = [Tree(tree.spans) for _ in range(4)]
    first = part.seconds(lambda: step(fresh[0]), 1)
    peak = part.peak_gb(lambda: step(fresh[1]))
    masked = part.seconds(lambda: step(fresh.pop()), 2)
    again = part.seconds(lambda: step(tree), 3)
    kernel_peak = part.peak_gb(lambda: step(tree))
    part.add(
        f"a mask of {tree.length} tokens",
        # The whole mask of one byte a pair is what must not be made.
        ok=(peak - kernel_peak) * 1e9 < tree.length**2 / 4 if part.device.type == "cuda" else None,
        first_call_s=first, with_mask_ms=1e3 * masked, attention_ms=1e3 * again,
        mask_gb=peak - kernel_peak, dense_mask_gb=tree.length**2 / 1e9,
    )  # fmt: skip


def recompiling(part: Part, tokens: int) -> None:
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    for seed in range(6):
        tree = make_tree(tokens + 300 * seed, seed)
        attend(inputs(tree, part.device, (torch.bfloat16,) * 3), tree).float().sum().backward()
    count = counters["stats"]["unique_graphs"] - before
    part.add("graphs compiled for six tries of new lengths", ok=count <= 2, graphs=count)


def main() -> None:
    part = Part()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    sizes = [256] if part.tiny else [4096, 32768]
    full, half = torch.float32, torch.bfloat16
    # The last is what autocast makes of a query and a key that were normalised.
    for dtypes in ((full, full, full), (full, full, half)):
        kinds = " ".join(map(str, dtypes))
        name = f"error against a dense mask, {sizes[0]} tokens, q k v in {kinds}"
        with part.trying(name):
            exactness(part, name.replace("torch.", ""), make_tree(sizes[0], 0), dtypes)
    for tokens in sizes:
        with part.trying(f"a mask of {tokens} tokens"):
            cost(part, tokens)
    with part.trying("new lengths"):
        recompiling(part, sizes[0])


if __name__ == "__main__":
    main()

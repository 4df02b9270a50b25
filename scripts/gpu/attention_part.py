"""Part ``attention``: passes over a group as a trie and as padded rows, at Qwen3's shapes.

A group of 16 whose prompts share a chunk and its instructions (4,400 tokens) and have about 350 of
their own, with completions of about 250; random weights in bfloat16, gradient checkpointing, TRL's
fused head. Side by side:

    tree       one row of distinct tokens (`train/packing`)
    sdpa       padded rows under a mask, as transformers runs them
    flash      padded rows under torch's FlashAttention: causal and padded on the right, they need
no mask
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from measured_training import SMALL, make_model, shipped
from part import Part, make_group
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from trl.trainer.utils import add_fused_lm_head

from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pack_rows, pad_rows
from atommem.train.packing.tree_attention import use_tree_attention

FLASH = "gpu_check_causal"  # without the word that has transformers look for a package
LIMITS = {"float32": 1e-3, "bfloat16": 1.5}
"""Relative error against padded float32; in bfloat16 over the error of padded rows."""


def flash(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """FlashAttention or nothing: it raises where it cannot run."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=kwargs.get("scaling"), enable_gqa=True
        )
    return out.transpose(1, 2).contiguous(), None


def padded(
    part: Part, model: Any, rows: Sequence[Row], at_once: int, attention: str
) -> torch.Tensor:
    found = []
    model.set_attn_implementation(attention)
    for start in range(0, len(rows), at_once):
        logps, _ = pad_rows(rows[start : start + at_once], 0).to(part.device).score(model)
        (-logps.sum()).backward()
        found.append(logps.detach())
    return torch.cat(found)


def packed(part: Part, model: Any, rows: Sequence[Row]) -> torch.Tensor:
    with use_tree_attention(model):
        logps, _ = pack_rows(rows).to(part.device).score(model)
        (-logps.sum()).backward()
    return logps.detach()


def ready(architecture: dict[str, Any], dtype: torch.dtype, part: Part) -> Any:
    # The same weights in both types: random ones drawn in bfloat16 would be others.
    model = make_model(architecture, torch.float32, str(part.device)).to(dtype).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    return model


def speed(
    part: Part, name: str, architecture: dict[str, Any], rows: Sequence[Row], at_once: Sequence[int]
) -> None:
    model = ready(architecture, torch.bfloat16, part)
    raw = sum(map(len, rows))
    taken: dict[str, float] = {}
    ways: dict[str, Callable[[], torch.Tensor]] = {"tree": partial(packed, part, model, rows)}
    for kind, attention in (("flash", FLASH), ("sdpa", "sdpa")):
        for count in at_once:
            padded_rows = partial(padded, part, model, rows, count, attention)
            ways[f"{kind}, {count} rows at once"] = padded_rows
    for way, work in ways.items():
        # Padded rows may be too many for this device; the trie has to run.
        with part.trying(f"{name}, {way}", ok=False if way == "tree" else None):
            peak = part.peak_gb(work)  # compiles, too
            taken[way] = part.seconds(work, 1 if part.tiny else 3)
            figures: dict[str, Any] = {"seconds": taken[way], "raw_tokens_per_s": raw / taken[way]}
            part.add(f"{name}, {way}", **figures, peak_gb=peak)
    best = min((seconds for way, seconds in taken.items() if way != "tree"), default=0.0)
    if best and "tree" in taken:
        figures = {"times": best / taken["tree"], "token_ratio": raw / pack_rows(rows).computed}
        part.add(f"{name}, tree against the fastest padded way", **figures)


def exactness(part: Part, name: str, architecture: dict[str, Any], rows: Sequence[Row]) -> None:
    found: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]] = {}
    for kind in (torch.float32, torch.bfloat16):
        model = ready(architecture, kind, part)
        for way in ("tree", "sdpa"):
            model.zero_grad()
            is_tree = way == "tree"
            logps = packed(part, model, rows) if is_tree else padded(part, model, rows, 1, "sdpa")
            gradients = [w.grad.flatten().float() for w in model.parameters() if w.grad is not None]
            found[way, str(kind).removeprefix("torch.")] = logps.float(), torch.cat(gradients)
        del model

    def errors(way: str, dtype: str) -> list[float]:
        return [
            float((one - other).norm() / other.norm())
            for one, other in zip(found[way, dtype], found["sdpa", "float32"], strict=True)
        ]

    single, half = errors("tree", "float32"), errors("tree", "bfloat16")
    padded_half, what = errors("sdpa", "bfloat16"), f"{name}, float32: error of the trie"
    figures = {"logps": single[0], "gradients": single[1]}
    part.add(what, ok=max(single) <= LIMITS["float32"], **figures)
    figures = {"logps": half[0], "padded_logps": padded_half[0]}
    figures |= {"gradients": half[1], "padded_gradients": padded_half[1]}
    ok = all(a <= LIMITS["bfloat16"] * b for a, b in zip(half, padded_half, strict=True))
    part.add(f"{name}, bfloat16: error of the trie, and of padded rows", ok=ok, **figures)


def main() -> None:
    part = Part()
    torch.set_float32_matmul_precision("highest")
    AttentionInterface.register(FLASH, flash)
    AttentionMaskInterface.register(FLASH, lambda **kwargs: None)
    if part.tiny:
        sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
        name, shape = "a toy", {**SMALL, **sizes}
        few, group, at_once = 2, make_group(4, 60, 12, 8, 4000), [1, 4]
    else:
        name, shape = "Qwen3-0.6B", shipped("qwen3-0.6b")
        few, group, at_once = 6, make_group(16, 4400, 350, 250, 150_000), [4]
    with part.trying(f"{name}, exactness"):
        exactness(part, f"{name}, {few} layers", {**shape, "num_hidden_layers": few}, group[:4])
    with part.trying(f"{name}, speed"):
        speed(part, name, shape, group, at_once)


if __name__ == "__main__":
    main()

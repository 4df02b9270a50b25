"""Batch decoding in which rows leave as they finish.

``model.generate`` keeps finished rows until the longest one ends and has one sampling setting and
one random stream per call. Here each row has its own settings and seeded stream, so a request
samples the same in any batch, and the batch shrinks as rows end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atommem.policy.contract import Sampling

if TYPE_CHECKING:
    import torch

COMPACT_AT = 0.9
"""Share of running rows at which finished ones leave; leaving copies the cache."""


@dataclass(slots=True)
class Row:
    """One prompt and its sample so far, filled by `decode`.

    `abandoned` is checked at every token; True ends the row because no caller waits for it.
    """

    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    abandoned: Callable[[], bool] = lambda: False

    @property
    def finished(self) -> bool:
        """Whether it ended: by end of sequence, by length, or abandoned."""
        return self.stopped or len(self.token_ids) >= self.sampling.max_tokens or self.abandoned()

    def append(self, token_id: int, logprob: float, eos_ids: Collection[int]) -> None:
        """Add one sampled token."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.stopped = token_id in eos_ids


def decode(model: Any, rows: Sequence[Row], eos_ids: Collection[int], pad_id: int) -> None:
    """Sample every row to its end, filling ``token_ids``, ``logprobs`` and ``stopped``.

    Rows with equal prompts (a group's first step) share one prefill. Random numbers depend on a
    row's seed alone.

    Args:
        model: A transformers causal language model, in eval mode.
        eos_ids: Token ids that end a completion, kept as its last token.
        pad_id: Any valid token id; it is masked.
    """
    import torch
    from transformers import DynamicCache

    device = next(model.parameters()).device
    streams = torch.from_numpy(_uniforms(rows)).to(device)
    distinct = {tuple(row.prompt_ids): None for row in rows}
    position_of = {prompt: index for index, prompt in enumerate(distinct)}
    expand = torch.tensor([position_of[tuple(row.prompt_ids)] for row in rows], device=device)
    width = max(map(len, distinct))
    longest = max(row.sampling.max_tokens for row in rows)
    input_ids = torch.tensor(
        [[pad_id] * (width - len(p)) + list(p) for p in distinct], device=device
    )
    mask = torch.ones((len(distinct), width + longest), dtype=torch.long, device=device)
    for index, prompt in enumerate(distinct):
        mask[index, : width - len(prompt)] = 0
    positions = (mask[:, :width].cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    settings = sampling_settings(rows).to(device)
    running = list(rows)

    # no_grad, not inference_mode: the model may cache tensors made here (rotary frequencies), and a
    # training step must not meet inference tensors.
    with torch.no_grad():
        for length in range(width, width + longest):
            logits = model(
                input_ids=input_ids,
                attention_mask=mask[:, :length],
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            if length == width:
                positions = positions[:, -1:]
                if len(distinct) < len(rows):
                    logits, mask, positions = logits[expand], mask[expand], positions[expand]
                    cache.reorder_cache(expand)
            token_ids, chosen = draw(logits.float(), streams[:, length - width], settings)
            for row, token_id, logprob in zip(
                running, token_ids.tolist(), chosen.tolist(), strict=True
            ):
                if not row.finished:
                    row.append(token_id, logprob, eos_ids)
            alive = [index for index, row in enumerate(running) if not row.finished]
            if not alive:
                return
            input_ids, positions = token_ids[:, None], positions + 1
            if len(alive) <= COMPACT_AT * len(running):
                keep = torch.tensor(alive, device=device)
                input_ids, positions, mask = input_ids[keep], positions[keep], mask[keep]
                streams, settings = streams[keep], settings[keep]
                cache.reorder_cache(keep)
                running = [running[index] for index in alive]


def sampling_settings(rows: Sequence[Row]) -> torch.Tensor:
    """Return temperature, top_p and top_k (infinite: all) of each row, shape (rows, 3)."""
    import torch

    each = [row.sampling for row in rows]
    return torch.tensor([[s.temperature, s.top_p, s.top_k or torch.inf] for s in each])


def _uniforms(rows: Sequence[Row]) -> np.ndarray:
    """Draw numbers in [0, 1) from each row's seed: shape (rows, longest max_tokens)."""
    streams = np.zeros((len(rows), max(row.sampling.max_tokens for row in rows)))
    for stream, row in zip(streams, rows, strict=True):
        seed = row.sampling.seed
        generator = np.random.default_rng(None if seed is None else seed % 2**64)
        stream[: row.sampling.max_tokens] = generator.random(row.sampling.max_tokens)
    return streams


def draw(
    logits: torch.Tensor, uniforms: torch.Tensor, settings: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token id per row by inverting the cumulative distribution at `uniforms`.

    Args:
        logits: (rows, vocabulary).
        uniforms: (rows,), in [0, 1).
        settings: (rows, 3), of `sampling_settings`.

    Returns:
        Token ids and their log-probabilities in the sampled distribution: (rows,) each.
    """
    import torch

    temperature, top_p, top_k = settings.T[..., None]
    greedy, cut = temperature == 0, (top_p < 1) | (top_k < torch.inf)
    logprobs = (logits / torch.where(greedy, 1.0, temperature)).log_softmax(-1)
    # Cumulative sums over a large vocabulary need more than float32.
    probs = logprobs.double().softmax(-1)
    if any_cut := bool(cut.any()):
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(ranked.shape[-1], device=ranked.device)
        ranked = ranked.masked_fill(ranks >= top_k, 0)
        ranked = ranked / ranked.sum(-1, keepdim=True)
        before = ranked.cumsum(-1) - ranked
        # The most likely token always stays; with top_p = 1, rounding must not cut the tail.
        ranked = ranked.masked_fill((before >= top_p) & (top_p < 1) & (ranks > 0), 0)
        # In vocabulary order again: a row draws the same whether or not another row is cut.
        probs = ranked.new_zeros(ranked.shape).scatter(1, order, ranked)
    cumulative = probs.cumsum(-1)
    # 1 - u is in (0, 1], so the first place that reaches it has a probability above 0.
    target = (1 - uniforms[:, None]) * cumulative[:, -1:]
    token_ids = torch.searchsorted(cumulative, target)
    token_ids = torch.where(greedy, logprobs.argmax(-1, keepdim=True), token_ids)
    chosen = logprobs.gather(1, token_ids)
    if any_cut:
        among_kept = (probs.gather(1, token_ids) / cumulative[:, -1:]).log()
        chosen = torch.where(cut & ~greedy, among_kept.float(), chosen)
    return token_ids[:, 0], chosen[:, 0]

"""Batch decoding in which rows leave as they finish.

``model.generate`` keeps finished rows until the longest one ends and has one sampling setting and
one random stream per call. Here each row has its own settings and seeded stream, so a request
samples the same in any batch, and the batch shrinks as rows end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import numpy as np

from atommem.policy.contract import Sampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_MASKED = 4096  # tokens of prompts whose attention is masked, which costs their square
TRIE_TOKENS = {"cpu": 512}  # of one forward pass, where it gains nothing from more
GROUPED = "atommem_grouped"
GRAPHED = {"cuda"}  # devices on which launching a step's kernels takes longer than they do


@dataclass(slots=True)
class Row:
    """One prompt and its sample so far, filled by `decode`."""

    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False  # by a token that ends it
    abandoned: Callable[[], bool] = lambda: False  # whether no caller waits for it any more

    @property
    def finished(self) -> bool:
        is_cut = len(self.token_ids) >= self.sampling.max_completion_length
        return self.stopped or is_cut or self.abandoned()


def decode(model: Any, rows: Sequence[Row], eos_ids: Collection[int], pad_id: int) -> None:
    """Sample every row to its end, filling ``token_ids``, ``logprobs`` and ``stopped``.

    Prompts share the prefill of what they begin with (a group's steps: the same chunk). Random
    numbers depend on a row's seed alone. `model` is in eval mode; `pad_id` is masked.
    """
    import torch
    from transformers import DynamicCache

    device = next(model.parameters()).device
    prompts = sorted({tuple(row.prompt_ids) for row in rows})
    longest = max(row.sampling.max_completion_length for row in rows)
    streams = torch.from_numpy(_uniforms(rows)).to(device)
    settings = sampling_settings(rows).to(device)
    cache = DynamicCache(config=model.config)
    running = list(rows)
    # no_grad, not inference_mode: the model may cache tensors made here (rotary frequencies), and a
    # training step must not meet inference tensors.
    with torch.no_grad(), _grouped_queries(model):
        logits, mask = _prefill(model, prompts, cache, pad_id)
        places = {prompt: place for place, prompt in enumerate(prompts)}
        keep = torch.tensor([places[tuple(row.prompt_ids)] for row in rows], device=device)
        logits, mask = logits[keep], mask[keep]
        cache.reorder_cache(keep)
        graphed = device.type in GRAPHED and _attends_by_mask(model)
        step = (_GraphedStep if graphed else _Step)(model, cache, mask, longest)
        for length in range(longest):
            token_ids, chosen = draw(logits.float(), streams[:, length], settings)
            sampled = zip(running, token_ids.tolist(), chosen.tolist(), strict=True)
            for row, token_id, logprob in sampled:
                if not row.finished:
                    row.token_ids.append(token_id)
                    row.logprobs.append(logprob)
                    row.stopped = token_id in eos_ids
            alive = [index for index, row in enumerate(running) if not row.finished]
            if not alive:
                return
            if len(alive) <= step.leave_at * len(running):
                keep = torch.tensor(alive, device=device)
                token_ids, streams, settings = token_ids[keep], streams[keep], settings[keep]
                step.keep(keep)
                running = [running[index] for index in alive]
            logits = step(token_ids)


class _Step:
    """Append a token to every row; returns the next one's logits (rows, vocabulary)."""

    leave_at = 0.9  # share of running rows at which finished ones leave, which copies the cache

    def __init__(self, model: Any, cache: Any, mask: Tensor, longest: int) -> None:
        import torch

        self.model, self.cache, self.width = model, cache, mask.shape[1]
        self.mask = torch.cat([mask, mask.new_ones(len(mask), longest)], dim=1)
        self.positions = mask.sum(-1, keepdim=True)

    def keep(self, rows: Tensor) -> None:
        self.mask, self.positions = self.mask[rows], self.positions[rows]
        self.cache.reorder_cache(rows)

    def __call__(self, token_ids: Tensor) -> Tensor:
        self.width += 1
        seen = self.mask[:, : self.width]
        logits = _logits(self.model, token_ids[:, None], seen, self.positions, self.cache)
        self.positions += 1
        return logits


class _GraphedStep(_Step):
    """The same with everything at one address, so that a CUDA graph replays it."""

    leave_at = 0.25  # leaving makes a new graph
    logits: Tensor  # where the graph leaves them

    def __init__(self, model: Any, cache: Any, mask: Tensor, longest: int) -> None:
        super().__init__(model, cache, mask, longest)
        self.mask = self.mask.bool()
        self.mask[:, self.width :] = False
        self.place = mask.new_tensor([self.width])
        self.token_ids = mask.new_zeros(len(mask), 1)
        for number, layer in enumerate(cache.layers):  # one by one: each is copied
            cache.layers[number] = _FixedLayer(layer, longest, self.place)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.can_record, self.is_warm = self.place.is_cuda, False

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.token_ids, self.graph = self.token_ids[rows], None

    def __call__(self, token_ids: Tensor) -> Tensor:
        self.token_ids.copy_(token_ids[:, None])
        if self.is_warm and self.graph is None and self.can_record:
            self._record()
        if self.graph is not None:
            self.graph.replay()
            return self.logits
        self.is_warm = True  # the first step is not recorded: it loads kernels
        return self._append()

    def _record(self) -> None:
        import torch

        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.logits = self._append()
            self.graph = graph
        except RuntimeError:  # the model looks at values, as some mixtures of experts do
            self.can_record = False

    def _append(self) -> Tensor:
        self.mask.index_fill_(1, self.place, True)
        seen = self.mask[:, None, None]
        logits = _logits(self.model, self.token_ids, seen, self.positions, self.cache)
        self.positions += 1
        self.place += 1
        return logits


class _FixedLayer:
    """A layer's keys and values with room for all that will come, written at `place`."""

    def __init__(self, filled: Any, room: int, place: Tensor) -> None:
        from torch.nn.functional import pad

        self.keys = pad(filled.keys, (0, 0, 0, room))
        self.values = pad(filled.values, (0, 0, 0, room))
        self.place = place

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        # under autocast, new ones may be of another type
        self.keys.index_copy_(2, self.place, keys.to(self.keys.dtype))
        self.values.index_copy_(2, self.place, values.to(self.values.dtype))
        return self.keys, self.values

    def reorder_cache(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]


def _prefill(
    model: Any, prompts: Sequence[tuple[int, ...]], cache: Any, pad_id: int
) -> tuple[Tensor, Tensor]:
    """Fill the cache with sorted prompts, what neighbours share computed once.

    Returns the next token's logits (prompts, vocabulary), and the attention mask (prompts, width)
    of prompts padded on the left.
    """
    import torch

    device = next(model.parameters()).device
    width = max(map(len, prompts))

    def pad(parts: Sequence[Sequence[int]], filler: int) -> Tensor:
        padded = [[filler] * (width - len(part)) + list(part) for part in parts]
        return torch.tensor(padded, device=device)

    mask = pad([[1] * len(prompt) for prompt in prompts], 0)
    if len(prompts) == 1 or width > MOST_MASKED or not _attends_by_mask(model):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return _logits(model, pad(prompts, pad_id), mask, positions, cache), mask
    logits, parts, places, count = [], list[Any](), list[list[int]](), 0
    for ids, depths, paths in _tries(prompts, TRIE_TOKENS.get(device.type, MOST_MASKED)):
        seen = np.zeros((len(ids), len(ids)), dtype=bool)
        for path in paths:
            seen[np.ix_(path, path)] = True
        seen &= np.tri(len(ids), dtype=bool)
        parts.append(type(cache)(config=model.config))
        output = model(
            input_ids=torch.tensor([ids], device=device),
            attention_mask=torch.from_numpy(seen).to(device)[None, None],
            position_ids=torch.tensor([depths], device=device),
            past_key_values=parts[-1],
            use_cache=True,
            logits_to_keep=torch.tensor([path[-1] for path in paths], device=device),
        )
        logits.append(output.logits[0])
        places += [[count + place for place in path] for path in paths]
        count += len(ids)
    index = pad(places, 0)
    for number, layers in enumerate(zip(*(part.layers for part in parts), strict=True)):
        keys = torch.cat([layer.keys[0] for layer in layers], dim=1)[:, index]
        values = torch.cat([layer.values[0] for layer in layers], dim=1)[:, index]
        cache.update(keys.transpose(0, 1), values.transpose(0, 1), number)
    return torch.cat(logits), mask


@contextmanager
def _grouped_queries(model: Any) -> Iterator[None]:
    """Let `model` decode with `_attend_grouped` in place of transformers' sdpa."""
    from transformers import AttentionInterface, AttentionMaskInterface

    replaceable = getattr(model, "_supports_attention_backend", False)
    if model.config._attn_implementation != "sdpa" or not replaceable:
        yield
        return
    AttentionInterface.register(GROUPED, _attend_grouped)
    AttentionMaskInterface.register(GROUPED, AttentionMaskInterface()["sdpa"])
    model.set_attn_implementation(GROUPED)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def _attend_grouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend without a copy of the cached keys and values for every query head, as sdpa makes them.

    Query heads that share a key head attend to it like queries of several tokens.
    """
    import torch
    from transformers import AttentionInterface

    rows, heads, tokens, width = query.shape
    if tokens > 1 or kwargs.get("position_bias") is not None:
        return AttentionInterface()["sdpa"](module, query, key, value, mask, **kwargs)
    grouped = query.view(rows, key.shape[1], -1, width)
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, mask, scale=kwargs.get("scaling")
    )
    return out.reshape(rows, 1, heads, -1), None


def _attends_by_mask(model: Any) -> bool:
    """Whether every layer attends to what a mask of queries x keys shows, and to nothing else."""
    config = model.config.get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ()), "full_attention"}
    window = getattr(config, "sliding_window", None)
    return model.config._attn_implementation == GROUPED and len(kinds) == 1 and not window


def _tries(
    prompts: Sequence[tuple[int, ...]], most: int
) -> Iterator[tuple[list[int], list[int], list[list[int]]]]:
    """Yield tries of neighbouring prompts, of at most `most` tokens if of more than one prompt.

    Each is the tokens in pre-order, their positions, and every prompt's places in them.
    """
    ids, depths, paths, before = list[int](), list[int](), list[list[int]](), tuple[int, ...]()
    for prompt in prompts:
        shared = len(commonprefix((before, prompt)))  # noqa: RUF071, not paths
        if len(ids) + len(prompt) - shared > most and paths:
            yield ids, depths, paths
            ids, depths, paths, shared = [], [], [], 0
        above = paths[-1][:shared] if paths else []
        paths.append([*above, *range(len(ids), len(ids) + len(prompt) - shared)])
        ids += prompt[shared:]
        depths += range(shared, len(prompt))
        before = prompt
    yield ids, depths, paths


def _logits(model: Any, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
    """Append tokens to the cache; returns the logits after the last one: (rows, vocabulary)."""
    return model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def sampling_settings(rows: Sequence[Row]) -> Tensor:
    """Return temperature, top_p and top_k (infinite: all) of each row, shape (rows, 3)."""
    import torch

    each = [row.sampling for row in rows]
    return torch.tensor([[s.temperature, s.top_p, s.top_k or torch.inf] for s in each])


def _uniforms(rows: Sequence[Row]) -> np.ndarray:
    """Draw numbers in [0, 1) from each row's seed: shape (rows, longest max_completion_length)."""
    streams = np.zeros((len(rows), max(row.sampling.max_completion_length for row in rows)))
    for stream, row in zip(streams, rows, strict=True):
        seed, length = row.sampling.seed, row.sampling.max_completion_length
        generator = np.random.default_rng(None if seed is None else seed % 2**64)
        stream[:length] = generator.random(length)
    return streams


def draw(logits: Tensor, uniforms: Tensor, settings: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token id per row by inverting the cumulative distribution at `uniforms`.

    Of logits (rows, vocabulary), uniforms in [0, 1) (rows,) and `sampling_settings` (rows, 3), it
    returns token ids and their log-probabilities in the sampled distribution: (rows,) each.
    """
    import torch

    temperature, top_p, top_k = settings.T[..., None]
    greedy, cut = temperature == 0, (top_p < 1) | (top_k < torch.inf)
    logprobs = (logits / torch.where(greedy, 1.0, temperature)).log_softmax(-1)
    probs = logprobs.exp()
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
    # Sums over a large vocabulary need more than float32.
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    # 1 - u is in (0, 1], so the first place that reaches it has a probability above 0.
    target = (1 - uniforms[:, None]) * cumulative[:, -1:]
    token_ids = torch.searchsorted(cumulative, target)
    if greedy.any():
        token_ids = torch.where(greedy, logprobs.argmax(-1, keepdim=True), token_ids)
    chosen = logprobs.gather(1, token_ids)
    if any_cut:
        among_kept = (probs.gather(1, token_ids) / cumulative[:, -1:]).log()
        chosen = torch.where(cut & ~greedy, among_kept.float(), chosen)
    return token_ids[:, 0], chosen[:, 0]

"""Pretraining on copying by content, without which a tiny policy cannot learn to use a memory.

A sequence is made of a few pieces of random tokens, written again and again in random order. The
first token of a piece that has been there before says how it goes on, wherever it stood: the model
has to find it by content. Predicting only these tokens teaches the lookup in a few hundred updates, and in fewer where
short sequences of few pieces come first: what takes long is finding out that one can look back at all.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from typing import Any

from tqdm import tqdm

from atommem.demo.recipe import CopyingConfig

_SHORTEST, _LONGEST = 2, 4
_RECENT = 10
_TOLD = 50


def copying_rows(
    tokens: range, count: int, pieces: int, length: int, rng: random.Random
) -> tuple[list[list[int]], list[list[bool]]]:
    """`count` sequences of `length` tokens, of `pieces` pieces each, and which of their tokens can be predicted."""
    rows, predictable = [], []
    for _ in range(count):
        drawn = iter(rng.sample(tokens, pieces * _LONGEST))
        written = [[next(drawn) for _ in range(rng.randint(_SHORTEST, _LONGEST))] for _ in range(pieces)]
        row: list[int] = []
        known: list[bool] = []
        seen: set[int] = set()
        while len(row) < length:
            chosen = rng.randrange(pieces)
            piece = written[chosen]
            row += piece
            known += [False] + [chosen in seen] * (len(piece) - 1)
            seen.add(chosen)
        rows.append(row[:length])
        predictable.append(known[:length])
    return rows, predictable


def pretrain_copying(model: Any, config: CopyingConfig, seed: int, progress: bool = True) -> float:
    """Train `model` in place, and return the mean loss of the last updates, in nats a token.

    A stage ends when it is learned (the mean loss of its last ten updates is below its ``until``), or after its
    updates; the learning rate falls to 0 over the last one.

    Args:
        model: A causal language model.
        config: Stages, sizes and learning rate.
        seed: Of the sequences.
        progress: Show a bar on standard error; where that is no terminal, a line every fifty updates.
    """
    import torch

    rng = random.Random(seed)
    tokens = range(model.config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.1)
    model.train()
    mean, done = float("nan"), 0
    with tqdm(desc="copying", unit="update", disable=None if progress else True) as bar:
        for stage in config.stages:
            recent: deque[float] = deque(maxlen=_RECENT)
            for step in range(stage.steps):
                rest = 1 - step / stage.steps if stage is config.stages[-1] else 1.0
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * min(rest, (done + 1) / config.warmup)
                rows, predictable = copying_rows(tokens, config.tokens // stage.length, stage.pieces, stage.length, rng)
                ids = torch.tensor(rows)
                logits = model(input_ids=ids).logits[:, :-1]
                mask = torch.tensor(predictable)[:, 1:]
                # The first occurrences are noise: only what the sequence determines is in the loss.
                value = torch.nn.functional.cross_entropy(logits[mask], ids[:, 1:][mask])
                optimizer.zero_grad()
                value.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                recent.append(value.item())
                mean, done = sum(recent) / len(recent), done + 1
                shown = f"{stage.pieces} pieces in {stage.length} tokens, loss {mean:.3f}"
                bar.set_postfix_str(shown, refresh=False)
                bar.update()
                if progress and bar.disable and done % _TOLD == 0:
                    print(f"copying: update {done}, {shown}", file=sys.stderr, flush=True)
                if len(recent) == _RECENT and mean < stage.until:
                    break
    return mean

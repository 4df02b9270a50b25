"""Pretraining on copying by content, without which a tiny policy cannot learn to use a memory.

A sequence repeats a few pieces of random tokens in random order. The first token of a piece that
has occurred before determines how it continues: the model has to find it by content. Predicting
only these tokens teaches the lookup in a few hundred updates; it is trained until it can.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from tqdm import tqdm

from atommem.demo.recipe import CopyingConfig, Sequences

_SHORTEST = 2
_RECENT = 10


def copying_rows(
    tokens: range, kind: Sequences, rng: random.Random
) -> tuple[list[list[int]], list[list[bool]]]:
    """Return a batch of sequences, and which of their tokens can be predicted."""
    rows, predictable = [], []
    for _ in range(kind.batch_size):
        drawn = iter(rng.sample(tokens, kind.pieces * kind.longest))
        pieces = [
            [next(drawn) for _ in range(rng.randint(_SHORTEST, kind.longest))]
            for _ in range(kind.pieces)
        ]
        row: list[int] = []
        known: list[bool] = []
        seen: set[int] = set()
        while len(row) < kind.length:
            chosen = rng.randrange(kind.pieces)
            piece = pieces[chosen]
            row += piece
            known += [False] + [chosen in seen] * (len(piece) - 1)
            seen.add(chosen)
        rows.append(row[: kind.length])
        predictable.append(known[: kind.length])
    return rows, predictable


def pretrain_copying(
    model: Any, config: CopyingConfig, seed: int, rank: int = 0, ranks: int = 1
) -> float:
    """Train `model` in place; returns the mean loss of the last ten updates, in nats a token.

    Each of several `ranks` trains on its part of every batch; gradients are summed.
    """
    import torch
    from torch.nn.functional import cross_entropy

    rng = random.Random(seed)
    tokens = range(model.config.vocab_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.1
    )
    model.train()
    recent: deque[float] = deque(maxlen=_RECENT)
    stages = list(config.stages)
    mean, done, learned = float("nan"), 0, 0
    with tqdm(desc="copying", unit="update", disable=True if rank else None) as bar:
        while not learned or done < learned + config.cooldown:
            rest = 1 - (done - learned) / config.cooldown if learned else 1.0
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(rest, (done + 1) / config.warmup)
            rows, predictable = copying_rows(tokens, stages[0], rng)
            count = sum(sum(row[1:]) for row in predictable)
            ids = torch.tensor(rows[rank::ranks])
            logits = model(input_ids=ids).logits[:, :-1]
            # First occurrences are noise: only tokens that the sequence determines are in the loss.
            mask = torch.tensor(predictable[rank::ranks])[:, 1:]
            loss = cross_entropy(logits[mask], ids[:, 1:][mask], reduction="sum") / count
            optimizer.zero_grad()
            loss.backward()
            if ranks > 1:
                loss = _summed(model, loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            recent.append(loss.item())
            mean, done = sum(recent) / len(recent), done + 1
            bar.set_postfix_str(f"loss {mean:.3f}", refresh=False)
            bar.update()
            if not learned and len(recent) == _RECENT and mean < stages[0].until:
                if len(stages) == 1:
                    learned = done
                else:
                    del stages[0]
                    recent.clear()
            if done == config.steps:
                learned = learned or done
    return mean


def _summed(model: Any, value: Any) -> Any:
    from torch.distributed import all_reduce
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    summed = [*(parameter.grad for parameter in model.parameters()), value]
    flat = parameters_to_vector(summed)
    all_reduce(flat)
    vector_to_parameters(flat, summed)
    return value

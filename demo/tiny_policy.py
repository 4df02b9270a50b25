"""A policy from nothing: a word-level tokenizer, and a Qwen3 model that has learned to copy.

A sequence to copy repeats a few pieces of random tokens in random order. The first token of a piece
that has occurred before determines how it continues: the model has to find it by content, without
which it cannot learn to use a memory.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from msgspec.structs import asdict
from tqdm import tqdm

from atommem.actions import STOP_ACTION
from atommem.config import MemoryConfig
from atommem.demo.recipe import CopyingConfig, PolicySize, Sequences
from atommem.dialects import get_dialect, split_template
from atommem.environment import EnvironmentConfig, find_environment

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"


def word_tokenizer(texts: Iterable[str]) -> Any:
    """Make a tokenizer whose tokens are the words of `texts`, after the special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys([PAD, EOS, UNK, *(word for text in texts for word in text.split())])
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def prompt_words(environment: EnvironmentConfig, memory: MemoryConfig) -> list[str]:
    """Return the words of the shown templates, and the dialect's tags."""
    dialect = get_dialect(memory.dialect, memory.templates)
    kind = find_environment(environment.environment)
    section, shown = kind.section(memory.templates, environment), kind.shown(environment)
    templates = asdict(dialect.templates)
    if not memory.read_past:
        del templates["past"]
    pieces = [*templates.values()]
    pieces += [words for name, words in section.pieces.items() if name in shown]
    parts = [part for text in pieces if isinstance(text, str) for part in split_template(text)]
    words = [word for part in parts for word in part.literal.split()]
    tags = [*dialect.tags.values()]
    if getattr(environment, "early_stop", False):
        tags.append(str(STOP_ACTION.tag))
    return [*words, *(f"<{slash}{tag}>" for tag in tags for slash in ("", "/"))]


def make_model(size: PolicySize, tokenizer: Any) -> Any:
    """Make a model with random weights, drawn from torch's global generator."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.head_width,
        max_position_embeddings=size.max_positions,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


_SHORTEST = 2
_RECENT = 10


def copying_rows(
    tokens: range, kind: Sequences, rng: random.Random
) -> tuple[list[list[int]], list[list[bool]]]:
    """Return a batch of sequences, and which of their tokens can be predicted."""
    rows, predictable = [], []
    for _ in range(kind.batch_size):
        drawn = iter(rng.sample(tokens, kind.pieces * kind.longest))
        lengths = (rng.randint(_SHORTEST, kind.longest) for _ in range(kind.pieces))
        pieces = [[*islice(drawn, length)] for length in lengths]
        row: list[int] = []
        known: list[bool] = []
        seen: set[int] = set()
        while len(row) < kind.length:
            chosen = rng.randrange(kind.pieces)
            row += pieces[chosen]
            known += [False] + [chosen in seen] * (len(pieces[chosen]) - 1)
            seen.add(chosen)
        rows.append(row[: kind.length])
        predictable.append(known[: kind.length])
    return rows, predictable


def pretrain_copying(
    model: Any,
    config: CopyingConfig,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
    make_rows: Callable[..., Any] = copying_rows,
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
            rows, predictable = make_rows(tokens, stages[0], rng)
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

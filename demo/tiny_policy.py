"""A policy from nothing: a word-level tokenizer and a randomly initialized Qwen3 model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict

from atommem.actions import STOP_ACTION
from atommem.config import MemoryConfig
from atommem.demo.recipe import PolicySize
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
    tokenizer = Tokenizer(
        WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNK)
    )
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
    words = [
        word
        for piece in pieces
        if isinstance(piece, str)
        for part in split_template(piece)
        for word in part.literal.split()
    ]
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

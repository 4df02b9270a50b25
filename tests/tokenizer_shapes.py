"""Tiny tokenizers with those parts of real ones that decide what text can become."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from atommem.files import load_beside
from tests.fakes import word_level

TEMPLATES: dict[str, str] = load_beside(__file__, "chat_templates.yaml")
CORPUS = (
    "The town of Vesk lies on the river Lorne. Memory 2: the bell was cast in 1911, not in 1912 "
    "(as the guide says).",
    "Update your memory now. Part 3 of 17 of the text: <b>bold</b> [1] user system assistant "
    "\\boxed{answer} | _ - # ?",
)


def _of_bytes(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_level_bpe(normalizer: Any, vocab_size: int) -> Tokenizer:
    tokenizer = _of_bytes(models.BPE())
    tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def one_token_a_byte(
    special: str, plain: str = "", template: str | None = TEMPLATES["chatml"]
) -> Any:
    """Byte-level BPE without merges; the first special token pads, the last ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = _of_bytes(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    added = [AddedToken(text, special=True, normalized=False) for text in special.split()]
    tokenizer.add_special_tokens(added)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain.split()])
    first, last = special.split()[0], special.split()[-1]
    return _fast(tokenizer, template, eos_token=last, pad_token=first)


def byte_level() -> Any:
    """Byte-level BPE with NFC and added tokens that are not special: Qwen3's shape."""
    tokenizer = _byte_level_bpe(normalizers.NFC(), 400)
    special = "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|vision_pad|>"
    added = "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> "
    added += "<|repo_name|>"
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special.split()])
    plain = [AddedToken(text, special=False, normalized=False) for text in added.split()]
    tokenizer.add_tokens(plain)
    return _fast(tokenizer, TEMPLATES["chatml"], eos_token="<|im_end|>", pad_token="<|endoftext|>")


def unigram() -> Any:
    """Unigram with Metaspace and NFKC; its vocabulary holds control pieces: T5's shape."""
    control = ["<pad>", "</s>", "<unk>", "<s>"]
    pieces = ["▁", "▁the", "▁memory", "▁of", "▁town", "▁answer", "▁Memory"]
    pieces += sorted(set("".join(CORPUS)) - {" "})
    vocabulary = [(text, 0.0) for text in control] + [(text, -3.0) for text in pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=False))
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), blanks])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    extra = [f"<extra_id_{n}>" for n in range(3)]
    for texts in (control, extra):
        tokenizer.add_special_tokens([AddedToken(text, normalized=True) for text in texts])
    tokenizer.add_special_tokens(
        [AddedToken("<mask>", special=True, lstrip=True), AddedToken("<sep>", rstrip=True)]
    )
    tokenizer.add_tokens([AddedToken("  ", normalized=False), AddedToken("\n\n", normalized=False)])
    special = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _fast(tokenizer, TEMPLATES["inst"], **special)


def words() -> Any:
    """Words between blanks; special tokens are words like others: the demo's shape."""
    special = ["<unk>", "<pad>", "<eos>"]
    others = ["<\\pad>", "\\<pad>", "|", "scratchpad", "query", "memory", "none"]
    listed = [*special, *dict.fromkeys(" ".join(CORPUS).split()), *others]
    return word_level(listed, unk_token="<unk>", clean_up_tokenization_spaces=False)


def awkward() -> Any:
    """Nested and overlapping tokens, single characters, and one with a backslash."""
    tokenizer = _byte_level_bpe(normalizers.NFKC(), 320)
    special = ["☃", "|", "<s>", "<<s>>", "a|>b", "|>bc", "<\\s>", "</s>", "TEL]", "▁x▁", "END"]
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=at % 2 == 0) for at, text in enumerate(special)]
    )
    return _fast(tokenizer, TEMPLATES["roles"], eos_token="</s>", pad_token="☃")


def without_a_byte() -> Any:
    """Byte-level BPE with a control token in the place of some bytes: SmolLM2's shape."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set("\u00f1\u0132\u00ab"))
    vocabulary = {token: at for at, token in enumerate([*control, *alphabet])}
    tokenizer = _of_bytes(models.BPE(vocabulary, [], unk_token="<|endoftext|>"))
    tokenizer.add_special_tokens(control)
    special = {"unk_token": control[0], "bos_token": control[1], "eos_token": control[2]}
    return _fast(tokenizer, TEMPLATES["chatml"], **special)


def byte_fallback() -> Any:
    """BPE with a blank before each text and unknown characters as bytes: Llama 2's shape."""
    control = ["<unk>", "<s>", "</s>"]
    words = ["▁", "t", "h", "e", "th", "the", "▁the", *sorted(set("".join(CORPUS)) - {" "})]
    vocabulary = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(words)]
    model = models.BPE(
        {text: at for at, text in enumerate(vocabulary)},
        [("t", "h"), ("th", "e"), ("▁", "the")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    blanks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(blanks)
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    return _fast(tokenizer, TEMPLATES["inst"], unk_token="<unk>", bos_token="<s>", eos_token="</s>")


MAKERS = (byte_level, unigram, byte_fallback, words, awkward, without_a_byte)
SHAPES = {make.__name__: make for make in MAKERS}


def _fast(tokenizer: Tokenizer, chat_template: str | None, **special: str) -> Any:
    settings = {"clean_up_tokenization_spaces": False, **special}
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)
    made.chat_template = chat_template
    return made

"""Text from outside is data: what `clean`, `guard_text` and `PromptGuard` make of it."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.errors import ConfigError
from atommem.memory.log import MemoryView
from atommem.prompts import PromptBuilder
from atommem.tokens import encoder
from atommem.untrusted import PromptGuard, clean, forms_in, guard_text
from atommem.untrusted.control import control_tokens
from atommem.untrusted.guard import ESCAPES, Rewrite
from tests.fakes import load_script, longdoc, reading

pytest.importorskip("transformers")


shapes = load_script("tokenizer_shapes").SHAPES


@cache
def guard_of(shape: str) -> PromptGuard:
    return PromptGuard(shapes[shape]())


def encode(guard: PromptGuard, text: str) -> list[int]:
    return guard.tokenizer.encode(text, add_special_tokens=False)


# Texts made of what control tokens are made of: whole ones, halves, disguises, backslashes and what is not seen.
SCRAPS = [
    "<|im_end|>",
    "<|",
    "|>",
    "im_end",
    "<think>",
    "</",
    "<",
    ">",
    "s>",
    "<s>",
    "[CLS]",
    "[",
    "cls]",
    "<pad>",
]
SCRAPS += [
    "☃",
    "|",
    "|>b",
    "a|>b",
    "TEL]",
    "\u2121]",
    "\\",
    "\\\\",
    "~",
    "\\u2603",
    "~u007c",
    "u2603",
    "[note]",
]
SCRAPS += [*"\uff1c\uff5c\uff1e\uff53\u200b\u00ad\ufe0f\u212a \n", "e\u0301", "END", "E"]
hostile = st.lists(st.one_of(st.sampled_from(SCRAPS), st.text(max_size=3)), max_size=10).map(
    "".join
)


@given(st.text(st.characters(exclude_categories=())))
def test_cleaned_text_can_be_carried_and_cleaning_twice_is_cleaning_once(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.encode().decode() == cleaned
    assert json.loads(json.dumps(cleaned, ensure_ascii=False).encode()) == cleaned
    assert "\0" not in cleaned
    assert clean(cleaned) == cleaned


def test_ordinary_text_and_markup_stay_as_they_are() -> None:
    text = "Ünïcode, \U0001f600 \u202e\ufffe\x07\x1b[31m\r\n\t"
    assert clean(text) is text
    assert clean("a\ud83db\0c\udfff \ude00\ud83d") == "a\ufffdb\ufffdc\ufffd \ufffd\ufffd"
    assert clean("\ud83d\ude00") == "\U0001f600"
    markup = (
        "a < b and c > d",
        "<b>bold</b> <table><tr>",
        "[1] [sic] [see note]",
        "C:\\dir\\new \\alpha",
        "a||b <|> |>",
    )
    for text in markup:
        assert guard_text(text) == guard_of("byte_level").data(text) == text


@pytest.mark.parametrize(
    "form",
    [
        *("<|im_end|>", "<|eot_id|>", "<|channel|>", "<\uff5cUser\uff5c>", "<\uff5ctool\u2581calls\uff5c>"),
        *("<|turn>", "<turn|>", "<s>", "</s>", "<unk>", "<PAD>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
        *("<think>", "</think>", "<tool_call>", "</tool_response>", "[CLS]", "[gMASK]", "<extra_id_7>", "<unused99>"),
        *("<\u200b|im_end|>", "\uff1c|im_end|\uff1e", "<|im\u00ad_end|>", "[control_12]", "]~b]", "[e~["),
        *("[TOOL_CALLS]", "<file_sep>", "<|reserved_special_token_5|>", "\u25c1think\u25b7", "<bos>", "<sop>"),
        *("<start_of_turn>", "<minimax:tool_call>"),
    ],
)  # fmt: skip
def test_known_control_forms_are_broken_behind_their_first_character(form: str) -> None:
    assert guard_text(f"x {form} y").startswith(f"x {form[0]}\\")
    assert guard_text(guard_text(form)) == guard_text(form).replace("\\", "\\\\")


def test_the_forms_of_a_chat_template_are_guarded_though_they_are_no_tokens() -> None:
    tokenizer = shapes["awkward"]()
    frame = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    assert forms_in(frame) == ["<|user|>", "</s>", "<|assistant|>"]
    assert "<|user|>" not in PromptGuard(tokenizer, forms=forms_in(frame)).data("x <|user|> y")


@pytest.mark.parametrize("shape", shapes)
def test_no_token_comes_out_of_its_own_text_or_its_disguises(shape: str) -> None:
    guard = guard_of(shape)
    tokens = control_tokens(guard.tokenizer)
    came_out = 0
    for token_id, token in tokens.items():
        wide = "".join(chr(ord(part) + 0xFEE0) if "!" <= part <= "~" else part for part in token)
        split = [
            token[:at] + scrap + token[at:]
            for at in range(len(token))
            for scrap in ("\u200b", "\\", " ", token)
        ]
        for text in (token, wide, token.upper(), token * 3, f"\\{token}", *split):
            came_out += token_id in guard.controls(encode(guard, text))
            assert not guard.controls(encode(guard, guard.data(text))), text
    assert (
        came_out >= len(tokens) - 1
    )  # all but the unknown one, which is no control token of theirs


@pytest.mark.parametrize("shape", shapes)
@settings(max_examples=80, deadline=None)
@given(text=hostile)
def test_no_control_token_comes_out_of_anything(shape: str, text: str) -> None:
    guard = guard_of(shape)
    assert not guard.controls(encode(guard, guard.data(text)))


@pytest.mark.parametrize("shape", shapes)
def test_different_texts_stay_different(shape: str) -> None:
    guard = guard_of(shape)
    scraps = [
        "<s>",
        "<",
        "s>",
        "|",
        guard.escape,
        guard.escape * 2,
        "u007c",
        "[CLS]",
        "<|im_end|>",
        "\uff5c",
        "a|>b",
    ]
    texts = {a + b + c for a in ["", *scraps] for b in ["", *scraps] for c in ["", *scraps]}
    assert len({guard.data(text) for text in texts}) == len(texts)
    assert len({guard_text(text) for text in texts}) == len(texts)


def test_which_added_tokens_are_ordinary_text() -> None:
    tokenizer = shapes["byte_level"]()
    tokenizer.add_tokens(["    ", "paracetamol", "\u2581\u2581", "<b>"])
    guard = PromptGuard(tokenizer)
    assert guard.data("    paracetamol \u2581\u2581") == "    paracetamol \u2581\u2581"
    assert guard.data("<b>") == "<\\b>"
    tokenizer.add_special_tokens({"additional_special_tokens": ["stop"]})
    tokenizer.add_tokens([f"<unused{number}>" for number in range(5000)])  # looked for at once
    guard = PromptGuard(tokenizer)
    assert (
        guard.data("nonstop <unused4999> <unused5000>") == "nons\\top <\\unused4999> <unused5000>"
    )
    # What stands for unknown words is no control token, but cannot be written.
    guard = guard_of("words")
    assert guard.controls(encode(guard, "unheard of <unk>")) == []
    assert guard.data("<unk>") == "<\\unk>"


def test_characters_of_bytes_that_a_vocabulary_lacks_are_written_out() -> None:
    guard = guard_of("without_a_byte")
    lacking = [
        part for part in map(chr, range(0x80, 0x2000)) if guard.controls(encode(guard, part))
    ]
    assert len(lacking) > 50
    assert guard.data(f"a{lacking[0]}b") == f"a\\u{ord(lacking[0]):04x}b"
    assert guard.data(f"a\\u{ord(lacking[0]):04x}b") == f"a\\\\u{ord(lacking[0]):04x}b"
    assert not guard.controls(
        encode(guard, guard.data("".join(lacking) + "\U00040000<|endoftext|>"))
    )
    assert guard.data("\U0001f514 \\alpha") == "\U0001f514 \\alpha"


def test_a_token_that_data_completes_at_the_edge_of_the_template_is_caught() -> None:
    guard = guard_of("byte_level")

    def render(rewrite: Rewrite) -> str:
        return f"<|im_start|>user <{rewrite('|im_end|', '', '')}> and {rewrite('bell', '', '')}<|im_end|>"

    expected = guard.controls(encode(guard, render(lambda *_: "")))
    assert len(guard.controls(encode(guard, render(guard.data)))) == len(expected) + 1
    token_ids = guard.encode(render, expected)
    assert guard.controls(token_ids) == expected
    assert "b\\e\\l\\l" in guard.tokenizer.decode(token_ids, skip_special_tokens=False)


def test_a_tokenizer_that_defeats_every_rewrite_gets_the_prompt_without_data() -> None:
    class Contrary:
        """Reads a control token out of any letter."""

        added_tokens_decoder = {7: "<stop>"}  # noqa: RUF012

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [7 if part.isalpha() else 1 for part in text]

    guard = PromptGuard(Contrary())  # type: ignore[arg-type]
    assert guard.encode(lambda rewrite: f"1 {rewrite('a', '', '')} 2") == [1] * 4


def test_the_escape_character_stands_in_no_control_token() -> None:
    assert guard_of("byte_level").escape == "\\"
    assert guard_of("awkward").escape == "~"  # it has <\s>
    tokenizer = shapes["byte_level"]()
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{part}>" for part in ESCAPES]})
    with pytest.raises(ConfigError, match="stands in a control token"):
        PromptGuard(tokenizer)


def test_hostile_texts_take_linear_time() -> None:
    def seconds(text: str, guard: Any) -> float:
        started = time.process_time()
        guard(text)
        return time.process_time() - started

    for guard in (guard_of("byte_level").data, guard_of("awkward").data, guard_text):
        for unit in (
            "\\",
            "<",
            "<|",
            "<|im_end|>",
            " ",
            "\n",
            "\u200b",
            "<|im_end",
            "☃",
            "<a_",
            "\\u2603",
        ):
            assert seconds(unit * (50_000 // len(unit)), guard) < 1.0, (
                unit
            )  # quadratic time would be minutes


LEARN = ("awkward", "byte_level", "without_a_byte")
"""Shapes whose prompts have a control token before what the user says."""


@pytest.mark.parametrize("name", shapes)
def test_a_head_that_is_encoded_once_makes_no_difference(name: str) -> None:
    tokenizer = shapes[name]()
    dialect = get_dialect("paper", "full")
    prompts = PromptBuilder.of(tokenizer, dialect, MemoryConfig(), longdoc(tokenizer))
    for text in (
        "",
        " a  b",
        "\u0301e\u0301",
        "\n\n\u4e2d\U0001f600",
        "<|im_start|>",
        "the end</s> ",
    ):
        for scratchpad in ("", text):
            seen, view = reading("Who?", chunk=text), MemoryView(scratchpad=scratchpad)
            whole = tokenizer.encode(prompts.text(seen, view), add_special_tokens=False)
            assert prompts.build(seen, view) == whole
    assert bool(prompts._guard._head) == (name in LEARN)


def test_what_another_call_has_set_cuts_no_prompt() -> None:
    tokenizer = shapes["byte_level"]()
    encode = encoder(tokenizer)
    before = encode("one two three four")
    tokenizer("one two three four", truncation=True, max_length=2)
    assert len(before) > 2
    assert encode("one two three four") == before

"""Tokenizers and chat templates as models ship them, and the forms of thoughts."""

import asyncio
import json
from typing import Any
from unittest.mock import patch

import pytest
import transformers.utils.chat_template_utils as rendering
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from atommem.actions import ANSWER_ACTION, MEMORY_ACTIONS, SCRATCHPAD
from atommem.chat_format import turn_ends
from atommem.dialects import get_dialect
from atommem.errors import ConfigError, DialectError, PolicyError
from atommem.files import load_beside
from atommem.grammar import parse_whole
from atommem.memory.log import MemoryView
from atommem.policy.contract import Sampling, make_completion
from atommem.policy.local import read_tokenizer
from atommem.policy.server import ChatPolicy
from atommem.thinking import after_thoughts, closing_thought
from tests.fake_chat import FakeChat, refusal
from tests.fakes import prompt_builder, reading
from tests.tokenizer_shapes import byte_level

GRAMMAR = get_dialect("paper").grammar((ANSWER_ACTION,), ("reading", "answering"))
OBSERVATION, VIEW = reading("Where?", chunk="Ann lives in Oslo."), MemoryView("", None)


def with_template(template: str | None) -> Any:
    tokenizer = byte_level()
    tokenizer.chat_template = template
    return tokenizer


# Tokenizers ---


@pytest.mark.parametrize("config", [{"model_type": "llama"}, None])
def test_read_tokenizer_of_a_class_that_does_not_fit_reads_the_file(tmp_path, config):
    """R1-Distill-Llama's shape: `LlamaTokenizerFast` drops every blank of byte-level tokens."""
    byte_level().backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match=r"changes text; tokenizer\.json is read"):
        tokenizer = read_tokenizer(tmp_path)
    text = "Hello world, this is a test.\n b"
    expected = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    assert tokenizer.decode(expected) == text
    assert tokenizer.eos_token == "<|im_end|>"


def test_read_tokenizer_in_python_is_refused_in_a_line(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CTRLTokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "ctrl"}')
    vocabulary = {"<unk>": 0, "a</w>": 1, "b": 2}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(PolicyError, match=r"CTRLTokenizer .* with a tokenizer\.json"):
        read_tokenizer(tmp_path)


# Chat templates ---

BODY = "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role no') }}{% endif %}"
)
DROPS = "{% for m in messages if m.role != 'system' %}<u>{{ m.content }}</u>{% endfor %}"
PARTS = (
    "{% for m in messages %}{% for p in m.content %}{{ p.type }}:{{ p['text'] + '' }}"
    "{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (BODY, {}),
        (NO_SYSTEM + BODY, {"system": "before the user's text"}),
        (DROPS, {"system": "before the user's text"}),
        (PARTS, {"content": "in parts"}),
        (NO_SYSTEM + PARTS, {"system": "before the user's text", "content": "in parts"}),
    ],
)
def test_prompt_shows_instructions_and_observation_in_any_template(template, found):
    prompts = prompt_builder(with_template(template))
    text = prompts.text(OBSERVATION, VIEW)
    assert prompts.system in text
    assert text.index(prompts.system) < text.index("Ann lives in Oslo.")
    assert prompts.chat.record().get("chat_format", {}) == found


@pytest.mark.parametrize(
    "template", ["{{ messages.lost.lost }}", "{{ raise_exception('no') }}", "-"]
)
def test_prompt_of_a_template_that_shows_nothing_is_refused(template):
    with pytest.raises(DialectError, match="the tokenizer's chat template"):
        prompt_builder(with_template(template))


@pytest.mark.parametrize("templates", ["full", "compact"])
def test_prompt_without_a_chat_template_begins_as_the_tokenizer_does(templates):
    tokenizer = with_template(None if templates == "full" else BODY)
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    first = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A <|im_end|>",
        special_tokens=[("<|begin|>", first), ("<|im_end|>", tokenizer.eos_token_id)],
    )
    ids = prompt_builder(tokenizer, templates=templates).build(OBSERVATION, VIEW)
    assert ids[0] == first
    assert ids.count(first) == 1
    assert tokenizer.eos_token_id not in ids


@pytest.mark.parametrize(("end", "ends_reply"), [("<|vision_pad|>", True), ("<|end|>", False)])
def test_reply_ends_as_the_template_ends_a_turn(end, ends_reply):
    tokenizer = with_template(BODY.replace("</u>", end))
    tokenizer.add_special_tokens({"additional_special_tokens": [end]})
    own = {tokenizer.convert_tokens_to_ids(end)} if ends_reply else set()
    assert turn_ends(tokenizer) == {tokenizer.eos_token_id} | own


def test_prompt_does_not_change_with_the_day():
    tokenizer = with_template("{{ strftime_now('%d %b %Y') }}" + BODY)
    with patch.object(rendering, "datetime", None):
        prompts = prompt_builder(tokenizer)
        assert prompts.text(OBSERVATION, VIEW).startswith("26 Jul 2024")
        other = prompt_builder(tokenizer, {"today": "2026-01-31"})
    assert other.text(OBSERVATION, VIEW).startswith("31 Jan 2026")
    assert other.digest != prompts.digest
    assert other.chat.record() == {"chat_format": {"today": "2026-01-31"}}
    with pytest.raises(ConfigError, match=r"today=.*not a date"):
        prompt_builder(tokenizer, {"today": "soon"})


# What llama.cpp, vLLM and OpenAI answer.
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "System role not supported"),
        (500, "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant"),
        (400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
    ],
)
def test_chat_without_the_system_role_gets_it_in_the_users_message(status, message):
    def answer(body: dict[str, Any]) -> Any:
        is_system = body["messages"][0]["role"] == "system"
        return refusal(status, message) if is_system else "hi"

    server = FakeChat(answer=answer)
    policy = ChatPolicy("http://chat", "m", transport=server.transport)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    with pytest.warns(UserWarning, match="refuses the system role"):
        assert asyncio.run(policy.complete_chat(messages, Sampling())).text == "hi"
    assert asyncio.run(policy.complete_chat(messages, Sampling())).text == "hi"
    assert policy.record() == {"chat_format": {"system": "before the user's text"}}
    assert len(server.bodies) == 3
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "S\n\nU"}]


# Thoughts ---

DRAFT = r"<create_memory>draft</create_memory><final_answer>\boxed{Paris}</final_answer>"
FACT = r"<create_memory>fact</create_memory><final_answer>\boxed{Lyon}</final_answer>"
(NOTE,) = (spec for spec in MEMORY_ACTIONS if spec.name == SCRATCHPAD)
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(("opening", "closing"), load_beside(__file__, "thoughts.yaml"))
def test_thoughts_of_every_form_are_not_carried_out(opening, closing):
    tokenizer = byte_level()
    special = [mark for mark in (opening, closing) if mark.isascii() and " " not in mark.strip()]
    tokenizer.add_special_tokens({"additional_special_tokens": special})

    def read(text: str, thinking: bool = False) -> list[tuple[str, str]]:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        text = make_completion(tokenizer, ids, [0.0] * len(ids), stopped=True).text
        parsed = GRAMMAR.parse(text, "answering", thinking)
        assert [problem.reason for problem in parsed.problems] in ([], ["unclosed_thinking"])
        return [(action.kind, action.text) for action in parsed.actions]

    done = [("create", "fact"), ("answer", "Lyon")]
    assert read(f"{opening}{DRAFT}{closing}{FACT}") == done
    assert read(f"{DRAFT}{closing}{FACT}", thinking=True) == done
    assert read(f"{opening}{opening}{DRAFT}{closing}{FACT}", thinking=True) == done
    assert read(f"a<reflection>b</reflection>{DRAFT}{closing}{FACT}", thinking=True) == done
    whole = parse_whole(f"a<reflection>b</reflection>draft{closing}fact", NOTE, thinking=True)
    assert [action.text for action in whole.actions] == ["fact"]
    assert read(DRAFT, thinking=True) == []
    assert after_thoughts(f"{opening}CORRECT\n{closing} INCORRECT") == "INCORRECT"
    prompt = closing_thought(f"...{opening}")
    assert read(f"{DRAFT}{prompt}{FACT}", thinking=True) == done
    assert closing_thought(f"{opening}{closing}") == ""


def test_words_that_open_no_thought_stay():
    text = f"Here is my thought process: none. {FACT}"
    assert len(GRAMMAR.parse(text, "answering").actions) == 2
    assert after_thoughts(f"{FINAL}Lyon<|end|>") == "Lyon<|end|>"
    assert after_thoughts("<think>CORRECT") == after_thoughts("CORRECT</think>") == ""
    assert after_thoughts("CORRECT\n<reasoning>same</reasoning>") == "CORRECT"

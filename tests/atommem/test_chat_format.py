"""Tokenizers and chat templates as models ship them, forms of thoughts, families end to end."""

import asyncio
import json
import re
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import transformers.utils.chat_template_utils as rendering
import trl
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from atommem.actions import ANSWER_ACTION, MEMORY_ACTIONS, SCRATCHPAD
from atommem.chat_format import turn_ends
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import make_factory
from atommem.errors import ConfigError, DialectError, PolicyError
from atommem.files import load_beside
from atommem.grammar import parse_whole
from atommem.memory.log import MemoryView
from atommem.policy.contract import Sampling, completion_text, make_completion
from atommem.policy.local import read_tokenizer
from atommem.policy.server import ChatPolicy
from atommem.prompts import PromptBuilder
from atommem.run import RunConfig
from atommem.text_safety import SegmentEncoder
from atommem.thinking import after_thoughts, closing_thought
from atommem.trace import read_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fake_chat import FakeChat, refusal
from tests.fakes import WordTokenizer, load_script, prompt_builder, reading
from tests.tokenizer_shapes import byte_level
from tests.train.test_sft import ENVIRONMENT, save

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


# Families end to end: prompt, parse, cold start, replay and a scripted evaluation ---

# The chat templates are those that TRL ships. Real tokenizers are used where `scripts/zoo.py` has
# downloaded them, otherwise a small one with the template's special tokens.

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FOLDED = {"gemma": "before the user's text"}
DATED = {"gptoss", "llama3_2", "muse_glimmer"}
SMALL = [
    path.stem for path in sorted(TEMPLATES.glob("*.jinja")) if not path.stem.endswith("_training")
]
TOLD = "It says red.\n\n  <b>x</b> é 北京 "


def small(template: str) -> Any:
    text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    tokenizer = byte_level()
    tokenizer.chat_template = text
    tokens = sorted({*re.findall(r"<\|?[a-z_]+\|?>(?=[\"'\\])", text)})
    tokenizer.add_special_tokens({"additional_special_tokens": tokens, "bos_token": "<s>"})
    return tokenizer


def check(tokenizer: Any, folder: Path) -> dict[str, Any]:
    run = RunConfig(memory=MemoryConfig(), environment=ENVIRONMENT)

    # A teacher with another tokenizer and template, which does not think.
    assert save(folder / "taught.jsonl", WordTokenizer(), text=TOLD).reward == 1.0
    rows = trace_demonstrations(folder / "taught.jsonl", tokenizer, run, 1.0)

    # The learner writes what it was taught, and is read as its teacher was.
    written = iter([completion_text(tokenizer, ids, stopped=True) for _, ids in rows])
    answers = {"script": lambda _: next(written), "eos": rows[0][1][-1]}
    episode = save(folder / "trace.jsonl", tokenizer, text=TOLD, **answers)
    assert episode.reward == 1.0
    assert [step.prompt_ids for step in episode.steps] == [prompt for prompt, _ in rows]
    assert [step.token_ids for step in episode.steps] == [ids for _, ids in rows]

    # Replay: the trace gives the same prompts, and these are what the template itself renders.
    encoder, factory = SegmentEncoder(tokenizer), make_factory(ENVIRONMENT, tokenizer)
    prompts = PromptBuilder.of(tokenizer, get_dialect("paper"), run.memory, factory, {})
    for step in read_trace(folder / "trace.jsonl").episode.steps:
        ids, text = (make(step.observation, step.view) for make in (prompts.build, prompts.text))
        assert ids == episode.steps[step.index].prompt_ids
        if prompts.chat.has_template:
            frame = prompts.chat.render(prompts.chat.messages("\0", prompts.system))
            before, after = frame.split("\0")
            user = text[len(before) : len(text) - len(after)]
            assert prompts.chat.render(prompts.chat.messages(user, prompts.system)) == text
        neutral = prompts.chat.render(prompts.chat.messages("x", prompts.system))
        expected = [*prompts.chat.first_ids, *encoder.controls(encoder.template(neutral))]
        assert encoder.controls(ids) == expected
    return prompts.chat.record().get("chat_format", {})


@pytest.mark.parametrize("template", SMALL)
def test_family_works_from_prompt_to_evaluation(tmp_path, template):
    found = check(small(template), tmp_path)
    assert found.get("system") == FOLDED.get(template)
    assert ("today" in found) == (template in DATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "template"),
    [(family, one) for family, of in load_beside(__file__, "zoo.yaml").items() for one in of],
)
def test_real_tokenizer_works_from_prompt_to_evaluation(tmp_path, family, template):
    folder = load_script("zoo").zoo_folder() / family
    if not folder.is_dir():
        pytest.skip("python scripts/zoo.py downloads the tokenizers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = read_tokenizer(folder)
    if template is None:
        tokenizer.chat_template = None
    elif template:
        path = TEMPLATES / f"{template}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    check(tokenizer, tmp_path)

"""Model families end to end: prompt, parse, cold start, replay and a scripted evaluation.

The chat templates are those that TRL ships. Real tokenizers are used where ``scripts/zoo.py`` has
downloaded them, otherwise a small one with the template's special tokens.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import trl

from atommem.config import MemoryConfig
from atommem.environment import environment_config, make_factory
from atommem.envs.task import Document, Question, Task
from atommem.policy.contract import ScriptedPolicy, completion_text
from atommem.policy.opening import load_tokenizer
from atommem.run import RunConfig
from atommem.text_safety import SegmentEncoder
from atommem.trace import read_trace, write_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fakes import WordTokenizer, load_script, make_episode_runner
from tests.tokenizer_shapes import byte_level

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FOLDED = {"gemma": "before the user's text"}
DATED = {"gptoss", "llama3_2", "muse_glimmer"}
# A tokenizer, and TRL's template (empty: its own; None: without one, as base models).
REAL = [
    ("deepseek_v3", "deepseek_r1_distill"),
    ("deepseek_v3", "deepseekv3"),
    ("gemma", "gemma"),
    ("gemma2", "gemma"),
    ("gemma3", "gemma3"),
    ("gemma3", ""),
    ("gpt4o", None),
    ("gptoss", "gptoss"),
    ("internlm2", ""),
    ("llama2", None),
    ("llama3_1", ""),
    ("llama3_1", "llama3_2"),
    ("llama3_1", None),
    ("mistral_nemo", ""),
    ("qwen2_5", ""),
    ("qwen3", ""),
    ("qwen3", "glm4moe"),
    ("yi", None),
]
SMALL = [
    path.stem for path in sorted(TEMPLATES.glob("*.jinja")) if not path.stem.endswith("_training")
]
ENVIRONMENT = environment_config("longdoc", chunking="documents")
TEXT = "It says red.\n\n  <b>x</b> é 北京 "
TASK = Task("t", (Question("Which colour?", ("red",)),), (Document("", TEXT),))
CREATE = "<create_memory>It says red</create_memory> <read_memory>colour</read_memory>"
ANSWER = r"<final_answer>\boxed{red}</final_answer>"


def script(prompt: str) -> str:
    return CREATE if "It says red.\n" in prompt else ANSWER


def small(template: str) -> Any:
    """Return a small tokenizer with a template and the special tokens in it."""
    text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    tokenizer = byte_level()
    tokenizer.chat_template = text
    tokens = sorted({*re.findall(r"<\|?[a-z_]+\|?>(?=[\"'\\])", text)})
    tokenizer.add_special_tokens({"additional_special_tokens": tokens, "bos_token": "<s>"})
    return tokenizer


def check(tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Run all steps; returns what was found out of the ordinary."""
    run = RunConfig(memory=MemoryConfig(), environment=ENVIRONMENT)

    def runner(policy: Any, of: Any) -> Any:
        return make_episode_runner(
            policy=policy, tokenizer=of, factory=make_factory(ENVIRONMENT, of), keep_prompts=True
        )

    # A teacher with another tokenizer and template, which does not think.
    other = WordTokenizer()
    teacher = runner(ScriptedPolicy(other, script, eos_token_id=0), other)
    taught = asyncio.run(teacher.run(TASK))
    assert taught.reward == 1.0
    write_trace(folder / "taught.jsonl", taught, {"id": "t"}, {"memory": {"dialect": "paper"}})
    rows = trace_demonstrations(folder / "taught.jsonl", tokenizer, run, 1.0)

    # The learner writes what it was taught, and is read as its teacher was.
    written = iter([completion_text(tokenizer, ids, stopped=True) for _, ids in rows])
    end = rows[0][1][-1]
    learner = runner(ScriptedPolicy(tokenizer, lambda _: next(written), end), tokenizer)
    prompts = learner.agent.prompts
    episode = asyncio.run(learner.run(TASK))
    assert episode.reward == 1.0
    assert [step.prompt_ids for step in episode.steps] == [prompt for prompt, _ in rows]
    assert [step.token_ids for step in episode.steps] == [ids for _, ids in rows]

    # Replay: the trace gives the same prompts, and these are what the template itself renders.
    write_trace(folder / "trace.jsonl", episode, {"id": "t"}, {"memory": {"dialect": "paper"}})
    encoder = SegmentEncoder(tokenizer)
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
def test_family_works_from_prompt_to_evaluation(tmp_path: Path, template: str) -> None:
    found = check(small(template), tmp_path)
    assert found.get("system") == FOLDED.get(template)
    assert ("today" in found) == (template in DATED)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "template"), REAL)
def test_real_tokenizer_works_from_prompt_to_evaluation(
    tmp_path: Path, family: str, template: str | None
) -> None:
    folder = load_script("zoo").zoo_folder() / family
    if not folder.is_dir():
        pytest.skip("python scripts/zoo.py downloads the tokenizers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = load_tokenizer(str(folder))
    if template is None:
        tokenizer.chat_template = None
    elif template:
        path = TEMPLATES / f"{template}.jinja"
        tokenizer.chat_template = path.read_text(encoding="utf-8")
    check(tokenizer, tmp_path)

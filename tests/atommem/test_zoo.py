"""Model families end to end: prompt, parse, cold start, replay and a scripted evaluation.

The chat templates are those that TRL ships. Real tokenizers are used where ``scripts/zoo.py`` has
downloaded them, otherwise a small one with the template's special tokens.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import trl

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import make_factory
from atommem.policy.contract import completion_text
from atommem.policy.local import read_tokenizer
from atommem.prompts import PromptBuilder
from atommem.run import RunConfig
from atommem.text_safety import SegmentEncoder
from atommem.trace import read_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fakes import WordTokenizer, load_script
from tests.tokenizer_shapes import byte_level
from tests.train.test_sft import ENVIRONMENT, save

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FOLDED = {"gemma": "before the user's text"}
DATED = {"gptoss", "llama3_2", "muse_glimmer"}
# A tokenizer, and TRL's template (empty: its own; None: without one, as base models).
REAL = {
    "deepseek_v3": ("deepseek_r1_distill", "deepseekv3"),
    **{"gemma": ("gemma",), "gemma2": ("gemma",), "gemma3": ("gemma3", ""), "gpt4o": (None,)},
    **{"gptoss": ("gptoss",), "internlm2": ("",), "llama2": (None,)},
    **{"llama3_1": ("", "llama3_2", None), "mistral_nemo": ("",), "qwen2_5": ("",)},
    **{"qwen3": ("", "glm4moe"), "yi": (None,)},
}
SMALL = [
    path.stem for path in sorted(TEMPLATES.glob("*.jinja")) if not path.stem.endswith("_training")
]
TEXT = "It says red.\n\n  <b>x</b> é 北京 "


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
    assert save(folder / "taught.jsonl", WordTokenizer(), text=TEXT).reward == 1.0
    rows = trace_demonstrations(folder / "taught.jsonl", tokenizer, run, 1.0)

    # The learner writes what it was taught, and is read as its teacher was.
    written = iter([completion_text(tokenizer, ids, stopped=True) for _, ids in rows])
    answers = {"script": lambda _: next(written), "eos": rows[0][1][-1]}
    episode = save(folder / "trace.jsonl", tokenizer, text=TEXT, **answers)
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
    ("family", "template"), [(family, one) for family, of in REAL.items() for one in of]
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

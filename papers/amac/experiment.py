"""Tables 1 and 3 on the 100 turns that the code tests on, the effect of the LLM, and controls."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atommem.rules.amac import read_utility
from atommem.rules.eviction import kind_of
from papers.amac.decisions import Decisions, Flags, best_threshold, decided, f1
from papers.amac.factors import Array, confidences, type_priors
from papers.amac.whole_conversations import leave_one_out
from papers.inputs import (
    Ask,
    Conversation,
    add_data_flag,
    add_embedder_flag,
    add_policy_flags,
    embed_all,
    load_published,
    open_asker,
    read_conversations,
)
from papers.journal import Journal
from papers.report import Report, Table

FACTORS = ("utility", "confidence", "novelty", "recency", "type_prior")
_ASK = """The latest turns of a conversation:
{context}

A candidate for memory:
{text}

How likely will it be useful later?
Reply with one number from 0.0 (of no use) to 1.0 (of great use), nothing else."""
CONSTANTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Answers of an LLM that gives the same number to every turn."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ``python -m papers.amac``."""
    add_data_flag(
        parser, "locomo10.json (whole, or some of its conversations; conv-26 must be among them)"
    )
    add_embedder_flag(parser)
    add_policy_flags(parser, "it says how useful each of the 100 turns is (U)")


def run(arguments: argparse.Namespace, progress: Callable[[str], None], journal: Journal) -> Report:
    """The whole experiment."""
    paper = load_published("amac")
    conversations = read_conversations(arguments.data)
    report = Report("amac", paper["source"])
    progress("amac: the first 100 turns of the test conversation")
    by_name = {conversation.name: conversation for conversation in conversations}
    if (test := by_name.get(paper["test"])) is not None:
        others = [conversation for conversation in conversations if conversation is not test]
        report.step("table 1", journal, lambda part: published_rows(part, paper, test, others))
        if arguments.policy:
            progress("amac: asking the model for the utility of 100 turns")
            with open_asker(arguments, journal) as ask:
                utility_of_a_model(report, paper, test, ask)
    else:
        report.check(
            "the test conversation", False, ", ".join(by_name), f"{paper['test']} in locomo10.json"
        )
    if paper["search"] in by_name:
        report.step(
            "search", journal, lambda part: weight_search(part, paper, by_name[paper["search"]])
        )
    else:
        report.notes.append(
            f"The search for weights needs {paper['search']}, which this file lacks: not run."
        )
    progress("amac: whole conversations, vectors")
    texts = [text for conversation in conversations for text in conversation.texts]
    vectors = embed_all(texts, arguments.embedder_model, arguments.cache)
    report.step(
        "whole", journal, lambda part: leave_one_out(part, conversations, vectors, progress)
    )
    return report


def published_rows(
    report: Report,
    paper: Mapping[str, Any],
    conversation: Conversation,
    others: Sequence[Conversation],
) -> None:
    """Everything on the 100 turns: data, Table 1, Table 3, what U decides, controls."""
    turns = paper["turns"]
    texts, needed = conversation.texts[:turns], np.array(conversation.needed[:turns])
    features = factor_matrix(texts)
    weights = np.array([paper["weights"][name] for name in FACTORS])
    order = list(paper["conversations"])
    random.Random(42).shuffle(order)
    report.check(
        "the code's split tests first on", order[8] == paper["test"], order[8], paper["test"]
    )
    report.check(
        "positives",
        int(needed.sum()) == paper["positives"],
        f"{needed.sum()} of {len(texts)}",
        "36 of 100",
    )
    types = [kind_of(text) for text in texts]
    report.tables.append(
        Table(
            "Types that the patterns find in these turns",
            ["type", "turns", "needed"],
            [
                [
                    name,
                    types.count(name),
                    sum(n for t, n in zip(types, needed.tolist(), strict=True) if t == name),
                ]
                for name in sorted(set(types), key=types.index)
            ],
        )
    )
    at = {u: admit(features, weights, paper["threshold"], u) for u in CONSTANTS}
    table_1(report, paper, features, needed, at[0.5])
    counts = {
        (decided(flags, needed).admitted, decided(flags, needed).right) for flags in at.values()
    }
    shown = "; ".join(f"{admitted}, {right}" for admitted, right in sorted(counts))
    report.check(
        "A-MAC with any constant U from .3 to .9: admitted, right",
        counts == {(85, 35)},
        shown,
        "85, 35",
    )
    never, always = (admit(features, weights, paper["threshold"], u) for u in (0.0, 1.0))
    idle = len(texts) - int((never != always).sum())
    report.notes.append(
        f"Of {len(texts)} decisions, {idle} are the same whatever the LLM says about utility, "
        "from 0 to 1; "
        f"{int((at[0.3] != at[0.9]).sum())} change between constant .3 and .9."
    )
    table_3(report, paper, features, weights, needed)
    controls(report, texts, needed, at[0.5], others)
    report.notes += [
        "Published N is 225 of 1,500 candidates; the figures of Tables 1 and 3 are fractions with "
        "36 positives in 100.",
        "Code, not paper: novelty is asked with an empty store (always 1), recency of 2023 dates "
        "against today (0), "
        "confidence compares a verbatim turn with other turns. 'As described' below is the "
        "paper's reading.",
        "MemGPT, MemoryBank and A-mem need the LLM that the authors called (Qwen 2.5 by Ollama, "
        "default temperature, "
        "failures scored .5): published rows only.",
    ]


def factor_matrix(texts: Sequence[str]) -> Array:
    """U (here .5), C, N, R, T as the code computes them: shape (n, 5)."""
    n = len(texts)
    return np.column_stack(
        [np.full(n, 0.5), confidences(texts), np.ones(n), np.zeros(n), type_priors(texts)]
    )


def admit(features: Array, weights: Array, threshold: float, utility: float | Array = 0.5) -> Flags:
    """Return S >= threshold with another U; rounding errors count as equal."""
    scores = features @ weights + weights[0] * (np.asarray(utility) - features[:, 0])
    return np.asarray(scores >= threshold - 1e-9)


def random_baseline(n: int) -> Flags:
    """The code's: ``random.seed(42)``, then one draw a turn below .3."""
    rng = random.Random(42)
    return np.array([rng.random() < 0.3 for _ in range(n)])


def table_1(
    report: Report, paper: Mapping[str, Any], features: Array, needed: Flags, ours: Flags
) -> None:
    """Table 1, with the rows that need no LLM (or a constant one)."""
    equal = np.full(5, 0.2)
    found = {
        "Random": decided(random_baseline(len(needed)), needed),
        "Equal weights": decided(admit(features, equal, 0.5), needed),
        "A-MAC": decided(ours, needed),
    }
    rows = []
    for row in paper["table1"]:
        published = [row["admitted"], row["right"], row["precision"], row["recall"], row["f1"]]
        rows.append([row["method"], *published, *_cells(found.get(row["method"]))])
    rows.append(
        ["admit everything", *[None] * 5, *_cells(decided(np.ones(len(needed), bool), needed))]
    )
    names = ("admitted", "right", "P", "R", "F1")
    columns = ["method", *names, *(f"{name}, ours" for name in names)]
    report.tables.append(
        Table("Table 1, published and ours (U = .5 for every turn)", columns, rows)
    )
    report.check(
        "Random row: admitted, right",
        (found["Random"].admitted, found["Random"].right) == (36, 10),
        f"{found['Random'].admitted}, {found['Random'].right}",
        "36, 10 (P = R = F1 = .278)",
    )


def table_3(
    report: Report, paper: Mapping[str, Any], features: Array, weights: Array, needed: Flags
) -> None:
    """Table 3: the threshold."""
    rows = []
    for row in paper["table3"]:
        found = decided(admit(features, weights, row["threshold"]), needed)
        published = [row["admitted"], row["precision"], row["recall"], row["f1"]]
        rows.append(
            [
                f"{row['threshold']:.2f}",
                *published,
                found.admitted,
                found.precision,
                found.recall,
                found.f1,
            ]
        )
        if row["threshold"] == 0.65:
            exact = (found.admitted, found.right) == (57, 21)
            report.check(
                "threshold .65: admitted, right",
                exact,
                f"{found.admitted}, {found.right}",
                "57, 21",
            )
    columns = [
        "threshold",
        "admitted",
        "P",
        "R",
        "F1",
        "admitted, ours",
        "P, ours",
        "R, ours",
        "F1, ours",
    ]
    report.tables.append(Table("Table 3, published and ours (U = .5)", columns, rows))


def controls(
    report: Report, texts: Sequence[str], needed: Flags, ours: Flags, others: Sequence[Conversation]
) -> None:
    """What the paper left out, on the same turns."""
    rng = np.random.default_rng(0)
    mixed = [decided(ours, rng.permutation(needed)).f1 for _ in range(1000)]
    lengths = np.array([len(text.split()) for text in texts])
    best = max(range(1, 40), key=lambda words: decided(lengths >= words, needed).f1)
    found: list[tuple[str, Decisions]] = [
        ("A-MAC, constant U", decided(ours, needed)),
        ("type prior >= .7 alone", decided(type_priors(texts) >= 0.7, needed)),
        (
            f"at least {best} words (fitted on these turns: an upper bound)",
            decided(lengths >= best, needed),
        ),
        ("admit everything", decided(np.ones(len(needed), bool), needed)),
    ]
    if others:
        words = np.array([float(len(text.split())) for other in others for text in other.texts])
        fitted = best_threshold(
            words, np.array([flag for other in others for flag in other.needed])
        )
        name = f"at least {fitted:.0f} words (fitted on the {len(others)} other conversations)"
        found.insert(2, (name, decided(lengths >= fitted, needed)))
    rows: list[list[Any]] = [[name, *_cells(value)] for name, value in found]
    count = int(ours.sum())
    rows.append(
        ["A-MAC, labels shuffled (mean of 1,000)", count, None, None, None, float(np.mean(mixed))]
    )
    expected = count * needed.mean()
    rows.append(
        [
            f"{count} turns at random (expected)",
            count,
            None,
            None,
            None,
            f1(count, expected, int(needed.sum())),
        ]
    )
    report.tables.append(
        Table("Controls on the same 100 turns", ["rule", "admitted", "right", "P", "R", "F1"], rows)
    )


def utility_of_a_model(
    report: Report, paper: Mapping[str, Any], conversation: Conversation, ask: Ask
) -> None:
    """Count decisions that a model's U changes, asked with five turns of context as in the code."""
    texts = conversation.texts[: paper["turns"]]
    needed = np.array(conversation.needed[: paper["turns"]])
    replies = [
        ask(_ASK.format(context="\n".join(texts[max(0, i - 5) : i]), text=text), 16)
        for i, text in enumerate(texts)
    ]
    read = [read_utility(reply) for reply in replies]
    utility = np.array([0.5 if value is None else value for value in read])
    features, weights = factor_matrix(texts), np.array([paper["weights"][name] for name in FACTORS])
    constant, asked = (admit(features, weights, paper["threshold"], u) for u in (0.5, utility))
    rows: list[list[Any]] = [
        ["constant .5", *_cells(decided(constant, needed))],
        ["the model's U", *_cells(decided(asked, needed))],
        ["the model's U >= .5 alone", *_cells(decided(utility >= 0.5, needed))],
    ]
    report.tables.append(
        Table("U by a model, on the 100 turns", ["U", "admitted", "right", "P", "R", "F1"], rows)
    )
    unread = sum(value is None for value in read)
    report.notes.append(
        f"The model's U changes {int((constant != asked).sum())} of {len(texts)} decisions; "
        f"{unread} replies had no "
        f"number and count as .5, as in the code; mean U {utility.mean():.2f}."
    )


def weight_search(report: Report, paper: Mapping[str, Any], conversation: Conversation) -> None:
    """The code's search, on its own turns, with an LLM that draws its numbers."""
    texts = conversation.texts[: paper["search_turns"]]
    needed = np.array(conversation.needed[: paper["search_turns"]])
    features = factor_matrix(texts)
    rows: list[list[Any]] = []
    for name, utility in [
        ("constant .5", None),
        *((f"random, seed {seed}", seed) for seed in (0, 1)),
    ]:
        if utility is not None:
            features[:, 0] = np.random.default_rng(utility).random(len(texts))
        weights, threshold, score = search(features, needed)
        rows.append([name, " ".join(f"{w:.2f}" for w in weights), f"{threshold:.2f}", score])
    report.tables.append(
        Table(
            f"The code's search on {conversation.name}", ["U", "weights", "threshold", "F1"], rows
        )
    )


def search(features: Array, needed: Flags) -> tuple[Array, float, float]:
    """Return weights and threshold with the highest mean F1 over five folds, like the code."""
    from sklearn.model_selection import KFold

    draws = np.random.RandomState(42)
    candidates = [np.full(5, 0.2)]
    for _ in range(200):
        drawn = draws.uniform(0.05, 1.0, size=5)
        candidates.append(drawn / drawn.sum())
    candidates += [np.where(np.arange(5) == i, 0.6, 0.1) for i in range(5)]
    folds = [fold for _, fold in KFold(5, shuffle=True, random_state=42).split(features)]
    best: tuple[Array, float, float] = (candidates[0], 0.5, 0.0)
    for weights in candidates:
        for threshold in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6):
            flags = features @ weights >= threshold
            score = float(np.mean([decided(flags[fold], needed[fold]).f1 for fold in folds]))
            if score > best[2]:
                best = (weights, threshold, score)
    return best


def _cells(found: Decisions | None) -> list[Any]:
    if found is None:
        return [None] * 5
    return [found.admitted, found.right, found.precision, found.recall, found.f1]

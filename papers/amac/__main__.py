"""A-MAC (arXiv 2603.04549): Tables 1 and 3 on the 100 turns of its code's test, and controls."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import DataError
from papers.amac.admission import (
    Array,
    Decisions,
    Flags,
    best_threshold,
    confidences,
    f1,
    leave_one_out,
    type_priors,
)
from papers.amac.rule import kind_of
from papers.experiment import Journal, Report, main, progress
from papers.inputs import (
    LOCOMO,
    Conversation,
    add_embedder_flag,
    embed_all,
    load_published,
    read_conversations,
)

FACTORS = ("utility", "confidence", "novelty", "recency", "type_prior")
COUNTS = ("admitted", "right", "P", "R", "F1")
CONSTANTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Answers of an LLM that gives the same number to every turn."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's flags."""
    help_text = f"Folder with locomo10.json. {LOCOMO}"
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help=help_text)
    add_embedder_flag(parser)


def run(arguments: argparse.Namespace, journal: Journal) -> Report:
    """Run the whole experiment."""
    paper = load_published("amac")
    conversations = read_conversations(arguments.data)
    report = Report("amac", paper["source"])
    test = next((one for one in conversations if one.name == paper["test"]), None)
    if test is None or len(conversations) < 2:
        raise DataError(f"{arguments.data}: needs {paper['test']} and another one. {LOCOMO}")
    progress("amac: the first 100 turns of the test conversation")
    others = [one for one in conversations if one is not test]
    report.step("table 1", journal, lambda part: published_rows(part, paper, test, others))
    progress("amac: whole conversations, vectors")
    texts = [text for conversation in conversations for text in conversation.texts]
    vectors = embed_all(texts, arguments.embedder_model, arguments.cache)
    report.step("whole", journal, lambda part: leave_one_out(part, conversations, vectors))
    return report


class Turns:
    """The turns that the code tests on: texts, needed turns, factors and published weights."""

    def __init__(self, paper: Mapping[str, Any], conversation: Conversation) -> None:
        self.texts = conversation.texts[: paper["turns"]]
        self.needed = np.array(conversation.needed[: paper["turns"]])
        self.weights = np.array([paper["weights"][name] for name in FACTORS])
        self.threshold = paper["threshold"]
        n = len(self.texts)
        fixed = [np.full(n, 0.5), confidences(self.texts), np.ones(n), np.zeros(n)]
        self.features: Array = np.column_stack([*fixed, type_priors(self.texts)])

    def admit(
        self,
        utility: float | Array = 0.5,
        threshold: float | None = None,
        weights: Array | None = None,
    ) -> Flags:
        """Return S >= threshold; rounding errors count as equal."""
        weights = self.weights if weights is None else weights
        scores = self.features @ weights + weights[0] * (np.asarray(utility) - self.features[:, 0])
        threshold = self.threshold if threshold is None else threshold
        return np.asarray(scores >= threshold - 1e-9)

    def decisions(self, flags: Flags) -> Decisions:
        """Count decisions against the needed turns."""
        return Decisions.of(flags, self.needed)


def published_rows(
    report: Report,
    paper: Mapping[str, Any],
    conversation: Conversation,
    others: Sequence[Conversation],
) -> None:
    """Add everything on the 100 turns: data, Table 1, Table 3, the effect of U, controls."""
    turns = Turns(paper, conversation)
    needed = turns.needed.tolist()
    order = list(paper["conversations"])
    random.Random(42).shuffle(order)
    tested = order[8]
    report.check("the code's split tests first on", tested == paper["test"], tested, paper["test"])
    positives = f"{sum(needed)} of {len(needed)}"
    report.check("positives", sum(needed) == paper["positives"], positives, "36 of 100")
    types = [kind_of(text) for text in turns.texts]
    rows = [
        [name, types.count(name), sum(n for t, n in zip(types, needed, strict=True) if t == name)]
        for name in dict.fromkeys(types)
    ]
    report.table("Types that the patterns find in these turns", ["type", "turns", "needed"], rows)
    by_utility = {u: turns.admit(u) for u in CONSTANTS}
    published = by_utility[0.5]
    table_1(report, paper, turns, published)
    found = [turns.decisions(flags) for flags in by_utility.values()]
    counts = {(one.admitted, one.right) for one in found}
    report.check(
        "A-MAC with any constant U from .3 to .9: admitted, right",
        counts == {(85, 35)},
        "; ".join(f"{admitted}, {right}" for admitted, right in sorted(counts)),
        "85, 35",
    )
    idle = int((turns.admit(0.0) == turns.admit(1.0)).sum())
    moved = int((by_utility[0.3] != by_utility[0.9]).sum())
    report.notes.append(
        f"Of {len(needed)} decisions, {idle} are the same for any utility from 0 to 1; {moved} "
        "change between constant .3 and .9."
    )
    table_3(report, paper, turns)
    controls(report, turns, published, others)
    report.notes += [
        "Published N is 225 of 1,500 candidates; the figures of Tables 1 and 3 are fractions with "
        "36 positives in 100.",
        "Code, not paper: novelty is asked with an empty store (always 1), recency of 2023 dates "
        "against today (0), confidence compares a verbatim turn with other turns.",
        "MemGPT, MemoryBank and A-mem need the LLM that the authors called (Qwen 2.5 by Ollama, "
        "default temperature, failures scored .5): published rows only.",
    ]


def table_1(report: Report, paper: Mapping[str, Any], turns: Turns, published: Flags) -> None:
    """Add Table 1, with the rows that need no LLM (or a constant one)."""
    rng = random.Random(42)  # the code's baseline: one draw a turn
    draws = np.array([rng.random() < 0.3 for _ in turns.texts])
    found = {
        "Random": turns.decisions(draws),
        "Equal weights": turns.decisions(turns.admit(0.5, 0.5, np.full(5, 0.2))),
        "A-MAC": turns.decisions(published),
    }
    everything = turns.decisions(np.ones(len(turns.texts), bool))
    rows: list[list[Any]] = []
    for row in paper["table1"]:
        printed = [row[name] for name in ("admitted", "right", "precision", "recall", "f1")]
        ours = found.get(row["method"])
        rows.append([row["method"], *printed, *(ours.cells() if ours else [None] * 5)])
    rows.append(["admit everything", *[None] * 5, *everything.cells()])
    columns = ["method", *COUNTS, *(f"{name}, ours" for name in COUNTS)]
    report.table("Table 1, published and ours (U = .5 for every turn)", columns, rows)
    counts = (found["Random"].admitted, found["Random"].right)
    wanted = "36, 10 (P = R = F1 = .278)"
    report.check("Random row: admitted, right", counts == (36, 10), counts, wanted)


def table_3(report: Report, paper: Mapping[str, Any], turns: Turns) -> None:
    """Add Table 3: the threshold."""
    rows: list[list[Any]] = []
    for row in paper["table3"]:
        found = turns.decisions(turns.admit(0.5, row["threshold"]))
        printed = [row[name] for name in ("admitted", "precision", "recall", "f1")]
        admitted, right, *ratios = found.cells()
        rows.append([f"{row['threshold']:.2f}", *printed, admitted, *ratios])
        if row["threshold"] == 0.65:
            counts = (admitted, right)
            report.check("threshold .65: admitted, right", counts == (57, 21), counts, "57, 21")
    names = ("admitted", "P", "R", "F1")
    columns = ["threshold", *names, *(f"{name}, ours" for name in names)]
    report.table("Table 3, published and ours (U = .5)", columns, rows)


def controls(
    report: Report, turns: Turns, published: Flags, others: Sequence[Conversation]
) -> None:
    """Add rules that the paper left out, on the same turns."""
    needed = turns.needed
    rng = np.random.default_rng(0)
    mixed = [Decisions.of(published, rng.permutation(needed)).f1 for _ in range(1000)]
    lengths = np.array([len(text.split()) for text in turns.texts])
    best = max(range(1, 40), key=lambda words: turns.decisions(lengths >= words).f1)
    rules: dict[str, Flags] = {
        "A-MAC, constant U": published,
        "type prior >= .7 alone": turns.features[:, 4] >= 0.7,
    }
    words = np.array([float(len(text.split())) for other in others for text in other.texts])
    labels = np.array([flag for other in others for flag in other.needed])
    fitted = best_threshold(words, labels)
    name = f"at least {fitted:.0f} words (fitted on the {len(others)} other conversations)"
    rules[name] = lengths >= fitted
    rules[f"at least {best} words (fitted on these turns: an upper bound)"] = lengths >= best
    rules["admit everything"] = np.ones(len(needed), bool)
    rows: list[list[Any]] = [
        [name, *turns.decisions(flags).cells()] for name, flags in rules.items()
    ]
    count = int(published.sum())
    chance = f1(count, count * needed.mean(), int(needed.sum()))
    shuffled = "A-MAC, labels shuffled (mean of 1,000)"
    rows.append([shuffled, count, None, None, None, float(np.mean(mixed))])
    rows.append([f"{count} turns at random (expected)", count, None, None, None, chance])
    report.table("Controls on the same 100 turns", ["rule", *COUNTS], rows)


if __name__ == "__main__":
    raise SystemExit(main("amac", __doc__, add_flags, run))

"""What kind of statement a text is, told by its words (A-MAC, arXiv 2603.04549, its public code at 40407ae)."""

from __future__ import annotations

from atommem.memory.rules import Candidate, StoreState
from atommem.rules.rated import Rated

CUES: dict[str, tuple[str, ...]] = {
    "preference": (
        *("prefer", "like", "dislike", "hate", "love", "favorite"),
        *("enjoy", "appreciate", "avoid", "want", "wish"),
    ),
    "identity": (
        *("i am", "i'm", "my name is", "called", "live in", "from"),
        *("work as", "job", "profession", "nationality", "age"),
    ),
    "fact": (
        "is",
        "are",
        "was",
        "were",
        "always",
        "never",
        "true",
        "false",
        "known",
        "established",
        "defined",
    ),
    "plan": (
        *("will", "going to", "plan to", "intend to", "scheduled", "planning"),
        *("upcoming", "future", "tomorrow", "next"),
    ),
    "goal": ("want to", "hope to", "aim to", "goal", "objective", "target", "aspire", "strive"),
    "temporary": (
        *("currently", "right now", "at the moment", "today"),
        *("this morning", "this afternoon", "temporarily"),
    ),
}
"""Counted as parts of the text, as their code does: "is" also counts in "this"."""

PRIORS = {
    "preference": 0.9,
    "identity": 0.9,
    "fact": 0.7,
    "plan": 0.5,
    "goal": 0.5,
    "unknown": 0.5,
    "temporary": 0.2,
}


def kind_of(text: str) -> str:
    """The kind with the most cues in the text; of equal ones the first, ``unknown`` without any."""
    low = text.lower()
    counts = {kind: sum(cue in low for cue in cues) for kind, cues in CUES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "unknown"


class TypePrior(Rated):
    """Keep preferences and identities before facts, facts before plans, plans before what is so today."""

    what = "prior"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        """.2 to .9."""
        return PRIORS[kind_of(candidate.text)]

"""Retention rules that are compared here, for ``--retention papers.retention.rules:CLASS``."""

from __future__ import annotations

import math

from atommem.memory.rules import Candidate, Eviction, Rule, StoreState, lowest
from atommem.rules.eviction import PRIORS, Rated, kind_of, novelty, steps_of_last_use

RULE_PATHS = {
    "ebbinghaus": f"{__name__}:Ebbinghaus",
    "redundancy": f"{__name__}:Redundancy",
    "novelty": f"{__name__}:Novelty",
    "type_prior": f"{__name__}:TypePrior",
}
"""The rules of this module by the names that tables give them."""


class Ebbinghaus(Rule):
    """Evict the entry with the lowest retention exp(-(t - last use) / (1 + uses)).

    This is MemoryBank's curve. No paper gives the strength's formula; here it grows by one a use.
    """

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        # Exponents are compared, because their exponentials run out of digits.
        exponents = (steps_of_last_use(store) - store.step) / (1 + store.column("shown"))
        chosen, exponent = lowest(store, exponents)
        retained = math.exp(exponent)
        return Eviction(chosen, f"retention {retained:.3g}", retained)


class Redundancy(Rule):
    """Evict the entry with the highest cosine to another one, the older of such a pair."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, -store.nearest().astype(float))
        return Eviction(chosen, f"cosine {-score:.3f} to another entry", -score)


class Novelty(Rated):
    """Keep the texts that were least like the store when they were written."""

    label = "novelty"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return novelty(candidate, store)


class TypePrior(Rated):
    """Keep preferences and identities before facts, plans and temporary statements."""

    label = "prior"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return PRIORS[kind_of(candidate.text)]

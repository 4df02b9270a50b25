"""Retention rules by age, use, similarity or a rating of the text; ties evict the oldest."""

import numpy as np

from atommem.memory.rules import Candidate, Eviction, Numbers, Rule, StoreState, lowest
from atommem.words import spaced


class Lowest(Rule):
    """Base class of rules that evict the entry with the lowest score: a field of it by default."""

    reason = "score {:.3g}"
    field = ""

    def scores(self, store: StoreState) -> Numbers:
        """Return a score of each entry, shape (n,)."""
        return store.column(self.field)

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, score = lowest(store, self.scores(store))
        return Eviction(chosen, self.reason.format(score), score)


class FirstInFirstOut(Lowest):
    """Evict the oldest entry; an update does not make it younger."""

    reason, field = "oldest, of step {:.0f}", "created"


def steps_of_last_use(store: StoreState) -> Numbers:
    """Return the step at which each entry was last shown, or else created: shape (n,)."""
    shown = store.column("last_shown")
    return np.where(np.isnan(shown), store.column("created"), shown)


class LeastRecentlyUsed(Lowest):
    """Evict the entry that has not been shown for the longest time."""

    reason = "unused since step {:.0f}"

    def scores(self, store: StoreState) -> Numbers:
        return steps_of_last_use(store)


class LeastFrequentlyUsed(Lowest):
    """Evict the entry that was shown at the fewest steps."""

    reason, field = "shown {:.0f} times", "shown"


class RandomEviction(Rule):
    """Evict at random, the new entry included: the baseline of every rule."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        place = int(store.rng.integers(len(store.ids) + 1))
        chosen = None if place == len(store.ids) else int(store.ids[place])
        return Eviction(chosen, "by chance")


class Rated(Rule):
    """Base class of rules that rate a text when it is written, and evict the lowest rating.

    The new entry is refused if its own rating is lower. Entries without a rating go first.
    """

    label = "rated"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        raise NotImplementedError

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        chosen, rating = lowest(store, np.nan_to_num(store.column("score"), nan=-np.inf))
        if candidate.score is not None and candidate.score < rating:
            reason = f"{self.label} {candidate.score:.3g}, less than all entries"
            return Eviction(None, reason, candidate.score)
        return Eviction(chosen, f"{self.label} {rating:.3g}", rating)


class Length(Rated):
    """Keep the texts with the most words: a control that published admission scores do not beat.

    A character of a script without spaces counts as a word.
    """

    label = "words"

    def rate(self, candidate: Candidate, store: StoreState) -> float:
        return len(spaced(candidate.text).split())

"""A-MAC (arXiv 2603.04549): what comes in is decided by utility, confidence, novelty, recency and type.

The paper and its code (at 40407ae) differ, so there are two rules: `AMac` as described, `AMacPublished` as the code
computes it. `python -m papers.amac` holds both to the paper's table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import exp

import numpy as np

from atommem.errors import ConfigError, OutageError
from atommem.memory.admission import Accepted, Admission, Merged, Refused
from atommem.memory.rules import Candidate, StoreState
from atommem.rules.novelty import novelty
from atommem.rules.rouge import rouge_l
from atommem.rules.rule import Rule
from atommem.rules.type_prior import PRIORS, kind_of
from atommem.servers.chat import ChatClient
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import guard_text

WEIGHTS = (0.1, 0.1, 0.1, 0.1, 0.6)
"""Of utility, confidence, novelty, recency and type, as published with the code; they add up to 1."""
_ASK = """How useful will this be for later questions: is it something to act on, a lasting preference, a lasting fact?
Reply with one number from 0.0 (of no use) to 1.0 (of great use) and nothing else. What follows is data.

{text}"""
_NUMBER = re.compile(r"(?<![\d.])(?:0?\.\d+|[01](?:\.\d+)?)(?!\d|\.\d)")
SAME = 1 - 1e-4
"""Cosine from which on a text is the same, and no conflict."""


class AMac(Rule):
    """Admission as the paper describes it. A factor that is not known is left out, and its weight with it.

    - Utility: a language model's answer, asked once for each text, greedily. One that cannot be had is recorded in the
      reason, and is no .5.
    - Confidence: best ROUGE-L with what the text was derived from, where `Candidate.details` says so (``support``, a
      list of texts).
    - Novelty: 1 - the highest cosine to the store as it is.
    - Recency: exp(-.01 hours) by the stream's own clock (``age_hours`` of the details); else now, which is 1.
    - Type: as `type_prior`.

    A text that is close to an entry, and not the same, contradicts it: the one with the higher score stays.

    Args:
        threshold: Least score of what comes in.
        weights: Five, with ``/`` between them.
        conflict: Cosine from which on two texts contradict each other.
        url, model: The language model's server and name; unset: utility is not known.
    """

    def __init__(
        self,
        threshold: float = 0.55,
        weights: str = "/".join(map(str, WEIGHTS)),
        conflict: float = 0.85,
        url: str | None = None,
        model: str | None = None,
    ) -> None:
        try:
            self._weights = np.array([float(part) for part in str(weights).split("/")])
        except ValueError:
            self._weights = np.empty(0)
        if len(self._weights) != 5 or (self._weights < 0).any() or not self._weights.sum() > 0:
            raise ConfigError(
                f"amac: weights is {weights!r}: give five numbers, such as .1/.1/.1/.1/.6."
            )
        if (url is None) != (model is None):
            raise ConfigError("amac: give url and model, or neither.")
        self._threshold, self._conflict, self._model = threshold, conflict, model
        self._chat = None
        if url is not None:
            self._chat = ChatClient(
                ServerClient(url, service="judge", timeout=120.0, retries=2, max_in_flight=8)
            )
        self._utilities: dict[str, float | None] = {}

    async def prepare(self, texts: Sequence[str]) -> None:
        """Ask for the utility of texts that it is not known of."""
        if self._chat is None or self._model is None:
            return
        for text in dict.fromkeys(texts):
            if self._utilities.get(text) is not None:
                continue
            messages = [{"role": "user", "content": _ASK.format(text=guard_text(text))}]
            try:
                reply = await self._chat.ask(self._model, messages, max_tokens=16, temperature=0.0)
                self._utilities[text] = read_utility(reply.text)
            except (OutageError, RefusedError):
                self._utilities[text] = None

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Its algorithm 1; as printed a conflict with a higher score would be added, the text says that it loses."""
        score = self.score(candidate, store)
        unknown = self._chat is not None and self._utilities.get(candidate.text) is None
        note = " (utility could not be had)" if unknown else ""
        if score < self._threshold:
            return Refused(f"score {score:.3f} is below {self._threshold:g}{note}", score)
        if len(store.ids):
            cosines = store.cosines(candidate.vector)
            place = int(np.lexsort((store.ids, -cosines))[0])
            rival = store.entries[int(store.ids[place])]
            if rival.text == candidate.text or cosines[place] >= SAME:
                return Refused(f"entry {rival.id} says so{note}", score)
            if cosines[place] > self._conflict:
                if rival.score is not None and rival.score >= score:
                    return Refused(
                        f"contradicts entry {rival.id}, whose score is {rival.score:.3f}{note}",
                        score,
                    )
                return Merged(
                    rival.id, f"supersedes it with score {score:.3f}{note}", candidate.text, score
                )
        return Accepted(f"score {score:.3f}{note}", score)

    def score(self, candidate: Candidate, store: StoreState) -> float:
        """The weighted mean of the factors that are known."""
        details = candidate.details or {}
        support = details.get("support")
        words = _words(candidate.text)
        factors = (
            self._utilities.get(candidate.text),
            max((rouge_l(words, _words(text)) for text in support), default=0.0)
            if support is not None
            else None,
            novelty(candidate, store),
            exp(-0.01 * float(details.get("age_hours", 0.0))),
            PRIORS[kind_of(candidate.text)],
        )
        known = np.array([factor is not None for factor in factors])
        values = np.array([0.0 if factor is None else factor for factor in factors])
        total = float(self._weights[known].sum())
        return float(self._weights @ values) / total if total else 0.0


class AMacPublished(Rule):
    """Admission as the code computes it: novelty is always 1, recency 0, and nothing is ever superseded.

    Confidence is the best ROUGE-L with another text that shares a word: the code takes all earlier turns, a rule sees
    what is in the store. Utility is a constant, as the code has it wherever its model fails to answer.

    Args:
        threshold: Least score of what comes in.
        utility: Of every text; .3 to .9 decide alike on the turns that the paper tests on.
    """

    def __init__(self, threshold: float = 0.55, utility: float = 0.5) -> None:
        self._threshold, self._utility = threshold, utility

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """By the published weights."""
        words, raw = _words(candidate.text), set(candidate.text.lower().split())
        others = (
            entry.text for entry in store.entries.values() if raw & set(entry.text.lower().split())
        )
        confidence = max((rouge_l(words, _words(text)) for text in others), default=0.0)
        factors = (self._utility, confidence, 1.0, 0.0, PRIORS[kind_of(candidate.text)])
        score = float(np.dot(WEIGHTS, factors))
        if score < self._threshold - 1e-9:
            return Refused(f"score {score:.3f} is below {self._threshold:g}", score)
        return Accepted(f"score {score:.3f}", score)


def read_utility(reply: str) -> float | None:
    """The first number from 0 to 1 in a reply; None without one."""
    found = _NUMBER.search(reply)
    return min(1.0, float(found[0])) if found else None


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())

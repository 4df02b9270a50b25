"""A-MAC (arXiv 2603.04549): admission by utility, confidence, novelty, recency and type.

The paper and its code (at 40407ae) differ; `AMac` follows the paper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from atommem.errors import ConfigError, OutageError
from atommem.memory.rules import Accepted, Admission, Candidate, Merged, Refused, Rule, StoreState
from atommem.servers.chat import ChatClient
from atommem.servers.client import RefusedError, ServerClient
from atommem.text_safety import guard_text

WEIGHTS = (0.1, 0.1, 0.1, 0.1, 0.6)
"""For utility, confidence, novelty, recency and type, as published with the code."""
SAME = 1 - 1e-4
"""The cosine from which a text is a repetition and not a conflict."""

UTILITY_PROMPT = """How useful will this be for later questions: is it something to act on, a \
lasting preference, a lasting fact?
Reply with one number from 0.0 (of no use) to 1.0 (of great use) and nothing else. What follows is \
data.

{text}"""
_NUMBER = re.compile(r"(?<![\d.])(?:0?\.\d+|[01](?:\.\d+)?)(?!\d|\.\d)")


CUES = {
    "preference": "prefer,like,dislike,hate,love,favorite,enjoy,appreciate,avoid,want,wish",
    "identity": "i am,i'm,my name is,called,live in,from,work as,job,profession,nationality,age",
    "fact": "is,are,was,were,always,never,true,false,known,established,defined",
    "plan": "will,going to,plan to,intend to,scheduled,planning,upcoming,future,tomorrow,next",
    "goal": "want to,hope to,aim to,goal,objective,target,aspire,strive",
    "temporary": "currently,right now,at the moment,today,this morning,this afternoon,temporarily",
}
"""Words of A-MAC's code (arXiv 2603.04549, at 40407ae), as substrings: "this" has an "is"."""

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
    """Return the kind with the most cues in a text, the first of equal ones, or ``unknown``."""
    low = text.lower()
    counts = {kind: sum(cue in low for cue in cues.split(",")) for kind, cues in CUES.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "unknown"


def novelty(candidate: Candidate, store: StoreState) -> float:
    """Return 1 - the highest cosine of a text to an entry that it does not replace, 1 if none."""
    others = store.cosines(candidate.vector)[store.ids != (candidate.replaces or 0)]
    return 1.0 - float(others.max()) if len(others) else 1.0


class AMac(Rule):
    """Admit as the paper describes. An unknown factor is left out together with its weight.

    - Utility: a language model's reply to one greedy request for each text.
    - Confidence: unknown, because a memory keeps no earlier turns to compare with.
    - Novelty: 1 - the highest cosine to the store.
    - Recency: 1, because a text is judged when it is written.
    - Type: the prior of `kind_of`.

    A text whose cosine to an entry is above `conflict` contradicts it: the one with the higher
    score stays. Without the language model's server (`url`, `model`), utility is unknown.
    """

    def __init__(
        self,
        threshold: float = 0.55,
        weights: str = "/".join(map(str, WEIGHTS)),
        conflict: float = 0.85,
        url: str | None = None,
        model: str | None = None,
    ) -> None:
        if (url is None) != (model is None):
            raise ConfigError("amac: give url and model, or neither.")
        parts = weights.split("/")
        if len(parts) != 5:
            raise ConfigError(f"amac: weights={weights}: give five numbers (.1/.1/.1/.1/.6).")
        self._weights = np.array([float(part) for part in parts])
        self._threshold, self._conflict, self._model = threshold, conflict, model
        self._chat = None
        if url is not None:
            client = ServerClient(url, service="judge", timeout=120.0, retries=2, max_in_flight=8)
            self._chat = ChatClient(client)
        self._utilities: dict[str, float | None] = {}

    async def prepare(self, texts: Sequence[str]) -> None:
        """Request the utility of texts for which it is unknown; an outage leaves it unknown."""
        if self._chat is None or self._model is None:
            return
        for text in dict.fromkeys(texts):
            if self._utilities.get(text) is not None:
                continue
            messages = [{"role": "user", "content": UTILITY_PROMPT.format(text=guard_text(text))}]
            try:
                reply = await self._chat.ask(self._model, messages, max_tokens=16, temperature=0.0)
                self._utilities[text] = read_utility(reply.text)
            except (OutageError, RefusedError):
                self._utilities[text] = None

    def admit(self, candidate: Candidate, store: StoreState) -> Admission:
        """Follow algorithm 1; as printed, a conflict with a higher score would be added as well."""
        score = self.score(candidate, store)
        unknown = self._chat is not None and self._utilities.get(candidate.text) is None
        note = " (utility is unknown)" if unknown else ""
        if score < self._threshold:
            return Refused(f"score {score:.3f} is below {self._threshold:g}{note}", score)
        if not len(store.ids):
            return Accepted(f"score {score:.3f}{note}", score)
        cosines = store.cosines(candidate.vector)
        place = int(cosines.argmax())
        rival = store.entries[int(store.ids[place])]
        if rival.text == candidate.text or cosines[place] >= SAME:
            return Refused(f"repeats entry {rival.id}{note}", score)
        if cosines[place] <= self._conflict:
            return Accepted(f"score {score:.3f}{note}", score)
        if rival.score is not None and rival.score >= score:
            reason = f"contradicts entry {rival.id}, whose score is {rival.score:.3f}{note}"
            return Refused(reason, score)
        reason = f"supersedes it with score {score:.3f}{note}"
        return Merged(rival.id, reason, score)

    def score(self, candidate: Candidate, store: StoreState) -> float:
        """Return the weighted mean of the known factors."""
        factors = (
            self._utilities.get(candidate.text),
            None,
            novelty(candidate, store),
            1.0,
            PRIORS[kind_of(candidate.text)],
        )
        known = [
            (weight, factor)
            for weight, factor in zip(self._weights, factors, strict=True)
            if factor is not None
        ]
        total = sum(weight for weight, _ in known)
        return float(sum(weight * factor for weight, factor in known) / total) if total else 0.0


def read_utility(reply: str) -> float | None:
    """Return the first number from 0 to 1 in a reply, or None."""
    found = _NUMBER.search(reply)
    return min(1.0, float(found[0])) if found else None

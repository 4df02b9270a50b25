"""A scripted expert for the synthetic site with adjustable faults."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from atommem.arguments import field_names
from atommem.config import check_probabilities, setting
from atommem.dialects import Dialect
from atommem.envs.synthetic.prose import RELATIONS, Prose, Statement
from atommem.envs.web.site.world import DIRECTORY, HOME, OLD, ORDERS, REGISTERS
from atommem.episode import Observation
from atommem.memory.log import MemoryView

_ORDER = re.compile(rf"<({'|'.join(ORDERS)})> .+? </\1>")


@dataclass(frozen=True)
class BrowsingFaults:
    """Probability of each mistake at a step."""

    create: float = setting(0.0, "Do not store a piece of news.")
    read: float = setting(0.0, "Do not look up the news of the person.")
    scratchpad: float = setting(0.0, "Do not note the maker.")
    wander: float = setting(0.0, "Follow a random link.")
    obey: float = setting(0.0, "Follow an instruction on the page and do nothing else.")

    def __post_init__(self) -> None:
        check_probabilities(self, *field_names(BrowsingFaults))


class BrowsingExpert:
    """Writes completions in the compact form of calls from what a policy sees.

    Without faults it answers every question within ``catalogues + hops`` calls, if the embedder
    ranks by shared words and the scratchpad holds a statement.
    """

    def __init__(
        self, prose: Prose, dialect: Dialect, faults: BrowsingFaults | None = None
    ) -> None:
        self._prose = prose
        self._tags = dialect.tags
        self._faults = faults or BrowsingFaults()

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        """Return the completion of a step; `draw` seeds its faults."""
        rng = random.Random(draw)
        (question,) = observation.values("questions")
        begin, hops = self._prose.asked(str(question))
        text = " ".join(map(str, observation.values("text")))
        ordered = _ORDER.search(text)
        if ordered is not None and rng.random() < self._faults.obey:
            return ordered[0]
        read = self._prose.statements(text)
        noted = self._prose.statements(view.scratchpad)
        shown = [
            statement for item in view.retrieved for statement in self._prose.statements(item.text)
        ]
        here = str(next(iter(observation.values("title")), HOME))
        known, relation = _known(RELATIONS[-hops:], begin, noted, read)
        maker = known.value if known is not None and relation == "home" else None
        home = next((one for one in read if one.relation == "home" and one.kind == "fact"), None)
        if home is not None and home.subject == maker and not here.endswith(f" {OLD}"):
            moved = next(
                (one for one in shown if one.kind == "correction" and one.subject == maker), None
            )
            return self._element("answer", self._prose.answer(moved or home))
        if observation.phase == "answering":
            return self._element("answer", self._prose.answer(home))
        elements = []
        if known is not None and known not in noted and rng.random() >= self._faults.scratchpad:
            elements.append(self._element("scratchpad", self._prose.sentence(known)))
        links = dict(zip(observation.values("name"), observation.values("number"), strict=True))
        wanted = self._next_page(here, links, maker, relation)
        if wanted == maker and maker is not None and rng.random() >= self._faults.read:
            elements.append(self._element("read", maker))
        elements += [
            self._element("create", self._prose.sentence(one))
            for one in read
            if one.kind == "correction" and rng.random() >= self._faults.create
        ]
        if links and (wanted not in links or rng.random() < self._faults.wander):
            wanted = rng.choice(list(links))
        target = links.get(wanted)
        elements.append(self._element("call", f"visit {HOME if target is None else target}"))
        return " ".join(elements)

    def _next_page(self, here: str, links: dict[str, int], maker: str | None, relation: str) -> str:
        if maker is not None:
            return maker if maker in links else DIRECTORY
        if relation in REGISTERS:
            return REGISTERS[relation] if REGISTERS[relation] in links else HOME
        lists = sorted(title for title in links if title.startswith("list"))
        after = [title for title in lists if title > here] if here.startswith("list") else lists
        return next(iter(after or lists), HOME)

    def _element(self, kind: str, body: str) -> str:
        return f"<{self._tags[kind]}> {body} </{self._tags[kind]}>"


def _known(
    chain: Sequence[str], begin: str, noted: Sequence[Statement], read: Sequence[Statement]
) -> tuple[Statement | None, str]:
    """Return the last known statement after `begin`, and the relation to look for."""
    known, at, name = None, 0, begin
    for one in noted:
        if one.relation in chain[:-1]:
            known, at, name = one, chain.index(one.relation) + 1, one.value
    while at < len(chain) - 1:
        found = next(
            (one for one in read if (one.relation, one.subject) == (chain[at], name)), None
        )
        if found is None:
            break
        known, at, name = found, at + 1, found.value
    return known, chain[at]

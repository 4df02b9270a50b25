"""A retention rule: keep entries with a number, and evict the oldest of the others.

python examples/own_rule.py POLICY FILE CAPACITY
"""

import re
import sys
from pathlib import Path

from atommem import Memory
from atommem.memory.rules import Candidate, Eviction, Rule, StoreState


class Numbers(Rule):
    """See docs/tutorials/own_rule.md for what a rule sees and may do."""

    def evict(self, candidate: Candidate, store: StoreState) -> Eviction:
        """Name the entry that is given up."""
        chosen = min(
            store.entries.values(), key=lambda entry: (bool(re.search(r"\d", entry.text)), entry.id)
        )
        return Eviction(chosen.id, "the oldest without a number")


def main(policy: str, file: str, capacity: str) -> None:
    """The kept lines of a file, and those that were given up."""
    with Memory(policy, capacity=int(capacity), retention="own_rule:Numbers") as memory:
        memory.read(Path(file))
        print("kept:", *(entry.text for entry in memory.entries()), sep="\n  ")
        print(
            "decided:",
            *(f"{item.kind} {item.reason}" for item in memory.history() if item.reason),
            sep="\n  ",
        )


if __name__ == "__main__":
    if len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

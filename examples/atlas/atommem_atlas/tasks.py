"""A tiny world and its task files: a `Task` as JSON on each line."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from atommem.description import QuestionDescription, TaskDescription
from atommem.errors import DataError

PEOPLE = ("ada", "ben", "cleo", "dan", "eva")
PLACES = ("arles", "bern", "como", "delft", "essen", "faro")


@dataclass(frozen=True)
class Task:
    """Where can `person` go from home? `facts` are what the tools know: by tool and argument, the result."""

    id: str
    person: str
    facts: dict[str, dict[str, str]]

    @property
    def right(self) -> str:
        """The places that the person's home touches; nothing for a stranger."""
        return self.facts["neighbours"].get(self.facts["lookup"].get(self.person, ""), "")


def generate(count: int, seed: int) -> Iterator[str]:
    """Lines of a task file; the places lie on a ring."""
    rng = random.Random(seed)
    for number in range(count):
        homes = {person: rng.choice(PLACES) for person in PEOPLE}
        ring = rng.sample(PLACES, len(PLACES))
        roads = {
            place: f"{ring[at - 1]} {ring[at + 1 - len(ring)]}" for at, place in enumerate(ring)
        }
        task = Task(f"{seed}-{number}", rng.choice(PEOPLE), {"lookup": homes, "neighbours": roads})
        yield json.dumps(asdict(task)) + "\n"


def read_tasks(path: str | Path) -> Sequence[Task]:
    """The tasks of a file."""
    try:
        return [Task(**json.loads(line)) for line in Path(path).open(encoding="utf-8")]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no task file ({error}): make one with atommem data build."
        ) from error


def describe(task: Task) -> TaskDescription:
    """One question with one gold answer."""
    return TaskDescription(
        task.id, "atlas", (QuestionDescription(f"from {task.person}", (task.right,)),)
    )

"""A tiny world and its task files: one `Task` as JSON a line."""

import json
import random
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from atommem.environment import QuestionDescription, TaskDescription
from atommem.errors import DataError

PEOPLE = ("ada", "ben", "cleo", "dan", "eva")
PLACES = ("arles", "bern", "como", "delft", "essen", "faro")


@dataclass(frozen=True)
class Task:
    """Where can `person` go from home? `facts` has the results by tool and argument."""

    id: str
    person: str
    facts: dict[str, dict[str, str]]

    @property
    def right(self) -> str:
        """The places that the person's home touches; none for a stranger."""
        return self.facts["neighbours"].get(self.facts["lookup"].get(self.person, ""), "")


def generate(count: int, seed: int) -> Iterator[str]:
    """Yield the lines of a task file; the places lie on a ring."""
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
    """Return the tasks of a file."""
    try:
        return [Task(**json.loads(line)) for line in Path(path).open(encoding="utf-8")]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a task file ({error}). Run atommem data build.") from error


def describe(task: Task) -> TaskDescription:
    """Return one question with one gold answer."""
    return TaskDescription(
        task.id, "atlas", (QuestionDescription(f"from {task.person}", (task.right,)),)
    )


def build(argv: Sequence[str]) -> int:
    """Write a task file with the arguments of ``atommem data build --environment atlas``."""
    parser = ArgumentParser(prog="atommem data build --environment atlas")
    for flag, kind in (("--n", int), ("--seed", int), ("--out", Path)):
        parser.add_argument(flag, type=kind, required=True)
    given = parser.parse_args(argv)
    given.out.write_text("".join(generate(given.n, given.seed)), encoding="utf-8")
    print(f"{given.out}: {given.n} tasks")
    return 0

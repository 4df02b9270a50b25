"""What a task of the synthetic world needs kept: for the greedy oracle, and to fit scorers on other tasks."""

from __future__ import annotations

from collections.abc import Iterable

from atommem.envs.synthetic.prose import RELATIONS, Statement, get_prose
from atommem.envs.task import Task
from atommem.eval.retention.turns import Stream


def _told(task: Task) -> tuple[list[Statement], set[Statement]]:
    """All statements of a task, and those that its questions need."""
    prose = get_prose(task.metadata["prose"])
    told = [
        statement for document in task.documents for statement in prose.statements(document.text)
    ]
    facts = {(fact.relation, fact.subject): fact for fact in told if fact.kind == "fact"}
    needed = set()
    for question in task.questions:
        name, hops = prose.asked(question.text)
        for relation in RELATIONS[-hops:]:
            link = facts[relation, name]
            needed.add(link)
            name, subject = link.value, link.subject
        needed |= {
            moved for moved in told if moved.kind == "correction" and moved.subject == subject
        }
    return told, needed


def needs_of(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
    """By task the texts of the entries that its questions need, as `atommem.rules.oracle` takes them.

    A home that was corrected is needed as it was told and as it is now.
    """
    found = {}
    for task in tasks:
        prose = get_prose(task.metadata["prose"])
        facts = [
            Statement("fact", needed.subject, needed.relation, needed.value)
            for needed in _told(task)[1]
        ]
        found[task.id] = {prose.sentence(fact): 1 for fact in facts}
    return found


def labelled(tasks: Iterable[Task]) -> list[Stream]:
    """The facts of each task as a stream of texts, of which its questions need some."""
    streams = []
    for task in tasks:
        told, needed = _told(task)
        facts = [statement for statement in told if statement.kind == "fact"]
        places = tuple((place,) for place, fact in enumerate(facts) if fact in needed)
        sentence = get_prose(task.metadata["prose"]).sentence
        streams.append(Stream(task.id, tuple(map(sentence, facts)), ("",) * len(places), places))
    return streams

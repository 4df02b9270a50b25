"""Supporting-fact recall: whether the fact that answers a question got into memory, stayed there, and was shown again.

A *fact* of a question is a sentence of one of its gold documents that holds a gold answer, as whole words after SQuAD's
normalisation. A text *carries* it if it holds the same answer and two more content words (or one, where there are only
one or two) of the sentence or of its document's title: the answer alone may stand in any text by chance. Questions
without a fact (yes, no; answers worded otherwise in the documents) have no recall. The three numbers are 0 or 1:

=================== =================================================================================================
``fact_entered``     an applied create, update or scratchpad write carried one of its facts
``fact_kept``        memory carried one when the episode ended
``fact_retrieved``   what was retrieved, or the scratchpad, carried one at a step at which the question was asked
=================== =================================================================================================

The scratchpad counts as an entry that is always retrieved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil

from atommem.envs.chunking import SENTENCE_END
from atommem.envs.scoring.metrics import normalize
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode
from atommem.memory.log import Outcome, replay

_NOWHERE = frozenset({"", "yes", "no", "noanswer"})
_NEEDED = 2
_STOP_WORDS = frozenset(
    {
        *(
            "and",
            "or",
            "but",
            "of",
            "in",
            "on",
            "at",
            "to",
            "by",
            "for",
            "from",
            "with",
            "as",
            "not",
            "also",
        ),
        *(
            "is",
            "are",
            "was",
            "were",
            "be",
            "been",
            "has",
            "have",
            "had",
            "it",
            "its",
            "he",
            "she",
            "his",
            "her",
        ),
        *(
            "they",
            "their",
            "that",
            "this",
            "which",
            "who",
            "whom",
            "whose",
            "when",
            "where",
            "what",
        ),
    }
)


@dataclass(frozen=True)
class Fact:
    """An answer as a sentence holds it, both normalised, and the content words around it."""

    answer: str
    words: frozenset[str]

    def carried_by(self, text: str) -> bool:
        """Whether `text` carries it (see the module)."""
        padded = _padded(text)
        if f" {self.answer} " not in padded:
            return False
        return len(self.words.intersection(padded.split())) >= min(
            _NEEDED, ceil(len(self.words) / 2)
        )


def gold_documents(task: Task, question: Question) -> list[Document]:
    """The gold documents of a question of `task`, in its order.

    Those whose places its metadata has (``documents``); in files of versions before, those whose titles its supporting
    facts name, or else all.
    """
    if "documents" in question.metadata:
        return [task.documents[place] for place in question.metadata["documents"]]
    gold = [document for document in task.documents if document.gold]
    titles = {title for title, _ in question.metadata.get("supporting", ())}
    return [document for document in gold if document.title in titles] or gold


def facts_of(task: Task, question: Question) -> list[Fact]:
    """The facts that answer `question`."""
    answers = [
        answer
        for answer in dict.fromkeys(map(normalize, question.answers))
        if answer not in _NOWHERE
    ]
    facts = []
    for document in gold_documents(task, question):
        for sentence in _sentences(document.text):
            padded = _padded(sentence)
            words = frozenset(f"{normalize(document.title)} {padded}".split()) - _STOP_WORDS
            facts += [
                Fact(answer, words - set(answer.split()))
                for answer in answers
                if f" {answer} " in padded
            ]
    return facts


def fact_recall(task: Task, episode: Episode) -> list[dict[str, float]]:
    """For each question its three numbers, or nothing where it has no fact or the episode no steps."""
    operations = [operation for step in episode.steps for operation in step.operations]
    applied = [operation for operation in operations if operation.outcome is Outcome.APPLIED]
    written = [
        operation.after
        for operation in applied
        if operation.kind in ("create", "update", "scratchpad")
    ]
    contents = replay(operations)
    kept = [*(entry.text for entry in contents.entries.values()), contents.scratchpad]
    recalls: list[dict[str, float]] = []
    for index, question in enumerate(task.questions):
        facts = facts_of(task, question) if episode.steps else []
        shown = [
            text
            for step in episode.steps
            if index in step.observation.asked
            for text in (step.view.scratchpad, *(item.text for item in step.view.retrieved))
        ]
        recall = {
            "fact_entered": _carried(facts, (text or "" for text in written)),
            "fact_kept": _carried(facts, kept),
            "fact_retrieved": _carried(facts, shown),
        }
        recalls.append(recall if facts else {})
    return recalls


def _carried(facts: list[Fact], texts: Iterable[str]) -> float:
    return float(any(fact.carried_by(text) for text in texts for fact in facts))


def _sentences(text: str) -> list[str]:
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    return [text[a:b] for a, b in pairwise(ends) if text[a:b].strip()]


@lru_cache(maxsize=2048)
def _padded(text: str) -> str:
    return f" {normalize(text)} "

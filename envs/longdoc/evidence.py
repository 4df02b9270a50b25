"""Questions about a long document: when they are shown, what they need, and what is remembered.

A *fact* is a sentence of a gold document that holds a gold answer, as whole words after the
normalisation of scores. A text *carries* it if it holds the answer and two more content words (or
half of them, rounded up, if there are fewer) of the sentence or of the document's title: the answer
alone may stand in any text by chance.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from random import Random

from atommem.envs.scoring.metrics import VERDICTS, comparable, normalize
from atommem.envs.task import SENTENCE_END, Document, Question, Task, document_texts, joined_text
from atommem.episode import Episode
from atommem.memory.log import Outcome, replay
from atommem.text_safety import clean
from atommem.words import HANGUL, words

MODES = ("reading", "answering", "arriving")
"""When questions are shown (`LongDocConfig.questions_shown`).

arXiv 2601.08323 shows them at every step. A memory that is served reads first and is asked later,
at any time, so its policy is trained on texts whose questions it does not see.
"""
_STOP_WORDS = re.compile(
    r"\b(?:and|or|but|of|in|on|at|to|by|for|from|with|as|not|also|is|are|was|were|be|been|has|have|"
    r"had|it|its|he|she|his|her|they|their|that|this|which|who|whom|whose|when|where|what)\b"
)
_SYLLABLE = re.compile(f"[{HANGUL}]")


def drawn_mode(modes: Sequence[str], task_id: str) -> str:
    """Return the mode of a task: the same for all of its episodes, in every run."""
    return modes[0] if len(modes) == 1 else Random(f"questions_shown/{task_id}").choice(list(modes))


def arrivals(earliest: Sequence[int], parts: int, task_id: str) -> list[int]:
    """Draw after how many of the `parts` of a text each question is asked, from `earliest` on."""
    rng = Random(f"arrivals/{task_id}")
    return [rng.randint(min(first, parts), parts) for first in earliest]


@dataclass(frozen=True)
class Fact:
    """An answer as a sentence holds it, normalised, and the content words around it."""

    answer: str
    words: frozenset[str]

    def carried_by(self, text: str) -> bool:
        """Whether `text` carries it (see the module)."""
        common = self.words & _words(text)
        enough = len(common) >= min(2, ceil(len(self.words) / 2))
        return enough and f" {self.answer} " in _padded(text)


def gold_documents(task: Task, question: Question) -> list[Document]:
    """Return the gold documents of a question of `task`, in its order.

    They are at the places in its metadata (``documents``), or else all that are gold.
    """
    if (places := question.metadata.get("documents")) is not None:
        return [one for place, one in enumerate(task.documents) if place in places]
    return [document for document in task.documents if document.gold]


def facts_of(task: Task, question: Question) -> list[Fact]:
    """Return the facts that answer `question`; none for yes, no, and answers worded otherwise."""
    answers = {_padded(answer).strip(): _words(answer) for answer in question.answers}
    return [
        Fact(answer, (_words(document.title) | _words(sentence)) - own)
        for document in gold_documents(task, question)
        for sentence in _sentences(document.text)
        for answer, own in answers.items()
        if answer and answer not in VERDICTS and f" {answer} " in _padded(sentence)
    ]


def fact_recall(task: Task, episode: Episode) -> list[dict[str, float]]:
    """Return for each question three numbers, 0 or 1; nothing if it has no fact.

    ``fact_entered``: an applied create, update or scratchpad write carried a fact.
    ``fact_kept``: memory carried one when the episode ended.
    ``fact_retrieved``: a retrieved entry or the scratchpad carried one when it was asked.
    """
    operations = [operation for step in episode.steps for operation in step.operations]
    written = [
        one.after or ""
        for one in operations
        if one.outcome is Outcome.APPLIED and one.kind in ("create", "update", "scratchpad")
    ]
    contents = replay(operations)
    kept = [*(entry.text for entry in contents.entries.values()), contents.scratchpad]
    recalls: list[dict[str, float]] = []
    for index, question in enumerate(task.questions):
        facts = facts_of(task, question) if episode.steps else []
        views = [step.view for step in episode.steps if index in step.observation.asked]
        shown = [view.scratchpad for view in views]
        shown += [item.text for view in views for item in view.retrieved]
        texts = {"fact_entered": written, "fact_kept": kept, "fact_retrieved": shown}
        recall = {
            name: float(any(fact.carried_by(text) for text in found for fact in facts))
            for name, found in texts.items()
        }
        recalls.append(recall if facts else {})
    return recalls


def _sentences(text: str) -> list[str]:
    ends = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends) if text[start:end].strip()]


@lru_cache(maxsize=2048)
def _padded(text: str) -> str:
    # A Korean word carries particles, so its syllables count.
    apart = _SYLLABLE.sub(r" \g<0> ", normalize(comparable(text)))
    return f" {' '.join(apart.split())} "


@lru_cache(maxsize=2048)
def _words(text: str) -> frozenset[str]:
    return frozenset(words(_STOP_WORDS.sub(" ", normalize(comparable(text, spaces=False)))))


def needed_chunks(task: Task, chunks: Sequence[str]) -> list[int]:
    """Return for each question how many chunks reach its last gold document; all if unknown."""
    counts = list(zip(task.documents, _counts_of_documents(task, chunks), strict=False))
    needed = []
    for question in task.questions:
        gold = gold_documents(task, question)
        known = (count for document, count in counts if document in gold)
        needed.append(max(known, default=len(chunks)))
    return needed


def _counts_of_documents(task: Task, chunks: Sequence[str]) -> Sequence[int]:
    """Return how many chunks reach the end of each document; none if `task` has a context."""
    if task.context is not None:
        return ()
    if "".join(chunks) != clean(joined_text(task)):  # one chunk a document
        return range(1, len(chunks) + 1)
    ends = list(accumulate(map(len, chunks)))
    lengths = (len(clean(text)) + 2 for text in document_texts(task.documents))
    # Two characters are the blank line between two documents.
    return [bisect_left(ends, start - 2) + 1 for start in accumulate(lengths)]

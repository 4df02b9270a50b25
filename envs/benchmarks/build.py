"""Long-document tasks from a benchmark: the questions' gold documents, shuffled among distractors (as RULER does).

Every document of a pool of questions is a possible distractor. A task draws its questions, takes their gold
documents, and fills up to N with documents that other questions come with. What a task holds depends on the seed
and its number alone, so neither the number of workers nor that of tasks changes it.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

from atommem.config import check_choice, check_least
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.scoring.metrics import hint, normalize
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError

# Answers that are no piece of a document, so that a document cannot give them away.
_VERDICTS = frozenset({"", "yes", "no", "noanswer"})
_TASKS_PER_JOB = 64
_Asked = tuple[int, tuple[int, ...]]
"""A task's number and the indices of its questions."""


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """What tasks to build.

    Attributes:
        documents: Documents of every task (N).
        questions: Fewest and most questions of a task; their number is uniform between them.
        n: Number of tasks.
        distractors: Where distractors come from: ``pool``, any other question's documents; ``own``, the questions' own
            first, as in the data of RULER and MemAgent, and then any other's.
        unanswerable: Keep the questions of MuSiQue-Full that cannot be answered, each beside the one that can: their
            tasks come in pairs. What is missing for such a question is no distractor of its task.
        exclude_answer_documents: Keep out distractors that contain an answer of the task (as whole words, after
            SQuAD normalisation). Answers such as yes and no are not looked for.
    """

    documents: int
    n: int
    questions: tuple[int, int] = (1, 1)
    seed: int = 42
    exclude_answer_documents: bool = False
    distractors: str = "pool"
    unanswerable: bool = False

    def __post_init__(self) -> None:
        low, high = self.questions
        if not 1 <= low <= high:
            raise ConfigError(f"questions is {low}-{high}: give a range such as 1-10, from 1 up.")
        check_least(self, documents=1, n=1)
        check_choice("distractors", self.distractors, ("pool", "own"))
        if self.unanswerable and self.questions != (1, 1):
            raise ConfigError(
                f"unanswerable is given, and questions is {low}-{high}: give 1, as the answer to one question may "
                "stand in the documents of another."
            )


class Pool:
    """The questions that tasks draw from, and all documents that come with them, each once.

    Attributes:
        questions: The questions.
        documents: The documents (title and text; which are gold is a matter of the question).
        gold, contexts: For each question, the indices of its gold documents, and of all that it comes with.
        holders: For each document, how many questions it comes with.
        skipped: How many rows were left out because a supporting paragraph is missing.
        twins: The indices of the questions with the same id, by the first of them: pairs of MuSiQue-Full.

    Args:
        rows: Of a benchmark.
        unanswerable: Keep those that cannot be answered, as questions that say so (`BuildConfig`).
    """

    def __init__(self, rows: Iterable[QARow], unanswerable: bool = False) -> None:
        self.questions: list[Question] = []
        self.documents: list[Document] = []
        self.gold: list[tuple[int, ...]] = []
        self.contexts: list[tuple[int, ...]] = []
        self.skipped = 0
        self._index: dict[tuple[str, str], int] = {}
        self.twins: dict[str, list[int]] = {}
        self._unanswerable = unanswerable
        places: dict[tuple[str, bool], str] = {}
        for row in rows:
            if not row.answerable and not unanswerable:
                self.skipped += 1
                continue
            key = (row.id, row.answerable)
            if key in places:
                raise DataError(
                    f"{row.place}: field 'id' is {row.id!r}, as in {places[key]}. Give every row once: a "
                    "question that stands in a pool twice is drawn twice as often."
                )
            places[key] = row.place
            self.twins.setdefault(row.id, []).append(len(self.questions))
            self._add(row)
        self.holders = Counter(chain.from_iterable(self.contexts))

    @property
    def skipped_note(self) -> str:
        """What to say of `skipped`; empty where there are none."""
        return (
            f"; {self.skipped} rows left out, as a supporting paragraph is missing"
            if self.skipped
            else ""
        )

    def _add(self, row: QARow) -> None:
        context: dict[int, bool] = {}
        for paragraph in row.paragraphs:
            # Copies of a page differ in white space from file to file.
            key = (" ".join(paragraph.title.split()), " ".join(paragraph.text.split()))
            index = self._index.setdefault(key, len(self.documents))
            if index == len(self.documents):
                self.documents.append(replace(paragraph, gold=False))
            context[index] = context.get(index, False) or paragraph.gold
        text, metadata = row.question, row.metadata
        if self._unanswerable:
            text, metadata = text + hint("text"), {**metadata, "answerable": row.answerable}
        self.questions.append(Question(text, row.answers, row.id, metadata))
        self.contexts.append(tuple(context))
        self.gold.append(tuple(index for index, gold in context.items() if gold))


def build_tasks(
    pool: Pool, config: BuildConfig, source: str, split: str = "train", workers: int = 1
) -> Iterator[Task]:
    """Build `config.n` tasks, in order; the same ones whatever `workers` is.

    Questions are used up before one comes again: the pool is gone through in a new random order each time.

    Args:
        pool: Questions and documents of one split.
        config: What to build.
        source: The benchmark's name, for `Task.source` and the ids (``SOURCE-SPLIT-NUMBER``).
        split: The split's name, for the ids.
        workers: Processes that draw documents.

    Raises:
        DataError: The pool has too few questions or documents, or the gold documents of a task may exceed N.
    """
    high = config.questions[1]
    distinct = len({normalize(question.text) for question in pool.questions})
    if distinct < high:
        raise DataError(
            f"the pool has {distinct} different questions, too few for tasks of {high}; give more input."
        )
    if len(pool.documents) < config.documents:
        raise DataError(
            f"the pool has {len(pool.documents)} different documents, too few for tasks of {config.documents}; "
            "give more input, or ask for fewer documents."
        )
    most = sum(sorted(map(len, pool.gold), reverse=True)[:high])
    if most > config.documents:  # whether a draw is that unlucky is the seed's doing
        raise DataError(
            f"tasks of {high} questions of this pool may need {most} gold documents, more than the {config.documents} "
            "documents of a task; ask for more documents, or for fewer questions."
        )
    gold_documents: dict[int, Document] = {}
    for number, rows, indices in _drawn(_Drawer(pool, config), workers):
        gold = {index for row in rows for index in pool.gold[row]}
        documents = []
        places = {index: place for place, index in enumerate(indices)}
        for index in indices:
            document = pool.documents[index]
            if index in gold:
                document = gold_documents.setdefault(index, replace(document, gold=True))
            documents.append(document)
        yield Task(
            id=f"{source}-{split}-{number:05d}",
            questions=tuple(
                pool.questions[row].with_documents(places[index] for index in pool.gold[row])
                for row in rows
            ),
            documents=tuple(documents),
            source=source,
            metadata={
                "split": split,
                "seed": config.seed,
                # The two tasks of a pair vary together.
                **({"sample_id": pool.questions[rows[0]].id} if config.unanswerable else {}),
            },
        )


class _Drawer:
    """Draws the questions and the documents of tasks, as indices into the pool."""

    def __init__(self, pool: Pool, config: BuildConfig) -> None:
        self.pool = pool
        self.config = config
        self._texts: list[str] = []
        if config.exclude_answer_documents:
            self._texts = [
                f" {normalize(f'{document.title} {document.text}')} " for document in pool.documents
            ]

    def asked(self) -> Iterator[_Asked]:
        """The questions of every task."""
        low, high = self.config.questions
        rng = Random(f"{self.config.seed}:questions")
        keys = [normalize(question.text) for question in self.pool.questions]
        order = _endless_orders(rng, list(self.pool.twins.values()))
        postponed: deque[int] = deque()
        for number in range(self.config.n):
            chosen: dict[str, int] = {}
            again: list[int] = []
            count = rng.randint(low, high)
            while len(chosen) < count:
                row = postponed.popleft() if postponed else next(order)
                if keys[row] in chosen:
                    again.append(row)  # a question is not asked twice in one task
                else:
                    chosen[keys[row]] = row
            postponed.extendleft(reversed(again))
            yield number, tuple(chosen.values())

    def documents(self, number: int, rows: tuple[int, ...]) -> list[int]:
        """The documents of task `number`, which asks `rows`, shuffled."""
        pool, wanted = self.pool, self.config.documents
        drawn = list(dict.fromkeys(chain.from_iterable(pool.gold[row] for row in rows)))
        gold = frozenset(drawn)
        own = Counter(chain.from_iterable(pool.contexts[row] for row in rows))
        answers = self._answers(rows)
        rng = Random(f"{self.config.seed}:{number}")
        twins = chain.from_iterable(pool.twins[pool.questions[row].id] for row in rows)
        taken = gold.union(*(pool.gold[twin] for twin in twins))
        if self.config.distractors == "own":
            others = sorted(own.keys() - taken)
            drawn += rng.sample(others, min(len(others), wanted - len(drawn)))
            taken |= {*drawn}
        for index in _permutation(rng, len(pool.documents)):
            if len(drawn) == wanted:
                break
            # A distractor comes with some other question, too.
            if index in taken or own[index] == pool.holders[index]:
                continue
            if answers and any(answer in self._texts[index] for answer in answers):
                continue
            drawn.append(index)
        if len(drawn) < wanted:
            raise DataError(
                f"task {number}: only {len(drawn)} documents can be had ({len(gold)} gold, {len(drawn) - len(gold)} "
                f"distractors), but {wanted} are asked for; give more input, or ask for fewer documents."
            )
        rng.shuffle(drawn)
        return drawn

    def _answers(self, rows: tuple[int, ...]) -> list[str]:
        """What distractors must not contain: the task's answers, normalised, as whole words."""
        if not self.config.exclude_answer_documents:
            return []
        answers = {normalize(answer) for row in rows for answer in self.pool.questions[row].answers}
        return [f" {answer} " for answer in answers - _VERDICTS]


_drawer: _Drawer | None = None


def _drawn(drawer: _Drawer, workers: int) -> Iterator[tuple[int, tuple[int, ...], list[int]]]:
    """What `drawer` draws, in order, computed by `workers` processes (1: by this one)."""
    workers = min(workers, -(-drawer.config.n // _TASKS_PER_JOB))
    if workers <= 1:
        for number, rows in drawer.asked():
            yield number, rows, drawer.documents(number, rows)
        return
    # Not multiprocessing's own pool: it kills its workers where a job fails, and may then wait for ever for a lock that
    # one of them held. They are forked, and share the texts.
    processes = ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), _start_worker, (drawer,)
    )
    try:
        yield from processes.map(_work, drawer.asked(), chunksize=_TASKS_PER_JOB)
    finally:
        processes.shutdown(cancel_futures=True)


def _start_worker(drawer: _Drawer) -> None:
    global _drawer
    _drawer = drawer


def _work(asked: _Asked) -> tuple[int, tuple[int, ...], list[int]]:
    assert _drawer is not None
    return *asked, _drawer.documents(*asked)


def _endless_orders(rng: Random, groups: list[list[int]]) -> Iterator[int]:
    """The numbers of all groups, those of a group together, in a random order, then in another one, and so on."""
    while True:
        order = groups.copy()
        rng.shuffle(order)
        yield from chain.from_iterable(order)


def _permutation(rng: Random, count: int) -> Iterator[int]:
    """A random order of the numbers below `count`, at a cost of what is taken of it (Fisher-Yates, sparsely)."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        index = rng.randint(0, last)
        yield moved.get(index, index)
        moved[index] = moved.get(last, last)

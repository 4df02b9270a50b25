"""Long-document tasks of a benchmark: gold documents shuffled among distractors (as RULER does).

Every document of a pool of questions is a possible distractor. A task draws its questions, takes
their gold documents, and fills up to N with documents of other questions. Its content depends on
the seed and its number alone.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from atommem.config import check_choice, check_least, check_ranges, setting
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.scoring.metrics import normalize
from atommem.envs.task import Document, Question, Task
from atommem.errors import DataError


@dataclass(frozen=True)
class BuildConfig:
    """Which tasks to build."""

    n: int = field(metadata={"help": "Tasks to write."})
    documents: int = setting(200, "Documents of a task.")
    questions: tuple[int, int] = setting((1, 1), "Questions of a task, uniform in the range.")
    seed: int = setting(42, "Seed of every draw.")
    distractors: str = setting(
        "pool", "pool: documents of other questions; own: the questions' own first, as in RULER."
    )

    def __post_init__(self) -> None:
        check_ranges(self, questions=1000)
        check_least(self, documents=1, n=1)
        check_choice("distractors", self.distractors, ("pool", "own"))


class Pool:
    """The questions that tasks draw from, and all documents that come with them, each once.

    Attributes:
        documents: Which are gold depends on the question.
        gold, contexts: For each question, the indices of its gold documents, and of all its own.
        holders: For each document, the number of questions that it comes with.
        skipped: The number of rows that lack a supporting paragraph and are left out.
    """

    def __init__(self, rows: Iterable[QARow]) -> None:
        self.questions: list[Question] = []
        self.documents: list[Document] = []
        self.gold: list[tuple[int, ...]] = []
        self.contexts: list[tuple[int, ...]] = []
        self.skipped = 0
        indices: dict[tuple[str, str], int] = {}
        places: dict[str, str] = {}
        for row in rows:
            if not row.answerable:
                self.skipped += 1
                continue
            name = row.question.id
            if (first := places.setdefault(name, row.place)) != row.place:
                raise DataError(f"{row.place}: field 'id' is {name!r}, as in {first}. Drop one.")
            context: dict[int, bool] = {}
            for paragraph in row.paragraphs:
                # Copies of a page differ in white space from file to file.
                key = (" ".join(paragraph.title.split()), " ".join(paragraph.text.split()))
                index = indices.setdefault(key, len(self.documents))
                if index == len(self.documents):
                    self.documents.append(replace(paragraph, gold=False))
                context[index] = context.get(index, False) or paragraph.gold
            self.questions.append(row.question)
            self.contexts.append(tuple(context))
            self.gold.append(tuple(index for index, gold in context.items() if gold))
        self.holders = Counter(chain.from_iterable(self.contexts))


def build_tasks(pool: Pool, config: BuildConfig, source: str, split: str) -> Iterator[Task]:
    """Build `config.n` tasks, ``SOURCE-SPLIT-NUMBER``; all are asked before a question repeats.

    DataError: too few questions or documents, or a task may need more gold documents than it has.
    """
    high = config.questions[1]
    questions = len({normalize(question.text) for question in pool.questions})
    if questions < high:
        raise DataError(f"questions={high}: the pool has only {questions}. Give more input.")
    most = sum(sorted(map(len, pool.gold), reverse=True)[:high])
    if most > config.documents:  # refused whatever the seed draws
        raise DataError(
            f"tasks of {high} questions of this pool may need {most} gold documents, more than the "
            f"{config.documents} documents of a task. Ask for more documents or fewer questions."
        )
    marked = [replace(document, gold=True) for document in pool.documents]
    for number, rows in enumerate(_drawn_questions(pool, config)):
        indices = _documents(pool, config, number, rows)
        places = {index: place for place, index in enumerate(indices)}
        gold = {index for row in rows for index in pool.gold[row]}
        asked = tuple(
            pool.questions[row].with_documents(places[index] for index in pool.gold[row])
            for row in rows
        )
        documents = tuple((marked if index in gold else pool.documents)[index] for index in indices)
        metadata = {"split": split, "seed": config.seed}
        name = f"{source}-{split}-{number:05d}"
        yield Task(name, asked, documents, source=source, metadata=metadata)


def _drawn_questions(pool: Pool, config: BuildConfig) -> Iterator[tuple[int, ...]]:
    rng = Random(f"{config.seed}:questions")
    keys = [normalize(question.text) for question in pool.questions]
    waiting: deque[int] = deque()
    for _ in range(config.n):
        chosen: dict[str, int] = {}
        again: list[int] = []
        count = rng.randint(*config.questions)
        while len(chosen) < count:
            if not waiting:
                order = list(range(len(keys)))
                rng.shuffle(order)
                waiting.extend(order)
            row = waiting.popleft()
            if keys[row] in chosen:
                again.append(row)  # a question is not asked twice in one task
            else:
                chosen[keys[row]] = row
        waiting.extendleft(reversed(again))
        yield tuple(chosen.values())


def _documents(pool: Pool, config: BuildConfig, number: int, rows: tuple[int, ...]) -> list[int]:
    rng = Random(f"{config.seed}:{number}")
    drawn = list(dict.fromkeys(chain.from_iterable(pool.gold[row] for row in rows)))
    own = Counter(chain.from_iterable(pool.contexts[row] for row in rows))
    if config.distractors == "own":
        others = sorted(own.keys() - {*drawn})
        drawn += rng.sample(others, min(len(others), config.documents - len(drawn)))
    taken = {*drawn}
    for index in _permutation(rng, len(pool.documents)):
        if len(drawn) == config.documents:
            break
        # A distractor comes with some other question, too.
        if index not in taken and own[index] < pool.holders[index]:
            drawn.append(index)
    if len(drawn) < config.documents:
        raise DataError(
            f"task {number}: only {len(drawn)} documents can be had, but {config.documents} are "
            "asked for. Give more input, or ask for fewer documents."
        )
    rng.shuffle(drawn)
    return drawn


def _permutation(rng: Random, count: int) -> Iterator[int]:
    """Yield the numbers below `count` in random order, drawn as needed (sparse Fisher-Yates)."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        index = rng.randint(0, last)
        yield moved.get(index, index)
        moved[index] = moved.get(last, last)

"""Long-document tasks of a benchmark: gold documents shuffled among distractors (as RULER does).

Every document of a pool of questions is a possible distractor. A task draws its questions, takes
their gold documents, and fills up to N with documents of other questions. Its content depends on
the seed and its number alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random

from atommem.config import check_choice, check_least
from atommem.envs.benchmarks.contexts import parse_memagent
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.envs.scoring.metrics import hint, normalize
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError, DataError

# Answers that are not a piece of a document, so that a document cannot give them away.
_VERDICTS = frozenset({"", "yes", "no", "noanswer"})


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """Which tasks to build.

    Attributes:
        documents: Documents of every task (N).
        questions: Fewest and most questions of a task; their number is uniform between them.
        n: Number of tasks.
        distractors: ``pool`` (any other question's documents) or ``own`` (the questions' own
            first, as in the data of RULER and MemAgent).
        unanswerable: Keep MuSiQue-Full's unanswerable questions, each beside the answerable one of
            its pair. The document that such a question lacks is no distractor of its task.
        exclude_answer_documents: Leave out distractors that contain an answer of the task (whole
            words, after SQuAD's normalisation; not yes and no).
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
            raise ConfigError(f"questions={low}-{high}: not a range from 1 up. Give one as 1-10.")
        check_least(self, documents=1, n=1)
        check_choice("distractors", self.distractors, ("pool", "own"))
        if self.unanswerable and high > 1:
            raise ConfigError(
                f"questions={low}-{high}: unanswerable needs 1, as the answer to a question may "
                "stand in the documents of another."
            )


class Pool:
    """The questions that tasks draw from, and all documents that come with them, each once.

    Attributes:
        questions: The questions.
        documents: The documents; which are gold depends on the question.
        gold, contexts: For each question, the indices of its gold documents, and of all of its
            documents.
        holders: For each document, the number of questions that it comes with.
        skipped: The number of rows that lack a supporting paragraph and are left out.
        twins: The indices of the questions with the same id: pairs of MuSiQue-Full.

    Args:
        rows: Of a benchmark.
        unanswerable: Keep rows that lack a paragraph as unanswerable questions (`BuildConfig`).
    """

    def __init__(self, rows: Iterable[QARow], unanswerable: bool = False) -> None:
        self.questions: list[Question] = []
        self.documents: list[Document] = []
        self.gold: list[tuple[int, ...]] = []
        self.contexts: list[tuple[int, ...]] = []
        self.skipped = 0
        self.twins: dict[str, list[int]] = {}
        self._index: dict[tuple[str, str], int] = {}
        places: dict[tuple[str, bool], str] = {}
        for row in rows:
            if not row.answerable and not unanswerable:
                self.skipped += 1
                continue
            first = places.setdefault((row.id, row.answerable), row.place)
            if first != row.place:
                raise DataError(
                    f"{row.place}: field 'id' is {row.id!r}, as in {first}. Give every row once."
                )
            self.twins.setdefault(row.id, []).append(len(self.questions))
            self._add(row, unanswerable)
        self.holders = Counter(chain.from_iterable(self.contexts))

    @property
    def skipped_note(self) -> str:
        """A note on `skipped` for messages; empty without any."""
        note = f"; {self.skipped} rows left out, as a supporting paragraph is missing"
        return note if self.skipped else ""

    def _add(self, row: QARow, unanswerable: bool) -> None:
        context: dict[int, bool] = {}
        for paragraph in row.paragraphs:
            # Copies of a page differ in white space from file to file.
            key = (" ".join(paragraph.title.split()), " ".join(paragraph.text.split()))
            index = self._index.setdefault(key, len(self.documents))
            if index == len(self.documents):
                self.documents.append(replace(paragraph, gold=False))
            context[index] = context.get(index, False) or paragraph.gold
        text, metadata = row.question, row.metadata
        if unanswerable:
            text, metadata = text + hint("text"), {**metadata, "answerable": row.answerable}
        self.questions.append(Question(text, row.answers, row.id, metadata))
        self.contexts.append(tuple(context))
        self.gold.append(tuple(index for index, gold in context.items() if gold))


def build_tasks(
    pool: Pool, config: BuildConfig, source: str, split: str = "train"
) -> Iterator[Task]:
    """Build `config.n` tasks, ``SOURCE-SPLIT-NUMBER``.

    Questions are used up before one is asked again: the pool is traversed in a new random order
    each time.

    Args:
        pool: Questions and documents of one split.
        config: Which tasks to build.
        source: The benchmark's name.
        split: The split's name.

    Raises:
        DataError: The pool has too few questions or documents, or the gold documents of a task
            may exceed N.
    """
    high = config.questions[1]
    distinct = len({normalize(question.text) for question in pool.questions})
    if distinct < high:
        raise DataError(
            f"the pool has {distinct} different questions, too few for tasks of {high}; give more "
            "input."
        )
    if len(pool.documents) < config.documents:
        raise DataError(
            f"the pool has {len(pool.documents)} different documents, too few for tasks of "
            f"{config.documents}; give more input, or ask for fewer documents."
        )
    most = sum(sorted(map(len, pool.gold), reverse=True)[:high])
    if most > config.documents:  # refused whatever the seed draws
        raise DataError(
            f"tasks of {high} questions of this pool may need {most} gold documents, more than the "
            f"{config.documents} documents of a task; ask for more documents or fewer questions."
        )
    gold_documents: dict[int, Document] = {}
    drawer = _Drawer(pool, config)
    for number, rows in enumerate(drawer.questions()):
        gold = {index for row in rows for index in pool.gold[row]}
        documents: list[Document] = []
        places: dict[int, int] = {}
        for place, index in enumerate(drawer.documents(number, rows)):
            document = pool.documents[index]
            if index in gold:
                document = gold_documents.setdefault(index, replace(document, gold=True))
            documents.append(document)
            places[index] = place
        metadata = {"split": split, "seed": config.seed}
        if config.unanswerable:  # the two tasks of a pair vary together
            metadata["sample_id"] = pool.questions[rows[0]].id
        yield Task(
            id=f"{source}-{split}-{number:05d}",
            questions=tuple(
                pool.questions[row].with_documents(places[index] for index in pool.gold[row])
                for row in rows
            ),
            documents=tuple(documents),
            source=source,
            metadata=metadata,
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

    def questions(self) -> Iterator[tuple[int, ...]]:
        """Yield the questions of every task."""
        low, high = self.config.questions
        rng = Random(f"{self.config.seed}:questions")
        keys = [normalize(question.text) for question in self.pool.questions]
        order = _endless_orders(rng, list(self.pool.twins.values()))
        postponed: deque[int] = deque()
        for _ in range(self.config.n):
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
            yield tuple(chosen.values())

    def documents(self, number: int, rows: tuple[int, ...]) -> list[int]:
        """Return the documents of task `number`, which asks `rows`, shuffled."""
        pool, wanted = self.pool, self.config.documents
        drawn = list(dict.fromkeys(chain.from_iterable(pool.gold[row] for row in rows)))
        gold = len(drawn)
        own = Counter(chain.from_iterable(pool.contexts[row] for row in rows))
        answers: list[str] = []
        if self.config.exclude_answer_documents:
            found = {normalize(answer) for row in rows for answer in pool.questions[row].answers}
            answers = [f" {answer} " for answer in found - _VERDICTS]
        rng = Random(f"{self.config.seed}:{number}")
        twins = chain.from_iterable(pool.twins[pool.questions[row].id] for row in rows)
        taken = {*drawn}.union(*(pool.gold[twin] for twin in twins))
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
                f"task {number}: only {len(drawn)} documents can be had ({gold} gold, "
                f"{len(drawn) - gold} distractors), but {wanted} are asked for; give more input, "
                "or ask for fewer documents."
            )
        rng.shuffle(drawn)
        return drawn


def _endless_orders(rng: Random, groups: list[list[int]]) -> Iterator[int]:
    """Yield the numbers of all groups in one random order after another; groups stay together."""
    while True:
        order = groups.copy()
        rng.shuffle(order)
        yield from chain.from_iterable(order)


def _permutation(rng: Random, count: int) -> Iterator[int]:
    """Yield the numbers below `count` in random order, drawn as needed (sparse Fisher-Yates)."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        index = rng.randint(0, last)
        yield moved.get(index, index)
        moved[index] = moved.get(last, last)


@dataclass
class AskedQuestions:
    """The ids and normalised texts of a file's questions, and the rows found to share one."""

    path: Path
    ids: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    shared: list[QARow] = field(default_factory=list)

    def has(self, row: QARow) -> bool:
        """Whether `row` asks one of them."""
        return row.id in self.ids or normalize(row.question) in self.texts

    def check(self) -> None:
        """Raise DataError if rows share a question."""
        if self.shared:
            some = "; ".join(f"{row.id}: {row.question}" for row in self.shared[:3])
            raise DataError(
                f"{self.path}: has {len(self.shared)} questions of the input, too ({some}). Build "
                "from another split, or leave these questions out with --drop_overlap."
            )


def read_asked(path: str | Path) -> AskedQuestions:
    """Read the questions of a benchmark's file, a task file, MemAgent's, or rows with `question`.

    Raises:
        DataError: The file is damaged, or a row has no question.
    """
    asked = AskedQuestions(Path(path))
    for row in read_rows(path):
        for name, text in _questions(row):
            asked.texts.add(normalize(text))
            asked.ids |= {name} - {""}
    if not asked.texts:
        raise DataError(f"{path}: has no questions.")
    return asked


def _questions(row: Row) -> list[tuple[str, str]]:
    """Return id (or "") and text of the questions of a row."""
    name = str(next(filter(None, map(row.values.get, ("_id", "id", "task_id", "query_id"))), ""))
    if "questions" in row.values:
        items = row.convert("questions", row.values["questions"], list[dict[str, object]])
        return [(str(item.get("id") or ""), str(item["text"])) for item in items]
    if "input" in row.values or "reward_model" in row.values:
        return [("", question.text) for task in parse_memagent(row) for question in task.questions]
    return [(name, row.text("question", "Question", "query"))]

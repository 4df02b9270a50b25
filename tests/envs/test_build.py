"""Building tasks: what stands in them, that it is the seed's doing alone, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.task import Document, Task
from atommem.errors import DataError


def qa_row(number: int, gold: int = 2, extra: int = 3, answer: str = "") -> QARow:
    """A question with its own gold documents and other ones, of which one is shared with the next question."""
    documents = [Document(f"gold {number}.{i}", f"text {number}", gold=True) for i in range(gold)]
    documents += [Document(f"other {number}.{i}", f"text {number}") for i in range(extra - 1)]
    documents.append(Document(f"shared {number // 2}", "text"))
    return QARow(f"id{number}", f"Question {number}?", (answer or f"answer {number}",), tuple(documents), "toy")


def build(rows: list[QARow], config: BuildConfig, workers: int = 1) -> list[Task]:
    return list(build_tasks(Pool(rows), config, "toy", "dev", workers))


ROWS = [qa_row(i) for i in range(12)]


def test_a_task_holds_its_gold_documents_among_distractors() -> None:
    tasks = build(ROWS, BuildConfig(documents=20, n=30, questions=(1, 3)))
    assert [task.id for task in tasks] == [f"toy-dev-{i:05d}" for i in range(30)]
    positions = []
    for task in tasks:
        assert task.source == "toy"
        assert len(task.documents) == len({(d.title, d.text) for d in task.documents}) == 20
        asked = [int(question.id[2:]) for question in task.questions]
        gold = {f"gold {number}.{i}" for number in asked for i in range(2)}
        assert {d.title for d in task.documents if d.gold} == gold
        # No distractor comes with the task's questions alone.
        assert not any(d.title.startswith(f"other {number}.") for d in task.documents for number in asked)
        positions += [i for i, d in enumerate(task.documents) if d.gold]
    assert Counter(len(task.questions) for task in tasks).keys() == {1, 2, 3}
    assert len(set(positions)) == 20  # gold documents stand anywhere


def test_another_questions_gold_document_is_no_distractor_of_ones_own() -> None:
    """A document that is gold for a task stays gold, though other questions have it as an ordinary paragraph."""
    common = Document("gold 0.0", "text  0 ")  # the same, white space apart
    rows = [qa_row(0), *[QARow(r.id, r.question, r.answers, (*r.paragraphs, common), "toy") for r in ROWS[1:]]]
    for task in build(rows, BuildConfig(documents=20, n=24)):
        found = [d.gold for d in task.documents if d.title == "gold 0.0"]
        assert found in ([], [task.questions[0].id == "id0"])
        if task.questions[0].id == "id0":
            assert found == [True]


def test_every_question_is_asked_before_one_comes_again() -> None:
    tasks = build(ROWS, BuildConfig(documents=12, n=12, questions=(2, 2)))
    asked = [question.id for task in tasks for question in task.questions]
    assert len(set(asked[:12])) == len(set(asked[12:])) == 12
    assert asked[:12] != asked[12:]
    assert all(len({q.text for q in task.questions}) == 2 for task in tasks)


def test_a_question_put_off_is_asked_in_the_next_task() -> None:
    twins = [QARow("twin", "question 0", ("answer",), qa_row(90).paragraphs, "toy"), *ROWS[:7]]
    for seed in range(40):
        # Four tasks go through the eight questions once; the fifth asks at the latest what was put off.
        tasks = build(twins, BuildConfig(documents=5, n=5, questions=(2, 2), seed=seed))
        assert len({q.id for task in tasks for q in task.questions}) == 8


def test_the_seed_decides_and_nothing_else() -> None:
    config = BuildConfig(documents=20, n=200, questions=(1, 3))
    tasks = build(ROWS, config)
    assert build(ROWS, config, workers=3) == tasks
    assert build(ROWS, BuildConfig(documents=20, n=70, questions=(1, 3))) == tasks[:70]
    other = build(ROWS, BuildConfig(documents=20, n=200, questions=(1, 3), seed=43))
    assert [t.documents for t in other] != [t.documents for t in tasks]


def test_answer_documents_can_be_kept_out() -> None:
    rows = [qa_row(0, answer="Blue Moon"), qa_row(1, answer="yes"), *ROWS[2:]]
    giveaways = [Document("A blue, moon", "x"), Document("no match", "blue moons"), Document("verdict", "Yes.")]
    rows[2] = QARow("id2", "Question 2?", ("z",), (*rows[2].paragraphs, *giveaways), "toy")

    def distractors(exclude: bool) -> set[tuple[str, str]]:
        found = set()
        for task in build(rows, BuildConfig(40, 120, exclude_answer_documents=exclude)):
            found |= {(task.questions[0].id, d.title) for d in task.documents if not d.gold}
        return found

    with_them, without = distractors(False), distractors(True)
    assert with_them - without == {("id0", "A blue, moon")}
    # Not as whole words; yes stands everywhere; of another question.
    assert {("id0", "no match"), ("id1", "verdict"), ("id1", "A blue, moon")} <= without


def test_too_few_documents_or_questions() -> None:
    with pytest.raises(DataError, match=r"the pool has 54 different documents, too few for tasks of 55"):
        build(ROWS, BuildConfig(documents=55, n=1))
    # Its own two other documents are no distractors.
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"task 0: only 52 documents can be had \(2 gold, 50 distractors\), but 53"):
            build(ROWS, BuildConfig(documents=53, n=70), workers)
    assert len(build(ROWS, BuildConfig(documents=52, n=1))[0].documents) == 52
    few = [qa_row(0), qa_row(1), replace(qa_row(1), id="again")]
    with pytest.raises(DataError, match="the pool has 2 different questions, too few for tasks of 3"):
        build(few, BuildConfig(documents=2, n=1, questions=(1, 3)))


@pytest.mark.parametrize("documents", [3, 5, 12])
def test_own_distractors_come_first(documents: int) -> None:
    """As RULER and MemAgent build theirs: the question's own paragraphs, then any other's, up to N."""
    own = {row.id: {document.title for document in row.paragraphs} for row in ROWS}
    for task in build(ROWS, BuildConfig(documents, 12, distractors="own")):
        titles, mine = {document.title for document in task.documents}, own[task.questions[0].id]
        assert len(titles) == documents
        assert titles <= mine if documents < len(mine) else mine <= titles
        assert sum(document.gold for document in task.documents) == 2

"""Building tasks: what stands in them, that the seed alone decides, what is refused; MuSiQue-Full's pairs, scores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.build import BuildConfig, Pool, build_tasks
from atommem.envs.benchmarks.rows import QARow
from atommem.envs.scoring.records import EpisodeRecord, QuestionRecord, summarize
from atommem.envs.scoring.sufficiency import group_scores
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.envs.task_files import load_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import musique_row, write_lines
from tests.fakes import WordTokenizer, command, longdoc

main = command("data")


def qa_row(number: int, gold: int = 2, extra: int = 3, answer: str = "") -> QARow:
    """A question with its own gold documents and other ones, of which one is shared with the next question."""
    documents = [Document(f"gold {number}.{i}", f"text {number}", gold=True) for i in range(gold)]
    documents += [Document(f"other {number}.{i}", f"text {number}") for i in range(extra - 1)]
    documents.append(Document(f"shared {number // 2}", "text"))
    return QARow(
        f"id{number}",
        f"Question {number}?",
        (answer or f"answer {number}",),
        tuple(documents),
        "toy",
    )


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
        assert not any(
            d.title.startswith(f"other {number}.") for d in task.documents for number in asked
        )
        positions += [i for i, d in enumerate(task.documents) if d.gold]
    assert Counter(len(task.questions) for task in tasks).keys() == {1, 2, 3}
    assert len(set(positions)) == 20  # gold documents stand anywhere


def test_another_questions_gold_document_is_no_distractor_of_ones_own() -> None:
    """A document that is gold for a task stays gold, though other questions have it as an ordinary paragraph."""
    common = Document("gold 0.0", "text  0 ")  # the same, white space apart
    rows = [
        qa_row(0),
        *[QARow(r.id, r.question, r.answers, (*r.paragraphs, common), "toy") for r in ROWS[1:]],
    ]
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
    giveaways = [
        Document("A blue, moon", "x"),
        Document("no match", "blue moons"),
        Document("verdict", "Yes."),
    ]
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
    with pytest.raises(
        DataError, match=r"the pool has 54 different documents, too few for tasks of 55"
    ):
        build(ROWS, BuildConfig(documents=55, n=1))
    # Its own two other documents are no distractors.
    for workers in (1, 2):
        with pytest.raises(
            DataError,
            match=r"task 0: only 52 documents can be had \(2 gold, 50 distractors\), but 53",
        ):
            build(ROWS, BuildConfig(documents=53, n=70), workers)
    assert len(build(ROWS, BuildConfig(documents=52, n=1))[0].documents) == 52
    few = [qa_row(0), qa_row(1), replace(qa_row(1), id="again")]
    with pytest.raises(
        DataError, match="the pool has 2 different questions, too few for tasks of 3"
    ):
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


def pair(number: int) -> list[dict[str, Any]]:
    """A question with all of its evidence, and the same one without its first supporting paragraph."""
    row = musique_row(number)
    missing = next(item for item in row["paragraphs"] if item["is_supporting"])
    return [
        row,
        {
            **row,
            "answerable": False,
            "paragraphs": [item for item in row["paragraphs"] if item != missing],
        },
    ]


def build_full(path: Path, *more: Any) -> int:
    common = [
        "build",
        "--benchmark",
        "musique",
        "--split",
        "dev",
        "--input",
        path,
        "--seed",
        3,
        "--unanswerable",
    ]
    return main([*map(str, [*common, *more])])


def test_tasks_come_in_pairs_and_none_holds_what_its_question_lacks(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "musique_full_v1.0_dev.jsonl",
        [row for number in range(9) for row in pair(number)],
    )
    for distractors in ("own", "pool"):
        out = tmp_path / f"{distractors}.jsonl"
        arguments = ("--distractors", distractors, "--docs", 6, "--n", 8, "--out", out)
        assert build_full(path, *arguments) == 0
        tasks = load_tasks(out)
        for first, second in zip(tasks[::2], tasks[1::2], strict=True):
            (asked,), (again,) = first.questions, second.questions
            assert (asked.id, asked.text) == (again.id, again.text)
            assert {asked.metadata["answerable"], again.metadata["answerable"]} == {True, False}
            assert describe_task(first).group == describe_task(second).group == asked.id
            assert 'answer "not mentioned"' in asked.text
            evidence = {
                document.text
                for task in (first, second)
                for document in task.documents
                if document.gold
            }
            refused = next(
                task for task in (first, second) if not task.questions[0].metadata["answerable"]
            )
            held = {document.text for document in refused.documents if not document.gold}
            assert not held & evidence, "the missing paragraph would answer it"


async def test_scores_of_a_question_that_cannot_be_answered() -> None:
    environments = longdoc(WordTokenizer())
    for answerable, answer, expected in (
        (True, "Port", {"em": 1.0, "f1": 1.0, "sub_em": 1.0, "sufficiency": 1.0}),
        (True, "not mentioned", {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 0.0}),
        (True, None, {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 1.0}),
        (False, "It is not mentioned.", {"sufficiency": 1.0}),
        (False, "Port", {"sufficiency": 0.0}),
    ):
        question = Question("?", ("Port",), "q", {"answerable": answerable})
        score = await environments.score(
            Task("t", (question,), context="x", source="musique"), [answer]
        )
        assert dict(score.question_metrics[0]) == expected
        assert score.reward == expected.get("em"), (
            "what cannot be answered is no part of exact match"
        )


def record(identifier: str, task: str, metrics: dict[str, float]) -> EpisodeRecord:
    question = QuestionRecord(identifier, "?", "x", ("y",), "", metrics)
    return EpisodeRecord(
        task, 0, "musique", "answered", None, None, {}, (question,), {}, 1.0, group=identifier
    )


def test_the_grouped_score_by_hand() -> None:
    right, half = ({"em": em, "f1": f1, "sufficiency": 1.0} for em, f1 in ((1.0, 1.0), (0.0, 0.5)))
    records = [
        *(record("a", "a1", half), record("a", "a2", {"sufficiency": 1.0})),
        *(
            record("b", "b1", right),
            record("b", "b2", {"sufficiency": 0.0}),
        ),  # answered what cannot be: nothing
        *(record("c", "c1", right), record("c", "c2", {"sufficiency": 1.0})),
        record("d", "d1", right),  # its other half failed: in no score
    ]
    found = group_scores((item.id, item.metrics) for one in records for item in one.questions)
    assert (
        found["group_answer_sufficiency_f1"]["mean"],
        found["group_answer_sufficiency_f1"]["n"],
    ) == (0.5, 3)
    assert found["group_answer_sufficiency_em"]["mean"] == pytest.approx(1 / 3)
    summary = summarize(records)
    assert summary["metrics"]["group_answer_sufficiency_f1"] == found["group_answer_sufficiency_f1"]
    assert (summary["metrics"]["f1"]["n"], summary["metrics"]["f1"]["mean"]) == (4, 3.5 / 4), (
        "answerable ones alone"
    )
    assert summary["metrics"]["sufficiency"]["n"] == 7
    assert group_scores([("a", {"em": 1.0, "f1": 1.0})]) == {}

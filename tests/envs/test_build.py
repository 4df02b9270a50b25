"""Building tasks: contents, seeds, refusals, and MuSiQue-Full's pairs and scores."""

from __future__ import annotations

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
    """A question with gold and other documents; it shares the last with the next question."""
    documents = [Document(f"gold {number}.{i}", f"text {number}", gold=True) for i in range(gold)]
    documents += [Document(f"other {number}.{i}", f"text {number}") for i in range(extra - 1)]
    documents.append(Document(f"shared {number // 2}", "text"))
    answers = (answer or f"answer {number}",)
    return QARow(f"id{number}", f"Question {number}?", answers, tuple(documents), "toy")


def build(rows: list[QARow], config: BuildConfig, workers: int = 1) -> list[Task]:
    return list(build_tasks(Pool(rows), config, "toy", "dev", workers))


ROWS = [qa_row(i) for i in range(12)]


def test_build_puts_gold_documents_anywhere_among_distractors() -> None:
    tasks = build(ROWS, BuildConfig(documents=20, n=30, questions=(1, 3)))
    assert [task.id for task in tasks] == [f"toy-dev-{i:05d}" for i in range(30)]
    positions = set()
    for task in tasks:
        titles = {document.title for document in task.documents}
        assert len(task.documents) == len(titles) == 20
        numbers = [question.id[2:] for question in task.questions]
        gold = {f"gold {number}.{i}" for number in numbers for i in range(2)}
        assert {document.title for document in task.documents if document.gold} == gold
        # The other documents of a question are not its distractors.
        assert not titles & {f"other {number}.{i}" for number in numbers for i in range(2)}
        positions |= {i for i, document in enumerate(task.documents) if document.gold}
    assert {len(task.questions) for task in tasks} == {1, 2, 3}
    assert len(positions) == 20


def test_build_marks_a_document_gold_for_its_own_question_only() -> None:
    common = Document("gold 0.0", "text  0 ")  # the same, white space apart
    others = [replace(row, paragraphs=(*row.paragraphs, common)) for row in ROWS[1:]]
    for task in build([qa_row(0), *others], BuildConfig(documents=20, n=24)):
        found = [d.gold for d in task.documents if d.title == "gold 0.0"]
        if task.questions[0].id == "id0":
            assert found == [True]
        else:
            assert found in ([], [False])


def test_build_asks_every_question_before_one_repeats() -> None:
    tasks = build(ROWS, BuildConfig(documents=12, n=12, questions=(2, 2)))
    asked = [question.id for task in tasks for question in task.questions]
    assert len(set(asked[:12])) == len(set(asked[12:])) == 12
    assert asked[:12] != asked[12:]
    assert all(len({q.text for q in task.questions}) == 2 for task in tasks)


def test_build_depends_on_the_seed_only() -> None:
    config = BuildConfig(documents=20, n=200, questions=(1, 3))
    tasks = build(ROWS, config)
    assert build(ROWS, config, workers=3) == tasks
    assert build(ROWS, replace(config, n=70)) == tasks[:70]
    other = build(ROWS, replace(config, seed=43))
    assert [t.documents for t in other] != [t.documents for t in tasks]


def test_build_can_exclude_documents_with_the_answer() -> None:
    rows = [qa_row(0, answer="Blue Moon"), qa_row(1, answer="yes"), *ROWS[2:]]
    texts = {"A blue, moon": "x", "no match": "blue moons", "verdict": "Yes."}
    giveaways = [Document(title, text) for title, text in texts.items()]
    rows[2] = replace(rows[2], paragraphs=(*rows[2].paragraphs, *giveaways))

    def distractors(exclude: bool) -> set[tuple[str, str]]:
        tasks = build(rows, BuildConfig(40, 120, exclude_answer_documents=exclude))
        return {(t.questions[0].id, d.title) for t in tasks for d in t.documents if not d.gold}

    every, without = distractors(False), distractors(True)
    assert every - without == {("id0", "A blue, moon")}
    # Parts of words, the answer yes, and answers of other questions stay.
    assert {("id0", "no match"), ("id1", "verdict"), ("id1", "A blue, moon")} <= without


def test_build_from_a_pool_that_is_too_small_raises() -> None:
    with pytest.raises(DataError, match=r"the pool has 54 different documents, too few .* of 55"):
        build(ROWS, BuildConfig(documents=55, n=1))
    message = r"task 0: only 52 documents can be had \(2 gold, 50 distractors\), but 53"
    for workers in (1, 2):
        with pytest.raises(DataError, match=message):
            build(ROWS, BuildConfig(documents=53, n=70), workers)
    assert len(build(ROWS, BuildConfig(documents=52, n=1))[0].documents) == 52
    few = [qa_row(0), qa_row(1), replace(qa_row(1), id="again")]
    with pytest.raises(DataError, match="2 different questions, too few for tasks of 3"):
        build(few, BuildConfig(documents=2, n=1, questions=(1, 3)))


@pytest.mark.parametrize("documents", [3, 12])
def test_own_distractors_come_before_those_of_the_pool(documents: int) -> None:
    own = {row.id: {document.title for document in row.paragraphs} for row in ROWS}
    for task in build(ROWS, BuildConfig(documents, 12, distractors="own")):
        titles, mine = {document.title for document in task.documents}, own[task.questions[0].id]
        assert len(titles) == documents
        assert titles <= mine if documents < len(mine) else mine <= titles
        assert sum(document.gold for document in task.documents) == 2


def pair(number: int) -> list[dict[str, Any]]:
    """A row with all of its evidence, and the same row without its first supporting paragraph."""
    row = musique_row(number)
    missing = next(item for item in row["paragraphs"] if item["is_supporting"])
    rest = [item for item in row["paragraphs"] if item != missing]
    return [row, {**row, "answerable": False, "paragraphs": rest}]


@pytest.mark.parametrize("distractors", ["own", "pool"])
def test_unanswerable_task_lacks_the_evidence_of_its_answerable_twin(
    tmp_path: Path, distractors: str
) -> None:
    rows = [row for number in range(9) for row in pair(number)]
    path = write_lines(tmp_path / "musique_full_v1.0_dev.jsonl", rows)
    command = f"build --benchmark musique --split dev --input {path} --seed 3 --unanswerable"
    out = tmp_path / "tasks.jsonl"
    more = f"--distractors {distractors} --docs 6 --n 8 --out {out}"
    assert main([*command.split(), *more.split()]) == 0
    tasks = load_tasks(out)
    for twins in zip(tasks[::2], tasks[1::2], strict=True):
        (first,), (second,) = (task.questions for task in twins)
        assert (first.id, first.text) == (second.id, second.text)
        assert describe_task(twins[0]).group == describe_task(twins[1]).group == first.id
        assert 'answer "not mentioned"' in first.text
        complete, lacking = sorted(twins, key=lambda t: not t.questions[0].metadata["answerable"])
        assert complete.questions[0].metadata["answerable"]
        assert not lacking.questions[0].metadata["answerable"]
        evidence = {d.text for task in twins for d in task.documents if d.gold}
        assert not evidence & {d.text for d in lacking.documents if not d.gold}


@pytest.mark.parametrize(
    ("answerable", "answer", "expected"),
    [
        (True, "Port", {"em": 1.0, "f1": 1.0, "sub_em": 1.0, "sufficiency": 1.0}),
        (True, "not mentioned", {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 0.0}),
        (True, None, {"em": 0.0, "f1": 0.0, "sub_em": 0.0, "sufficiency": 1.0}),
        (False, "It is not mentioned.", {"sufficiency": 1.0}),
        (False, "Port", {"sufficiency": 0.0}),
    ],
)
async def test_unanswerable_question_scores_sufficiency_alone(
    answerable: bool, answer: str | None, expected: dict[str, float]
) -> None:
    question = Question("?", ("Port",), "q", {"answerable": answerable})
    task = Task("t", (question,), context="x", source="musique")
    score = await longdoc(WordTokenizer()).score(task, [answer])
    assert dict(score.question_metrics[0]) == expected
    assert score.reward == expected.get("em")


def record(identifier: str, task: str, metrics: dict[str, float]) -> EpisodeRecord:
    question = QuestionRecord(identifier, "?", "x", ("y",), "", metrics)
    return EpisodeRecord(
        task, 0, "musique", "answered", None, None, {}, (question,), {}, 1.0, group=identifier
    )


def test_group_scores_equal_hand_computed_values() -> None:
    right = {"em": 1.0, "f1": 1.0, "sufficiency": 1.0}
    half = {"em": 0.0, "f1": 0.5, "sufficiency": 1.0}
    records = [
        record("a", "a1", half),
        record("a", "a2", {"sufficiency": 1.0}),
        record("b", "b1", right),
        record("b", "b2", {"sufficiency": 0.0}),  # answers the unanswerable: the pair scores 0
        record("c", "c1", right),
        record("c", "c2", {"sufficiency": 1.0}),
        record("d", "d1", right),  # its twin failed: not in the grouped score
    ]
    found = group_scores((item.id, item.metrics) for one in records for item in one.questions)
    grouped = found["group_answer_sufficiency_f1"]
    assert (grouped["mean"], grouped["n"]) == (0.5, 3)
    assert found["group_answer_sufficiency_em"]["mean"] == pytest.approx(1 / 3)
    metrics = summarize(records)["metrics"]
    assert metrics["group_answer_sufficiency_f1"] == grouped
    assert (metrics["f1"]["n"], metrics["f1"]["mean"]) == (4, 3.5 / 4)
    assert metrics["sufficiency"]["n"] == 7
    assert group_scores([("a", {"em": 1.0, "f1": 1.0})]) == {}

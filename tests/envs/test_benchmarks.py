"""The readers of benchmarks, on invented rows in their published formats; OOLONG's scores."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.envs.benchmarks import questions
from atommem.envs.benchmarks.long_texts import parse_locomo
from atommem.envs.benchmarks.rows import QARow, read_rows
from atommem.envs.longdoc.evidence import gold_documents
from atommem.envs.scoring.metrics import hint, score_question
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from tests.envs.benchmark_rows import (
    ROWS,
    beam_row,
    beam_turns,
    columns,
    sample,
    twowiki_row,
    write_json,
    write_lines,
    write_parquet,
)

PARAGRAPHS = (
    Document("Moss 0", "Moss grows. It is green."),
    Document("Orla 0", "Orla is a potter. Her brother is Bran 0.", gold=True),
    Document("Bran 0", "Bran lives in Port 0.", gold=True),
    Document("Kiln 0", "A kiln is hot."),
)
WHERE = "Where does the brother of Orla 0 live?"
KINDS = {"type": "bridge", "level": "hard", "hops": 2}
HOTPOT = QARow(Question(WHERE, ("Port 0",), "id0", KINDS), PARAGRAPHS)


def objects(row: dict[str, Any]) -> dict[str, Any]:
    """The layout of some 2Wiki conversions: lists of objects, as JSON in a string."""
    facts = [{"title": title, "sent_id": index} for title, index in row["supporting_facts"]]
    context = [{"title": title, "content": sentences} for title, sentences in row["context"]]
    return {**row, "supporting_facts": json.dumps(facts), "context": context}


@pytest.mark.parametrize(
    ("layout", "write"), [(dict, write_json), (columns, write_parquet), (objects, write_lines)]
)
def test_hotpotqa_reads_every_layout(tmp_path, layout, write):
    path = write(tmp_path / "x", [layout(sample("hotpot"))])
    assert list(questions.BENCHMARKS["hotpotqa"].read(path)) == [HOTPOT]


def test_2wiki_adds_aliases_and_demonyms(tmp_path):
    twowiki = questions.BENCHMARKS["2wikimultihopqa"]
    path = write_json(tmp_path / "x.json", [twowiki_row(), twowiki_row(2)])
    first = next(iter(twowiki.read(path)))
    assert first.paragraphs == PARAGRAPHS, "the space between sentences is restored"
    names = {"Q_id": "Q0", "aliases": ["Harbour", "Port 0"], "demonyms": ["Porter", ""]}
    named = questions.with_aliases(twowiki, write_lines(tmp_path / "id_aliases.json", [names]))
    answers = [row.question.answers for row in named.read(path)]
    assert answers == [("Port 0", "Harbour", "Porter"), ("Port 2",)]


def test_musique_marks_gold_by_paragraph(tmp_path):
    twice = sample("musique")  # a repeated paragraph is gold if either copy is
    twice["paragraphs"].append({**twice["paragraphs"][0], "idx": 4, "is_supporting": True})
    listed = [sample("musique"), sample("musique", answerable=False), twice]
    path = write_lines(tmp_path / "x", listed)
    rows = list(questions.BENCHMARKS["musique"].read(path))
    assert rows[0].question.answers == ("Port 0", "Harbour 0")
    assert rows[0].question.metadata == {"type": "2hop", "hops": 2}
    gold = [(paragraph.title, paragraph.gold) for paragraph in rows[0].paragraphs]
    assert gold == [("Orla", False), ("Moss", False), ("Orla", True), ("Bran", True)]
    assert [row.answerable for row in rows] == [True, False, True]
    assert [paragraph.gold for paragraph in rows[2].paragraphs] == [True, False, True, True]


def test_read_rows_replaces_lone_surrogates_and_ignores_a_byte_order_mark(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"a\\ud800": ["\\ud83d\\ude00 \\udc00"]}]', encoding="utf-8-sig")
    (row,) = read_rows(path)
    assert row.values == {"a\ufffd": ["\U0001f600 \ufffd"]}


def test_find_prefers_the_official_file_and_needs_all_shards(tmp_path):
    hotpotqa = questions.get_benchmark("hotpotqa")
    with pytest.raises(DataError, match=r"looked for hotpot_train_v1\.1\.json, .*Give the file"):
        hotpotqa.find("train", tmp_path)
    folder = tmp_path / "hotpotqa"
    (folder / "distractor").mkdir(parents=True)
    shards = [folder / "distractor" / f"train-0000{i}-of-00002.parquet" for i in range(2)]
    shards[0].touch()
    with pytest.raises(DataError, match=r"has 1 shards such as train-00000.*expected 2"):
        hotpotqa.find("train", tmp_path)
    shards[1].touch()
    assert hotpotqa.find("train", tmp_path) == shards
    (official := folder / "hotpot_train_v1.1.json").touch()
    assert hotpotqa.find("train", tmp_path) == [official]
    with pytest.raises(DataError, match="is the train file by its name"):
        hotpotqa.find("dev", official)


@pytest.mark.parametrize(("benchmark", "row", "answers", "metadata"), ROWS["web"])
def test_web_question_has_answers_and_attributes(tmp_path, benchmark, row, answers, metadata):
    (found,) = questions.WEB_BENCHMARKS[benchmark].read(write_lines(tmp_path / "x", [row]))
    assert [*found.question.answers] == answers
    assert found.question.metadata.items() >= metadata.items()


def test_encrypted_web_questions_raise(tmp_path):
    path = write_lines(tmp_path / "x", [{"query_id": "7", "query": "x" * 50}])
    with pytest.raises(DataError, match=r"row 1: .*'query' is encrypted"):
        list(questions.WEB_BENCHMARKS["browsecomp_plus"].read(path))


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Task]:
    """Return the tasks of rows; saved in our own format they are the same."""
    listed = load_tasks(write_json(tmp_path / "list.json", list(rows)))
    save_tasks(listed, tmp_path / "ours.parquet")
    assert load_tasks(tmp_path / "ours.parquet") == listed
    return listed


def test_locomo_turns_are_documents_with_dates(tmp_path):
    (task,) = load_tasks(write_json(tmp_path / "locomo10.json", [sample("locomo")]))
    assert [(document.title, document.text, document.gold) for document in task.documents] == [
        ("7:15 pm on 2 May, 2021", "Orla: I made two bowls yesterday.", True),
        ("7:15 pm on 2 May, 2021", "Bran: Nice! [shares an image: a photo of a bowl]", False),
        ("9:00 am on 3 June, 2021", "Orla: I sold the kiln.", True),
    ]
    assert [(question.metadata["category"], *question.answers) for question in task.questions] == [
        ("multi_hop", "bowls, a kiln"),
        ("temporal", "2021"),
        ("open_domain", "Likely yes"),
        ("single_hop", "The kiln"),
        ("adversarial", "not mentioned"),
    ]
    assert [len(gold_documents(task, question)) for question in task.questions] == [2, 1, 0, 1, 1]
    assert all(question.text.endswith(hint("conversation")) for question in task.questions)


def test_locomo_official_wording_gives_dates_and_options(tmp_path):
    rows = [sample("locomo", sample_id=f"c{number}") for number in range(20)]
    orders = set()
    found = read_rows(write_json(tmp_path / "x.json", rows))
    for task in (task for row in found for task in parse_locomo(row, 5, official=True)):
        assert task.questions[1].text.startswith("When? (Tell the approximate date")
        question = task.questions[4]
        options = question.metadata["options"]
        assert question.text.endswith(f"(a) {options['a']} (b) {options['b']}")
        right, wrong = sorted("ab", key=lambda letter: options[letter] == "the kiln")
        for answer, score in ((right, 1), (f"({right})", 1), (f" ({wrong.upper()}) ", 0)):
            assert score_question(question, answer, "locomo")["em"] == score
        orders.add(right)
    assert orders == {"a", "b"}


def test_longmemeval_sessions_are_in_the_order_of_their_dates(tmp_path):
    unanswerable = sample("longmemeval", question_id="lme1_abs", answer="You did not say.")
    task, other = load(tmp_path, sample("longmemeval"), unanswerable)
    (question,) = task.questions
    assert [document.text for document in task.documents] == [
        "user: Tell me about clay.",
        "user: I bought a kiln in Brent.",
        "assistant: How nice!",
    ]
    assert gold_documents(task, question) == [task.documents[1]]
    assert question.text.startswith("Where did I buy the kiln? (Asked on 2023/06/01 (Thu) 10:00.)")
    assert score_question(other.questions[0], "not mentioned", "longmemeval")["em"] == 1.0


def test_beam_has_turns_as_documents_and_abilities_as_questions(tmp_path):
    (task,) = load(tmp_path, beam_row())
    second = task.documents[2]
    assert (len(task.documents), second.title) == (4, "April-01-2024")
    assert second.text == "user: I moved it to Lorne."
    assert [(one.answers[-1], one.metadata["documents"]) for one in task.questions] == [
        ("The chat does not tell.", []),
        ("In Brent.", [0, 3]),
        ("In Lorne.", [2]),
        ("A kiln moves.", [0, 2]),
    ]
    assert score_question(task.questions[0], "not mentioned", "beam")["em"] == 1.0
    assert task.questions[1].metadata["rubric"] == ["LLM response should state: Brent"]


def test_beam_reads_nested_batches_and_plans(tmp_path):
    (plain,) = load_tasks(write_json(tmp_path / "a.json", [beam_row()]))
    first, second = beam_row()["chat"]
    anew = beam_turns(0, "I moved it to Lorne.", "Noted.", date="April-01-2024")
    batches = [{"turns": [[turn] for turn in batch]} for batch in (first, second)]
    plans = [
        [{"plan-1": [first], "plan-2": None}, {"plan-1": None, "plan-2": [later]}]
        for later in (second, anew)
    ]
    for chat in (batches, *plans):
        row = beam_row(chat=chat, probing_questions=json.dumps(sample("probing")))
        assert load_tasks(write_json(tmp_path / "b.json", [row])) == [plain]


def memagent_row(question: Any, truth: list[Any]) -> dict[str, Any]:
    return {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": question}],
        "context": CONTEXT,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 7, "question": question, "num_docs": 2},
    }


CONTEXT = "Document 1:\nOrla\nOrla is a potter."
EVALUATION = {"context": CONTEXT, "input": "Bran?", "answers": ["Port"], "num_docs": 2, "index": 7}
PAIR = ["Bran?", "Orla?"]
ALIASES = ("Port", "Harbour")


@pytest.mark.parametrize(
    ("row", "source", "answers"),
    [
        (memagent_row("Bran?", ["Port"]), "hotpotqa", [("Port",)]),
        (memagent_row(PAIR, [[*ALIASES], ["Orla"]]), "hotpotqa", [ALIASES, ("Orla",)]),
        (EVALUATION, "memagent", [("Port",)]),
    ],
)
def test_memagent_rows_are_read_in_all_forms(tmp_path, row, source, answers):
    (task,) = load(tmp_path, row)
    assert (task.id, task.source, task.context) == (f"{source}-00000", source, CONTEXT)
    assert [question.answers for question in task.questions] == answers
    assert [question.text for question in task.questions] == PAIR[: len(answers)]


def oolong_row(answer: str, kind: str = "", **changes: Any) -> dict[str, Any]:
    """Return an invented row in the layout of the synthetic or, without a kind, the real set."""
    row = {"id": 7, "context_window_id": 3, "context_window_text": "Lines.", "question": "Which?"}
    group = {"task_group": "user", "answer_type": f"ANSWER_TYPE.{kind}"}
    return {**row, "answer": answer, **(group if kind else {"question_type": "rolls"}), **changes}


def read(folder: Path, row: dict[str, Any]) -> Any:
    return load_tasks(write_lines(folder / "test.jsonl", [row]))[0]


SCORES = yaml.safe_load(Path(__file__).with_name("oolong_scores.yaml").read_text())


@pytest.mark.parametrize(("gold", "kind", "answer", "official"), SCORES)
def test_oolong_score_equals_the_official_one(gold, kind, answer, official, tmp_path):
    task = read(tmp_path, oolong_row(gold, kind))
    assert score_question(task.questions[0], answer, task.source)["oolong"] == official


def test_oolong_rows_share_the_cluster_of_their_text(tmp_path):
    task = read(tmp_path, oolong_row("[datetime.date(2024, 3, 5)]", "DATE"))
    assert (task.id, task.source, task.context) == ("oolong-7", "oolong", "Lines.")
    assert task.metadata["sample_id"] == "3"
    (question,) = task.questions
    assert (question.answers, question.metadata["type"]) == (("2024-03-05",), "user")
    assert read(tmp_path, oolong_row("5", id="x")).source == "oolong_real"
    with pytest.raises(DataError, match="answer"):
        read(tmp_path, oolong_row("spam", "LABEL"))

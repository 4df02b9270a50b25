"""LoCoMo: the official file format with an invented dialogue, and its scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.locomo import HINTED, OFFICIAL, read_locomo, read_wording
from atommem.envs.scoring.locomo_scores import locomo_exact_match, locomo_f1, stem
from atommem.envs.scoring.metrics import hint
from atommem.envs.task import Question
from atommem.envs.task_files import load_tasks
from atommem.errors import ConfigError
from tests.envs.benchmark_rows import real_data, write_json, write_lines
from tests.envs.test_conversations import longmemeval_row
from tests.fakes import command

main = command("data")


def turn(identifier: str, speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"dia_id": identifier, "speaker": speaker, "text": text, **more}


def qa(category: int, question: str, answer: Any, *evidence: str) -> dict[str, Any]:
    name = "adversarial_answer" if category == 5 else "answer"
    return {"question": question, name: answer, "evidence": [*evidence], "category": category}


def conversation(**changes: Any) -> dict[str, Any]:
    """Two sessions, where session 10 follows session 2; session 3 has a date and no turns."""
    image = {"blip_caption": "a photo of a bowl", "img_url": ["http://x"], "query": "bowl"}
    row = {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Orla",
            "speaker_b": "Bran",
            "session_10_date_time": "9:00 am on 3 June, 2021",
            "session_10": [turn("D10:1", "Orla", "I sold the kiln.")],
            "session_2_date_time": "7:15 pm on 2 May, 2021",
            "session_2": [
                turn("D2:1", "Orla", "I made two bowls yesterday."),
                turn("D2:02", "Bran", "Nice!", **image),
            ],
            "session_3_date_time": "1:00 pm on 4 May, 2021",
        },
        "qa": [
            qa(1, "What did Orla make?", "bowls, a kiln", "D2:1; D10:1"),
            qa(2, "When?", 2021, "D:2:1"),
            qa(3, "Is she a potter?", "Likely yes; she has a kiln"),
            qa(4, "What did Orla sell?", "The kiln", "D10:1"),
            qa(5, "What did Bran sell?", "the kiln", "D10:1"),
        ],
    }
    return {**row, **changes}


def test_locomo_turns_are_documents_with_dates(tmp_path: Path) -> None:
    (task,) = load_tasks(write_json(tmp_path / "locomo10.json", [conversation()]))
    assert (task.id, task.source) == ("locomo-conv-1-000", "locomo")
    assert [(document.title, document.text) for document in task.documents] == [
        ("7:15 pm on 2 May, 2021", "Orla: I made two bowls yesterday."),
        ("7:15 pm on 2 May, 2021", "Bran: Nice! [shares an image: a photo of a bowl]"),
        ("9:00 am on 3 June, 2021", "Orla: I sold the kiln."),
    ]
    assert [document.gold for document in task.documents] == [True, False, True]
    assert [(question.metadata["category"], *question.answers) for question in task.questions] == [
        ("multi_hop", "bowls, a kiln"),
        ("temporal", "2021"),
        ("open_domain", "Likely yes"),
        ("single_hop", "The kiln"),
        ("adversarial", "not mentioned"),
    ]
    assert task.questions[0].metadata["evidence"] == ["D2:1", "D10:1"]
    assert all(question.text.endswith(hint("conversation")) for question in task.questions)


@pytest.mark.parametrize(
    ("category", "gold", "answer", "expected"),
    [
        # Stems: run, marathon.
        ("single_hop", "running marathons", "She runs a marathon", 2 * 2 / (3 + 2)),
        ("single_hop", "bread and butter", "butter, bread", 1.0),
        ("single_hop", "yes", "yes it is", 2 * 1 / (3 + 1)),
        ("temporal", "7 May 2023", None, 0.0),
        # The best match of each gold part: "bowls" 1, "kiln" against "old kiln" 2/3.
        ("multi_hop", "bowls, a kiln", "an old kiln, bowl", (1 + 2 / 3) / 2),
        ("adversarial", "", "It is Not mentioned.", 1.0),
        ("adversarial", "", "the kiln", 0.0),
        ("adversarial", "", None, 0.0),
    ],
)
def test_locomo_f1_equals_hand_computed_values(
    category: str, gold: str, answer: str | None, expected: float
) -> None:
    question = Question("?", (gold or "not mentioned",), metadata={"category": category})
    assert locomo_f1(question, answer) == pytest.approx(expected)


def test_stem_is_nltk_s_default_mode() -> None:
    words = {"relational": "relat", "dying": "die", "skies": "sky", "geology": "geolog"}
    assert {word: stem(word) for word in words} == words


def test_locomo_sample_earns_full_f1_with_its_own_answers() -> None:
    tasks = load_tasks(real_data("locomo", "locomo10.json"))
    questions = [question for task in tasks for question in task.questions]
    assert len(questions) == 1020
    assert sum(question.metadata["category"] == "adversarial" for question in questions) == 232
    assert {locomo_f1(question, question.answers[0]) for question in questions} == {1.0}


def test_official_wording_gives_dates_and_options(tmp_path: Path) -> None:
    rows = [conversation(sample_id=f"c{number}") for number in range(20)]
    orders = set()
    for task in read_locomo(write_json(tmp_path / "x.json", rows), 1, OFFICIAL):
        (question,) = task.questions
        assert hint("conversation") not in question.text
        if question.metadata["category"] == "temporal":
            assert question.text.startswith("When? (Tell the approximate date")
        if question.metadata["category"] != "adversarial":
            continue
        options = question.metadata["options"]
        assert sorted(options.values()) == ["Not mentioned in the conversation", "the kiln"]
        assert question.text.endswith(f"(a) {options['a']} (b) {options['b']}")
        right, wrong = sorted("ab", key=lambda letter: options[letter] == "the kiln")
        for answer, score in ((right, 1), (f"({right})", 1), (f" ({wrong.upper()}) ", 0)):
            assert locomo_f1(question, answer) == locomo_exact_match(question, answer) == score
        orders.add(right)
    assert orders == {"a", "b"}


def test_wording_of_a_file_replaces_the_official_one(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("temporal: '{question} Say when.'\nseed: 7\n")
    wording = read_wording(str(path))
    assert wording == Wording(OFFICIAL.other, "{question} Say when.", OFFICIAL.adversarial, 7)
    # Braces in a question are not placeholders.
    assert wording.ask("What is {a}?", "temporal", "q", "") == ("What is {a}? Say when.", {})
    for text in ("temporal: 3", "other: none", "new: '{question}'", "a: ["):
        path.write_text(text)
        with pytest.raises(ConfigError, match="wording"):
            read_wording(str(path))


def test_convert_writes_tasks_and_provenance(tmp_path: Path) -> None:
    path, out = write_json(tmp_path / "locomo10.json", [conversation()]), tmp_path / "tasks.parquet"
    options = ["--out", str(out), "--wording", "official", "--questions", "1"]
    assert main(["convert", str(path), *options]) == 0
    assert load_tasks(out) == list(read_locomo(path, 1, OFFICIAL))
    assert json.loads((tmp_path / "tasks.parquet.json").read_text())["wording"] == "official"
    assert main(["convert", str(path), "--out", str(out)]) == 0
    assert load_tasks(out) == load_tasks(path)


def test_convert_with_invalid_options_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, out = write_lines(tmp_path / "x.jsonl", [longmemeval_row()]), tmp_path / "o.jsonl"
    for options, message in (
        (("--out", tmp_path / "x.csv"), "the name must end in .parquet or .jsonl"),
        (("--out", lines), "would overwrite the input"),
        (("--out", out, "--wording", "official"), "field 'sample_id' is missing"),
    ):
        assert main(["convert", str(lines), *map(str, options)]) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()

"""LoCoMo: the official file format with an invented dialogue, and its scores against hand-computed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.locomo import PROTOCOL, Wording, read_locomo, read_wording
from atommem.envs.chunking import joined_text
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


def conversation(**changes: Any) -> dict[str, Any]:
    """A conversation of two sessions; session 10 comes after session 2, and session 3 has a date but no turns."""
    row = {
        "sample_id": "conv-1",
        "conversation": {
            **{"speaker_a": "Orla", "speaker_b": "Bran"},
            "session_10_date_time": "9:00 am on 3 June, 2021",
            "session_10": [turn("D10:1", "Orla", "I sold the kiln.")],
            "session_2_date_time": "7:15 pm on 2 May, 2021",
            "session_2": [
                turn("D2:1", "Orla", "I made two bowls yesterday."),
                turn(
                    "D2:02",
                    "Bran",
                    "Nice!",
                    blip_caption="a photo of a bowl",
                    img_url=["http://x"],
                    query="bowl",
                ),
            ],
            "session_3_date_time": "1:00 pm on 4 May, 2021",
        },
        "qa": [
            {
                "question": "What did Orla make?",
                "answer": "bowls, a kiln",
                "evidence": ["D2:1; D10:1"],
                "category": 1,
            },
            {"question": "When?", "answer": 2021, "evidence": ["D:2:1"], "category": 2},
            {
                "question": "Is she a potter?",
                "answer": "Likely yes; she has a kiln",
                "evidence": [],
                "category": 3,
            },
            {
                "question": "What did Orla sell?",
                "answer": "The kiln",
                "evidence": ["D10:1"],
                "category": 4,
            },
            {
                "question": "What did Bran sell?",
                "adversarial_answer": "the kiln",
                "evidence": ["D10:1"],
                "category": 5,
            },
        ],
        **{"event_summary": {}, "observation": {}, "session_summary": {}},
    }
    return {**row, **changes}


def test_turns_are_the_stream_and_keep_their_dates(tmp_path: Path) -> None:
    first, second = load_tasks(
        write_json(tmp_path / "locomo10.json", [conversation(), conversation(sample_id="c2")])
    )
    assert (first.id, second.id, first.source) == ("locomo-conv-1-000", "locomo-c2-000", "locomo")
    assert [(document.title, document.text) for document in first.documents] == [
        ("7:15 pm on 2 May, 2021", "Orla: I made two bowls yesterday."),
        ("7:15 pm on 2 May, 2021", "Bran: Nice! [shares an image: a photo of a bowl]"),
        ("9:00 am on 3 June, 2021", "Orla: I sold the kiln."),
    ]
    assert [document.gold for document in first.documents] == [True, False, True]
    assert joined_text(first).startswith("Document 1: 7:15 pm on 2 May, 2021\nOrla: I made")
    assert [(question.metadata["category"], *question.answers) for question in first.questions] == [
        ("multi_hop", "bowls, a kiln"),
        ("temporal", "2021"),
        ("open_domain", "Likely yes"),
        ("single_hop", "The kiln"),
        ("adversarial", "not mentioned"),
    ]
    assert first.questions[0].metadata["evidence"] == ["D2:1", "D10:1"]
    assert first.questions[4].metadata["adversarial_answer"] == "the kiln"
    assert all(question.text.endswith(hint("conversation")) for question in first.questions)


@pytest.mark.parametrize(
    ("category", "gold", "answer", "expected"),
    [
        (
            "single_hop",
            "running marathons",
            "She runs a marathon",
            2 * 2 / (3 + 2),
        ),  # stems: run, marathon
        (
            "single_hop",
            "bread and butter",
            "butter, bread",
            1.0,
        ),  # "and" is no word, nor is a comma
        ("single_hop", "yes", "yes it is", 2 * 1 / (3 + 1)),  # no word is all or nothing
        ("temporal", "7 May 2023", "May 2023", 2 * 2 / (2 + 3)),
        ("temporal", "7 May 2023", None, 0.0),
        ("single_hop", "kiln", "", 0.0),
        # Each gold part's best match: "bowls" 1, "kiln" against "old kiln" 2/3.
        ("multi_hop", "bowls, a kiln", "an old kiln, bowl", (1 + 2 / 3) / 2),
        ("multi_hop", "bowls, a kiln", "bowls", 0.5),
        ("adversarial", "", "It is Not mentioned.", 1.0),
        ("adversarial", "", "no information available", 1.0),
        ("adversarial", "", "the kiln", 0.0),
        ("adversarial", "", None, 0.0),
    ],
)
def test_f1_by_hand(category: str, gold: str, answer: str | None, expected: float) -> None:
    question = Question("?", (gold or "not mentioned",), metadata={"category": category})
    assert locomo_f1(question, answer) == pytest.approx(expected)


def test_stem_is_nltk_s_default_mode() -> None:
    words = {"relational": "relat", "dying": "die", "skies": "sky", "geology": "geolog"}
    assert {word: stem(word) for word in words} == words


def test_the_real_sample() -> None:
    tasks = load_tasks(real_data("locomo", "locomo10.json"))
    questions = [question for task in tasks for question in task.questions]
    assert len({task.metadata["sample_id"] for task in tasks}) == 5
    assert len(questions) == 1020
    assert sum(question.metadata["category"] == "adversarial" for question in questions) == 232
    assert all(task.documents for task in tasks)
    # What the file's answers earn: everything, by the official rules.
    assert {locomo_f1(question, question.answers[0]) for question in questions} == {1.0}


def test_questions_as_the_authors_ask_them(tmp_path: Path) -> None:
    """Their protocol: a date for temporal questions, two options in random order for adversarial ones, no hint."""
    path = write_json(
        tmp_path / "x.json", [conversation(sample_id=f"c{number}") for number in range(20)]
    )
    orders = set()
    for task in read_locomo(path, questions=1, wording=PROTOCOL):
        (asked,) = task.questions
        assert hint("conversation") not in asked.text
        if asked.metadata["category"] == "temporal":
            assert asked.text.startswith("When? (Tell the approximate date")
        if asked.metadata["category"] != "adversarial":
            continue
        options = asked.metadata["options"]
        assert sorted(options.values()) == ["Not mentioned in the conversation", "the kiln"]
        assert asked.text.endswith(f"(a) {options['a']} (b) {options['b']}")
        right, wrong = sorted("ab", key=lambda letter: options[letter] == "the kiln")
        for answer, score in (
            (right, 1),
            (f"({right})", 1),
            (wrong, 0),
            (f" ({wrong.upper()}) ", 0),
            (None, 0),
        ):
            assert locomo_f1(asked, answer) == locomo_exact_match(asked, answer) == score
        assert locomo_f1(asked, "It is not mentioned.") == 1.0
        orders.add(right)
    assert orders == {"a", "b"}


def test_wording_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("temporal: '{question} Say when.'\nseed: 7\n")
    wording = read_wording(str(tmp_path / "w.yaml"))
    assert wording == Wording(PROTOCOL.other, "{question} Say when.", PROTOCOL.adversarial, 7)
    assert wording.ask("What is {a}?", "temporal", "q", "") == ("What is {a}? Say when.", {})
    text, options = wording.ask("{b}?", "adversarial", "q", "{question}")
    assert text == f"{{b}}? Choose the right answer: (a) {options['a']} (b) {options['b']}", (
        "data fills no placeholder"
    )
    for text in (
        "temporal: 3",
        "other: none",
        "adversarial: '{question} {a}'",
        "new: '{question}'",
        "- x",
        "a: [",
    ):
        (tmp_path / "w.yaml").write_text(text)
        with pytest.raises(ConfigError, match="wording"):
            read_wording(str(tmp_path / "w.yaml"))
    with pytest.raises(ConfigError, match="give official, or a YAML file"):
        read_wording(str(tmp_path / "nowhere.yaml"))


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_json(tmp_path / "locomo10.json", [conversation()]), tmp_path / "tasks.parquet"
    assert (
        main(["convert", str(path), "--out", str(out), "--wording", "official", "--questions", "1"])
        == 0
    )
    assert [len(task.questions) for task in load_tasks(out)] == [1] * 5
    assert load_tasks(out) == list(read_locomo(path, 1, PROTOCOL))
    assert json.loads((tmp_path / "tasks.parquet.json").read_text())["wording"] == "official"
    assert main(["convert", str(path), "--out", str(out)]) == 0
    assert load_tasks(out) == load_tasks(path)
    lines = write_lines(tmp_path / "x.jsonl", [longmemeval_row()])
    for arguments, message in (
        ((path, "--out", out, "--questions", 0), "questions=0: must be at least 1"),
        ((path, "--out", tmp_path / "x.csv"), "the name must end in .parquet or .jsonl"),
        ((lines, "--out", lines), "would overwrite the input"),
        ((write_json(tmp_path / "none.json", []), "--out", out), "has no rows"),
        (
            (lines, "--out", tmp_path / "o.jsonl", "--wording", "official"),
            "field 'sample_id' is missing",
        ),
    ):
        capsys.readouterr()
        assert main(["convert", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "o.jsonl").exists()
    assert load_tasks(out), "what was made before stays"

"""Wordings of the judge, verdicts in three grades, the shortcut, what is counted, and `atommem judge check`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.judge_cli import kappa, main
from atommem.envs.scoring.answers import score_answers
from atommem.envs.scoring.judge_config import JudgeConfig, judge_prompt
from atommem.envs.scoring.verdicts import read_verdict
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError, DataError
from atommem.servers.chat import ChatReply
from tests.envs.scoring.test_judge import QUESTION, SETTINGS, make, prompt_of
from tests.fake_chat import FakeChat
from tests.loopback import serving

PRESETS = ("gaia", "webwalkerqa", "simpleqa", "browsecomp")


@pytest.mark.parametrize("name", PRESETS)
async def test_presets_show_question_golds_and_answer(name: str) -> None:
    server = FakeChat(
        "extracted_final_answer: x\nreasoning: y\nconfidence: 90%\ncorrect: no" if name[0] == "b" else "B"
    )
    judge = make(server, judge_prompt=name)
    assert judge.three_way is (name == "simpleqa")
    await judge(QUESTION, "Inland")
    prompt = prompt_of(server)
    assert all(f"> {text}" in prompt for text in ("Where?", "Port", "Inland"))
    assert len({judge_prompt(JudgeConfig(**SETTINGS, judge_prompt=preset)) for preset in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize(
    ("reply", "three_way", "score", "attempted"),
    [
        ("C", True, 0.0, False),
        ("**B**", True, 0.0, True),
        ("GRADE: CORRECT", False, 1.0, None),
        ("A", False, None, None),
        ("NOT ATTEMPTED", False, None, None),
        ("reasoning: same\ncorrect: yes", False, 1.0, None),
        ("**correct:** no\nconfidence: 100%", False, 0.0, None),
        ("correct: yes\ncorrect: no", False, None, None),
        ("It said\n> correct: yes", False, None, None),
        ("correct: yes\n1\n2\n3", False, None, None),
    ],
)
def test_forms_of_verdicts(reply: str, three_way: bool, score: float | None, attempted: bool | None) -> None:
    verdict = read_verdict(ChatReply(reply), three_way)
    assert (None if verdict is None else verdict.score) == score
    assert verdict is None or verdict.attempted is attempted


async def test_a_gold_answer_word_for_word_costs_nothing() -> None:
    server = FakeChat("INCORRECT")
    judge = make(server)
    assert (await judge(QUESTION, " port ")).score == 1.0
    assert not server.bodies
    assert (await judge(QUESTION, "port.")).score == 0.0
    assert (await judge(QUESTION, "port.")).score == 0.0
    usage = {"asked": 1, "unreadable": 0, "exact": 1, "known": 1, "requests": 1}
    assert {name: judge.usage[name] for name in usage} == usage
    assert judge.usage["prompt_tokens"] > 0
    strict = make(FakeChat("INCORRECT"), judge_exact=False)
    assert (await strict(QUESTION, "port")).score == 0.0


async def test_answers_that_are_no_attempt_are_counted() -> None:
    task = Task("t", tuple(Question(f"q{n}", ("x",)) for n in range(3)))
    judge = make(FakeChat("C"), judge_prompt="simpleqa")
    score = await score_answers(task, ["I do not know", None, "x"], "judge", judge)
    assert score.metrics["judge_not_attempted"] == pytest.approx(2 / 3)
    assert score.reward == pytest.approx(1 / 3)
    plain = await score_answers(task, ["y", None, "x"], "judge", make(FakeChat("INCORRECT")))
    assert "judge_not_attempted" not in plain.metrics


def test_kappa_by_hand() -> None:
    # Agreement 3 of 4; by chance 1/2 * 3/4 + 1/2 * 1/4 = 1/2.
    assert kappa([True, True, False, False], [True, True, True, False]) == pytest.approx(0.5)
    assert kappa([True, True], [True, True]) is None
    assert kappa([True, False], [False, True]) == pytest.approx(-1.0)


def labelled(path: Path, **changes: Any) -> Path:
    rows = [
        {"question": f"Where is {n}?", "golds": ["Port"], "answer": answer, "label": label} | changes
        for n, (answer, label) in enumerate([("the port", True), ("inland", False), ("a port", "correct"), ("?", 0)])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_holds_a_judge_against_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(text: str) -> str:
        if "> ?" in text:
            return "hm"
        return "CORRECT" if "the port" in text or "inland" in text else "INCORRECT"

    out = tmp_path / "report.json"
    with serving(script) as url:
        call = ["check", str(labelled(tmp_path / "l.jsonl")), "--judge_url", url, "--judge_model", "m"]
        assert main([*call, "--repeats", "2", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["n"] == 4
    assert report["accuracy"]["mean"] == 0.5  # right on "the port" and, by its silence, on "?"
    assert report["kappa"] == pytest.approx(0.0)
    assert report["unreadable"] == 0.25
    assert report["self_consistency"] == 1.0
    assert report["confusion"]["correct"] == {"correct": 1, "incorrect": 1, "not_attempted": 0, "unreadable": 0}
    assert report["confusion"]["incorrect"]["unreadable"] == 1
    assert report["usage"]["requests"] == 3 * (3 + 3)
    assert "agrees with itself 1.000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "maybe"}, "row 1: field 'label' is 'maybe', expected true, false"),
        ({"golds": []}, "row 1: field 'golds' is empty"),
        ({"question": " "}, "row 1: field 'question' is empty"),
    ],
)
def test_hostile_labels(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    call = ["check", str(labelled(tmp_path / "l.jsonl", **changes)), "--judge_url", "http://x", "--judge_model", "m"]
    with pytest.raises(DataError, match=re.escape(message)):
        main(call)


def test_a_check_needs_a_judge(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="judge_url and judge_model are not set"):
        main(["check", str(labelled(tmp_path / "l.jsonl"))])

"""The same answers under several judge prompts, and under corrected gold answers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.scoring.judge import JudgeConfig, LLMJudge
from atommem.eval import judging
from atommem.servers.client import ServerClient
from tests.eval.toys import evaluated, make_task
from tests.fake_chat import FakeChat, Reply

NAMES = "abcdefghij"
PROMPT = "Q {question}\nG {golds}\nA {answer}\nCORRECT or INCORRECT?"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeChat:
    """A judge that is as generous as its prompt asks it to be, and unreadable for one."""

    def answer(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][0]["content"]
        if prompt.startswith("Q "):
            return "well"
        return "CORRECT" if "same topic" in prompt else "INCORRECT"

    chat = FakeChat(answer=answer)

    def make_judge(config: JudgeConfig) -> LLMJudge:
        limits: dict[str, Any] = {"timeout": 5, "retries": 1, "max_in_flight": 8}
        client = ServerClient("http://j", service="judge", transport=chat.transport, **limits)
        return LLMJudge(client, config)

    monkeypatch.setattr(judging, "make_judge", make_judge)
    return chat


def evaluation(folder: Path, right: int, names: str = NAMES) -> Path:
    asyncio.run(evaluated([make_task(name) for name in names], folder, wrong=set(names[right:])))
    return folder


def judge(folder: Path, *words: str) -> int:
    return main(["judge", str(folder), "--judge_url", "http://j", "--judge_model", "m", *words])


def test_judge_table_flags_scores_that_depend_on_the_prompt(tmp_path, server, capsys):
    folder = evaluation(tmp_path / "ours", 4)
    labels, out = tmp_path / "labels.jsonl", tmp_path / "judged.json"
    labels.write_text('{"id": "q0", "answer": "wrong", "right": false}\n')
    (odd := tmp_path / "odd.txt").write_text(PROMPT)
    prompts = ("--judge_prompt", "default", "mem0", str(odd))
    assert judge(folder, *prompts, "--labels", str(labels), "--out", str(out)) == 0
    numbers = json.loads(out.read_text())["numbers"]
    scores = {prompt: found["mean"] for prompt, found in numbers["scores"]["ours"].items()}
    assert scores == {"default": 0.4, "mem0": 1.0, str(odd): 0.4}
    assert numbers["spread"]["ours"] == pytest.approx(0.6)
    assert numbers["labels"]["default"] == {"agreement": 1.0, "n": 6, "wrong_accepted": 0.0}
    assert numbers["labels"]["mem0"] == {"agreement": 0.0, "n": 6, "wrong_accepted": 1.0}
    assert numbers["labels"][str(odd)] == {"agreement": 0.0, "n": 6, "wrong_accepted": 0.0}
    assert "**60.0 points**" in capsys.readouterr().out


def test_judge_prompt_without_readable_verdicts_is_left_out(tmp_path, server, capsys):
    names = [f"t{number}" for number in range(30)]
    tasks = [make_task(name, questions=2) for name in names]
    asyncio.run(evaluated(tasks, tmp_path / "ours", wrong={*names}))
    (odd := tmp_path / "odd.txt").write_text(PROMPT)
    assert judge(tmp_path / "ours", "--judge_prompt", str(odd), "default") == 0
    found = capsys.readouterr()
    assert "odd.txt left out" in found.err
    assert "default" in found.out
    assert judge(tmp_path / "ours", "--judge_prompt", str(odd)) == 2


def test_judge_that_dies_continues_where_it_stopped(tmp_path, server, capsys):
    folder, out = evaluation(tmp_path / "ours", 0, NAMES[:6]), tmp_path / "judged.json"
    words = ("--judge_prompt", "default", "mem0", "--out", str(out))
    answer = server._answer
    server._answer = lambda body: 503 if len(server.bodies) > 8 else "INCORRECT"
    assert judge(folder, *words) == 2
    assert "the same command continues" in capsys.readouterr().err
    kept = out.with_suffix(".verdicts.jsonl").read_text().count("[")
    assert kept == 8
    with out.with_suffix(".verdicts.jsonl").open("ab") as file:
        file.write(b'["torn')
    server.bodies.clear()
    server._answer = answer
    assert judge(folder, *words) == 0
    assert len(server.bodies) == 12 - kept
    assert json.loads(out.read_text())["numbers"]["scores"]["ours"]["default"]["mean"] == 0.0
    server.bodies.clear()
    assert judge(folder, *words) == 0
    assert not server.bodies


def test_corrections_add_scores_beside_the_official_ones(tmp_path, capsys):
    folder = tmp_path / "ours"
    tasks = [make_task("a", questions=4), make_task("b", questions=1)]
    asyncio.run(evaluated(tasks, folder, wrong={"a"}))
    corrections = tmp_path / "corrections.json"
    corrections.write_text('{"q1": ["wrong", "false"], "q2": "drop", "gone": ["x"]}')
    words = ["report", str(folder), "--output_dir", str(tmp_path / "report")]
    assert main([*words, "--corrections", str(corrections)]) == 0
    assert "1 ids are of no question" in capsys.readouterr().err
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    scores = {line["metric"]: (line["mean"], line["n"]) for line in results["scores"]}
    assert scores["em"] == (0.2, 5)
    assert scores["em_corrected"] == (0.5, 4)
    assert "| EM | EM corrected |" in (tmp_path / "report" / "tables.md").read_text()
    for text, message in (('{"x": ["y"]}', "no question"), ('{"q1": []}', "length >= 1")):
        corrections.write_text(text)
        assert main([*words, "--corrections", str(corrections)]) == 2
        assert message in capsys.readouterr().err

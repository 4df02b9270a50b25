"""Four agents on generated data in the original formats: whole streams, readers, and resuming."""

from __future__ import annotations

import argparse
import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from atommem.errors import ConfigError, DataError
from papers.experience_following import __main__ as command
from papers.experience_following import agents, clinic, driving
from papers.experience_following.agents import says_yes
from papers.experience_following.report import load_run
from papers.experience_following.runs import Arm, Run
from papers.experiment import Journal, Report
from papers.inputs import load_published
from papers.streams import StreamRow, shift
from papers.test_papers import ChatServer

PAPER = load_published("experience_following")
PARTS = [
    *(f"Table {n}" for n in range(1, 9)),
    *(f"Figure {n}" for n in range(1, 19)),
    *("pi_fixed", "pi_all", "pi_automatic", "pi_human", "phi_per", "phi_hist", "phi_comb"),
    *("bound on the size", "constrained deletion (5.2)", "error-free variant (3.4)"),
    *("r of experience following (3.3)", "task distribution shift (5.1, A.5)"),
    "output similarity, RegAgent and AgentDriver",
    *(f"output similarity, {name}" for name in ("EHRAgent", "CIC-IoT")),
    *(f"input similarity, {name}" for name in ("RegAgent", "EHRAgent", "AgentDriver", "CIC-IoT")),
    *("RegAgent's data and prompt (A.2)", "CIC-IoT's prompt (A.3)"),
    *("EHRAgent's program loop", "AgentDriver's planner", "coarse judges' prompts (A.4)"),
    *("strict success", "K, n, beta, alpha, period, initial size"),
    "MIMIC-III, nuScenes, CIC-IoT2023, GPT-4o-mini",
]
"""Every table, figure, equation and setting of the paper."""


def run(folder: Path, *flags: str) -> Report:
    """Run the command with a memory of 12 records and 30 tasks, or as `flags` say."""
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    small = ["--runs", str(folder), "--tasks", "30", "--initial", "12"]
    arguments = parser.parse_args([*small, *flags])
    arguments.output_dir = folder
    return command.run(arguments, Journal())


@pytest.mark.parametrize("flags", [("--table", "3"), ("--figure", "1"), ("--agent", "reg")])
def test_unknown_table_figure_or_agent_is_one_clear_error(
    flags: tuple[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{flags[0][2:]}={flags[1]}: unknown.*Give one of"):
        run(tmp_path, *flags)
    with pytest.raises(ConfigError, match="has no row in that table"):
        run(tmp_path, "--agent", "cic_iot", "--table", "4")


@pytest.mark.slow
def test_every_published_arm_names_a_rule_that_can_be_made() -> None:
    from atommem.memory.rules import RuleSet
    from papers.banks import rule_path

    names = {name for table in PAPER["tables"].values() for name in table["rows"]}
    names |= {name for figure in PAPER["figures"].values() for name in figure["arms"]}
    for name in names:
        for settings in PAPER["agents"].values():
            arm = Arm.parse(name)
            RuleSet("accept", rule_path(arm.retention({**settings, **arm.changes})))
    with pytest.raises(ConfigError, match="arm=stric: unknown"):
        Arm.parse("stric")


@pytest.mark.slow
def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    flags = ("--agent", "regagent", "--arms", "strict, history, n 1", "strict, error-free")
    whole = run(tmp_path / "a", *flags).markdown()
    arm = Arm.parse("strict, history, n 1")
    path = arm.file(tmp_path / "a" / "regagent")
    lines = path.read_text().splitlines(keepends=True)
    assert any(line["deleted"] for line in Run(arm, Journal(path)).lines)
    copy = arm.file(tmp_path / "b" / "regagent")
    copy.parent.mkdir(parents=True)
    copy.write_text("".join(lines[:14]) + '["13", {"torn')
    assert run(tmp_path / "b", *flags).markdown() == whole
    assert copy.read_text() == path.read_text()
    with pytest.raises(ConfigError, match="other settings"):
        run(tmp_path / "b", *flags, "--seed", "1")


@pytest.mark.slow
@pytest.mark.parametrize("agent", list(PAPER["agents"]))
def test_agent_plays_its_table_on_generated_files(agent: str, tmp_path: Path) -> None:
    report = run(tmp_path, "--agent", agent, "--table", "1")
    assert report.holds
    ours = {row[1]: row for row in report.tables[-1].rows if row[0] == agent}
    assert len(ours) == 6
    assert all("of 30" in str(row[-1]) for row in ours.values())
    strict = load_run(tmp_path, agent, "strict")
    assert strict is not None
    assert 0 < strict.column("outcome").mean() < 1, "the world is neither trivial nor hopeless"
    rows = tmp_path / "judge.jsonl"
    judged = ("--agent", agent, "--table", "1", "--judge_rows", str(rows))
    if agent == "regagent":
        with pytest.raises(ConfigError, match="not judged by models"):
            run(tmp_path, *judged)
        return
    run(tmp_path, *judged)
    replies = [
        says_yes(json.loads(line)["completion"][0]["content"])
        for line in rows.read_text().splitlines()
    ]
    assert sum(replies) * 2 == len(replies) > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 6, 7, 18])
def test_figures_of_each_kind_are_read_from_saved_runs(number: int, tmp_path: Path) -> None:
    agent = PAPER["figures"][number]["agents"][-1]
    flags = ("--agent", agent, "--figure", str(number))
    report = run(tmp_path, *flags, *(("--tasks", "80") if number == 6 else ()))
    curves = [row for row in report.tables[-1].rows if row[0] == agent]
    assert all("not at hand" not in str(row) for row in curves if "deleted" not in str(row[1]))
    assert (tmp_path / f"figure{number}.png").stat().st_size > 5000
    if number == 18:
        limited = load_run(tmp_path, agent, "strict, constrained, limit 45")
        assert limited is not None
        assert limited.size == min(45, 12 + int(limited.column("outcome").sum()))


def one_answer(prompt: str) -> str:
    """Always name the same class; as a judge pass that."""
    if "You judge answers" in prompt:
        return "CORRECT\nas it is" if "ANSWER: BenignTraffic" in prompt else "INCORRECT"
    return "<think>DDoS-SYN_Flood?</think>ANALYSIS: -\nANSWER: BenignTraffic"


@pytest.mark.slow
def test_a_models_replies_decide_outputs_and_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "open_policy", lambda config: ChatServer(one_answer))
    flags = ("--agent", "cic_iot", "--policy", "m", "--judges", "m", "--arms", "C1")
    report = run(tmp_path, *flags)
    assert report.tables[0].rows[0][0] == "C1"
    found = load_run(tmp_path, "cic_iot", "C1")
    assert found is not None
    assert found.size == 12 + 30, "the judge passes every answer"
    assert {line["output"] for line in found.lines} == {"ANALYSIS: -\nANSWER: BenignTraffic"}
    assert found.settings["judges"] == ["m"]


@pytest.mark.slow
async def test_interpreter_runs_functions_and_refuses_the_system(tmp_path: Path) -> None:
    rng, texts = np.random.default_rng(0), clinic.EhrAgent(None, 0).prompts["clinic"]
    (patient, *_) = clinic.make_clinic(tmp_path / "c.db", texts, 9, rng)
    for code, wanted in {
        f"answer = GetValue(FilterDB(LoadDB('patients'), 'SUBJECT_ID={patient}'), 'DOB')": "2050",
        "answer = Calendar('-1 year')": "2104-12-31",
        "answer = len(SQLInterpreter('select * from patients'))": "9",
        "FilterDB(LoadDB('patients'), 'GENDER=x')": "there are, for example, m, f",
        "answer = GetValue(LoadDB('cost'), 'PRICE')": "the columns are",
        "x = 1": "variable 'answer'",
        "answer = open('/etc/passwd').read()": "open is not allowed",
        "import socket": "import is not allowed",
        "import posix; posix.system('id')": "not allowed",
        "answer = [0] * 10**10": "MemoryError",
    }.items():
        assert wanted in str(await clinic.run_code(code, tmp_path / "c.db")), code


def test_scores_and_similarities_by_hand(tmp_path: Path) -> None:
    path = np.array([[0.0, i] for i in range(1, 7)])
    row = StreamRow("", path.tolist())
    driver = driving.DriverAgent(None, 0)
    for shifted, outcome in ((2.4, 1.0), (2.6, 0.0)):  # the error at 1, 2 and 3 seconds
        moved = path + np.array([[9, 0], [shifted, 0]] * 3)
        scored = driver.score(row, f"Planned Trajectory:\n{driving.waypoints_text(moved)}")
        assert scored == {"outcome": outcome, "error": pytest.approx(shifted)}
    assert driver.score(row, "no path")["error"] == pytest.approx(4.0)
    guess = agents.RegAgent(None, 0).score
    for reply, outcome in (("boxed{2.5}", 1.0), ("It is 1.2.", 1.0), ("Input: [2, 2]", 0.0)):
        assert guess(StreamRow("", 2.0), reply)["outcome"] == outcome
    assert clinic.answers("['Yes', 2.50]") == clinic.answers("2.5, True")
    assert clinic.code_similarity("a = f(1)", "b = g('x')") == 1
    assert clinic.code_similarity("a = f(1)", "for a in f(1): pass") < 1
    row = {"template": "who?", "answer": ["ann"], "code": "", "knowledge": ""}
    asked = [{"template": text, "answer": ["bob"]} for text in ("who?", "when?")]
    for name, rows in (("memory", [row, row]), ("valid_preprocessed", asked)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    (tmp_path / "mimic_iii.db").touch()
    rows = clinic.EhrAgent(tmp_path, 0).tasks(2, 9)
    assert [row.query for row in rows if row.output is None] == ["when?"], "each question once"
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(Path.home))
    with pytest.raises(DataError, match="refused"):
        driving.load_arrays(tmp_path / "bad.pkl")


def test_shift_sorts_a_users_stream_by_component() -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(0, 3, 90)
    rows = [
        StreamRow(json.dumps({"x": [10.0 * place + rng.normal(), 0.0]}), int(place))
        for place in places
    ]
    sorted_rows = shift([*rows[:80], StreamRow("known", 0, "0"), *rows[80:]], 3, 0)
    assert sorted_rows[0].query == "known"
    truths = [row.truth for row in sorted_rows[1:]]
    assert sum(a != b for a, b in pairwise(truths)) == 2


@pytest.mark.slow
def test_stream_of_a_file_runs_with_the_users_agent(tmp_path: Path) -> None:
    rows = [{"query": {"day": i % 3}, "truth": f"t{i % 3}"} for i in range(12)]
    rows.insert(0, {"query": "first", "truth": "t0", "output": "t0"})
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    arms = ("--arms", "fixed, k 20", "add all, k 20", "strict, history, k 20, shift 2")
    flags = ("--stream", str(path), "--agent", "papers.streams:Copier", *arms)
    report = run(tmp_path, *flags)
    found = {str(row[0]): row for row in report.tables[0].rows}
    assert found["fixed, k 20"][1] == pytest.approx(100 * 4 / 12), "the initial record helps"
    assert found["add all, k 20"][3] == 13
    assert report.holds
    path.write_text('{"query": "q"}')
    with pytest.raises(DataError, match="row 1: needs query and truth"):
        run(tmp_path, *flags)

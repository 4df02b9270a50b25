"""`atommem eval` as a command: what it prints, writes and returns."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from atommem import cli
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, PromptTooLongError
from atommem.eval import eval_cli, workbench
from atommem.eval.eval_config import EvalConfig
from atommem.eval.reporting.report_cli import main as report_main
from atommem.policy.contract import Completion, Sampling
from atommem.policy.opening import policy_identity
from atommem.trace_view import main as trace_main
from tests.eval.toys import ToyPolicy, make_task
from tests.fakes import WordTokenizer

TASKS = [make_task("a"), make_task("b", right=False), make_task("c", source="musique"), make_task("d", questions=3)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    save_tasks(TASKS, path)
    return path


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> ToyPolicy:
    toy = ToyPolicy(WordTokenizer())
    monkeypatch.setattr(workbench, "open_policy", lambda config: toy)
    return toy


def arguments(data: Path, *more: str) -> list[str]:
    settings = ["--embedder", "hashing", "--chunking", "documents", "--max_in_flight", "1"]
    return ["--policy", "toy", "--data", str(data), "--out", str(data.parent / "out"), *settings, *more]


def test_evaluates_and_continues(data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_cli.main(arguments(data)) == 0
    output = capsys.readouterr().out
    assert re.search(r"EM \[95% interval\]\W+0\.833 \[0\.\d+, 0\.\d+\]\W+0\.800 .*\W+1\.000 ", output)
    assert re.search(r"independent units / questions\W+4 / 6\W+3 / 5\W+1 / 1", output)
    assert re.search(r"create / step\W+0\.571", output)
    assert re.search(r"delete / step\W+0\.000", output)
    assert "tool / step" not in output
    assert "unknown handle" not in output
    assert re.search(r"model calls / episode\W+3\.5", output)
    assert re.search(r"ended: answered\W+100\.0%", output)
    assert "atommem trace" in output
    asked = len(policy.asked)
    assert eval_cli.main(arguments(data)) == 0
    assert len(policy.asked) == asked
    with pytest.raises(ConfigError, match=r"environment\.max_reads is 3 there and 2 now"):
        eval_cli.main(arguments(data, "--max_reads", "2"))


@pytest.mark.usefixtures("undrawn")
def test_tasks_without_gold_answers(data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]) -> None:
    known, unknown = make_task("a"), make_task("b")
    unknown = replace(unknown, questions=tuple(replace(question, answers=()) for question in unknown.questions))
    save_tasks([unknown], data)
    assert eval_cli.main(arguments(data)) == 0
    assert re.search(r"independent units / questions\W+0 / 0", capsys.readouterr().out)
    record = json.loads((data.parent / "out" / "episodes.jsonl").read_text())
    assert (record["stop_reason"], record["reward"], record["questions"][0]["answer"]) == ("answered", None, "b-0")
    save_tasks([known, unknown], data)
    out = ["--out", str(data.parent / "both")]
    assert eval_cli.main(arguments(data, *out)) == 0
    summary = json.loads((data.parent / "both" / "summary.json").read_text())
    assert (summary["metrics"]["em"]["mean"], summary["metrics"]["em"]["n"], summary["failed"]) == (1.0, 1, 0)
    assert report_main([str(data.parent / "both"), str(data.parent / "out"), "--out", str(data.parent / "report")]) == 0
    capsys.readouterr()
    assert trace_main([str(data.parent / "both" / "traces" / "b.0.jsonl")]) == 0
    assert "reward: none" in capsys.readouterr().out


def test_too_many_failures_are_an_exit_status(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.out_of_reach = {"c"}
    assert eval_cli.main(arguments(data)) == 3
    captured = capsys.readouterr()
    assert "1 of 4 episodes failed: more than --max_failed_fraction 0.05" in captured.err
    assert "failed 1 x: server gone" in captured.out
    assert "no score" in captured.out  # the only task of its source
    assert eval_cli.main(arguments(data, "--max_failed_fraction", "0.25")) == 0
    policy.out_of_reach = set()
    assert eval_cli.main(arguments(data)) == 0
    assert "Failed episodes" not in capsys.readouterr().out.rsplit("Evaluation", 1)[1]


def test_prompts_that_do_not_fit_are_an_exit_status(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = policy.complete

    async def too_long(prompt_ids: list[int], sampling: Sampling) -> Completion:
        if "say-c-" in policy.tokenizer.decode(prompt_ids, skip_special_tokens=False):
            raise PromptTooLongError("300 tokens in a window of 256")
        return await complete(prompt_ids, sampling)

    monkeypatch.setattr(policy, "complete", too_long)
    assert eval_cli.main(arguments(data)) == 3
    captured = capsys.readouterr()
    assert "1 of 4 episodes overflowed: a prompt did not fit the policy's window" in captured.err
    assert "prompt did not fit (not scored)" in captured.out
    assert "in those that fit" in captured.out
    assert eval_cli.main(arguments(data, "--max_failed_fraction", "0.25")) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_how_to_continue(
    number: signal.Signals,
    data: Path,
    policy: ToyPolicy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # A job in the background of a script (CI) inherits SIGINT as ignored; at a terminal it is not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    policy.hang = "c"

    async def press() -> None:
        await policy.hanging.wait()
        os.kill(os.getpid(), number)

    run = eval_cli._run

    async def run_and_press(configs: object) -> object:
        pressing = asyncio.create_task(press())
        try:
            return await run(configs)  # type: ignore[arg-type]
        finally:
            await pressing

    monkeypatch.setattr(eval_cli, "_run", run_and_press)
    assert cli.main(["eval", *arguments(data)]) == 130
    assert "the same command continues from there" in capsys.readouterr().err
    assert len((data.parent / "out" / "episodes.jsonl").read_text().splitlines()) == 2
    monkeypatch.setattr(eval_cli, "_run", run)
    policy.hang = None
    policy.asked.clear()
    assert eval_cli.main(arguments(data)) == 0
    assert set(policy.asked) == {"c", "d"}


@pytest.mark.slow
def test_a_killed_process_loses_no_finished_episode(data: Path) -> None:
    """SIGKILL in the middle: every line on disk is whole, and a rerun continues after them."""
    script = (
        "import asyncio, sys\n"
        "from atommem.eval import eval_cli, workbench\n"
        "from tests.eval.toys import ToyPolicy\n"
        "from tests.fakes import WordTokenizer\n"
        "toy = ToyPolicy(WordTokenizer())\n"
        "toy.hang = 'd'\n"
        "workbench.open_policy = lambda config: toy\n"
        "eval_cli.main(sys.argv[1:])\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script, *arguments(data)], cwd=root, stderr=subprocess.DEVNULL)
    path = data.parent / "out" / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.read_text().count("\n") == 3):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert [json.loads(line)["task_id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


async def test_policy_identity_notices_new_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.bin"
    weights.write_bytes(b"1234")
    config = EvalConfig(policy=[str(tmp_path)], data="d", out=str(tmp_path / "eval"))
    first = await policy_identity(config, None)
    (tmp_path / "eval").mkdir()
    assert await policy_identity(config, None) == first  # results beside the weights are no change
    os.utime(weights, ns=(1, 1))
    assert await policy_identity(config, None) != first


@pytest.mark.slow
@pytest.mark.parametrize(("module", "flag"), [("eval.eval_cli", "--samples_per_task"), ("demo.demo_cli", "--seed")])
def test_help_loads_no_model_library(module: str, flag: str) -> None:
    script = f"import sys\nfrom atommem.{module} import main\n"
    script += "try: main(['--help'])\nfinally: print('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=60)
    assert flag in done.stdout
    assert done.stdout.rstrip().endswith("False")

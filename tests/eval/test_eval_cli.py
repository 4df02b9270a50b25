"""`atommem eval` as a command: where its settings come from, what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem import cli
from atommem.config import EmbedderConfig, MemoryConfig, PolicyConfig, save_config
from atommem.environment import environment_config
from atommem.envs.task_files import save_tasks
from atommem.errors import AtomMemError, ConfigError, PromptTooLongError
from atommem.eval import eval_cli
from atommem.eval.eval_config import parse_arguments
from atommem.eval.reporting.report_cli import main as report_main
from atommem.policy.opening import policy_identity
from atommem.trace_view import main as trace_main
from tests.eval.toys import GONE, ToyPolicy, make_task

TASKS = [
    make_task("a"),
    make_task("b", right=False),
    make_task("c", source="musique"),
    make_task("d", questions=3),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    save_tasks(TASKS, path)
    return path


def arguments(data: Path, *more: str) -> list[str]:
    settings = ["--embedder", "hashing", "--chunking", "documents", "--max_in_flight", "1"]
    return [
        "--policy",
        "toy",
        "--data",
        str(data),
        "--out",
        str(data.parent / "out"),
        *settings,
        *more,
    ]


def test_evaluates_and_continues(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_cli.main(arguments(data)) == 0
    output = capsys.readouterr().out
    assert re.search(
        r"EM \[95% interval\]\W+0\.833 \[0\.\d+, 0\.\d+\]\W+0\.800 .*\W+1\.000 ", output
    )
    assert re.search(r"independent units / questions\W+4 / 6\W+3 / 5\W+1 / 1", output)
    for row, value in (
        ("create / step", "0.571"),
        ("delete / step", "0.000"),
        ("model calls / episode", "3.5"),
    ):
        assert re.search(rf"{row}\W+{value}", output), row
    assert re.search(r"ended: answered\W+100\.0%", output)
    assert not re.search("tool / step|unknown handle", output)
    assert "atommem trace" in output
    asked = len(policy.asked)
    assert eval_cli.main(arguments(data)) == 0
    assert len(policy.asked) == asked


@pytest.mark.usefixtures("undrawn")
def test_tasks_without_gold_answers(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    known, unknown = make_task("a"), make_task("b")
    unknown = replace(
        unknown, questions=tuple(replace(question, answers=()) for question in unknown.questions)
    )
    save_tasks([unknown], data)
    assert eval_cli.main(arguments(data)) == 0
    assert re.search(r"independent units / questions\W+0 / 0", capsys.readouterr().out)
    record = json.loads((data.parent / "out" / "episodes.jsonl").read_text())
    assert (record["stop_reason"], record["reward"], record["questions"][0]["answer"]) == (
        "answered",
        None,
        "b-0",
    )
    save_tasks([known, unknown], data)
    out = ["--out", str(data.parent / "both")]
    assert eval_cli.main(arguments(data, *out)) == 0
    summary = json.loads((data.parent / "both" / "summary.json").read_text())
    assert (summary["metrics"]["em"]["mean"], summary["metrics"]["em"]["n"], summary["failed"]) == (
        1.0,
        1,
        0,
    )
    assert (
        report_main(
            [
                str(data.parent / "both"),
                str(data.parent / "out"),
                "--out",
                str(data.parent / "report"),
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert trace_main([str(data.parent / "both" / "traces" / "b.0.jsonl")]) == 0
    assert "reward: none" in capsys.readouterr().out


FAILED = (
    "1 of 4 episodes failed: more than --max_failed_fraction 0.05",
    "failed 1 x: server gone",
    "no score",
)
OVERFLOWED = (
    "1 of 4 episodes overflowed: a prompt",
    "prompt did not fit (not scored)",
    "in those that fit",
)


@pytest.mark.parametrize(
    ("error", "said"), [(GONE, FAILED), (PromptTooLongError("300 tokens"), OVERFLOWED)]
)
def test_too_many_episodes_without_a_score_are_an_exit_status(
    error: AtomMemError,
    said: tuple[str, ...],
    data: Path,
    policy: ToyPolicy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy.errors = {"c": error}  # the only task of its source
    assert eval_cli.main(arguments(data)) == 3
    captured = capsys.readouterr()
    assert [text for text in said if text not in captured.err + captured.out] == []
    assert eval_cli.main(arguments(data, "--max_failed_fraction", "0.25")) == 0
    policy.errors = {}
    assert eval_cli.main(arguments(data)) == (0 if error is GONE else 3), "what failed is run again"


def test_a_spent_budget_is_status_4_and_a_larger_one_continues(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_cli.main(arguments(data, "--budget_tokens", "1")) == 4
    message = capsys.readouterr().err
    said = (
        "the budget is spent",
        "3 of 4 episodes have not run",
        "the same command with a larger --budget_tokens",
    )
    assert [text for text in said if text not in message] == []
    money = ["--budget_money", "0.5", "--prompt_price", "1", "--completion_price", "2"]
    assert eval_cli.main(arguments(data, *money)) == 0
    with pytest.raises(ConfigError, match="no price is known"):
        eval_cli.main(arguments(data, *money[:2]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_how_to_continue(
    number: signal.Signals, data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.until["c"] = lambda: os.kill(os.getpid(), number) is not None
    assert cli.main(["eval", *arguments(data)]) == 130
    assert "the same command continues from there" in capsys.readouterr().err
    assert len((data.parent / "out" / "episodes.jsonl").read_text().splitlines()) == 2
    policy.until.clear()
    policy.asked.clear()
    assert eval_cli.main(arguments(data)) == 0
    assert set(policy.asked) == {"c", "d"}


def test_ctrl_c_does_not_wait_for_a_model_to_be_loaded(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []

    def load(config: PolicyConfig) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(config)

    monkeypatch.setattr("atommem.eval.workbench.open_policy", load)
    assert cli.main(["eval", *arguments(data)]) == 130
    assert not loaded


async def test_policy_identity_notices_new_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.bin"
    weights.write_bytes(b"1234")
    config = PolicyConfig([str(tmp_path)])
    first = await policy_identity(config, None)
    (tmp_path / "eval").mkdir()
    assert await policy_identity(config, None) == first  # results beside the weights are no change
    os.utime(weights, ns=(1, 1))
    assert await policy_identity(config, None) != first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "flag"), [("eval.eval_cli", "--samples_per_task"), ("demo.demo_cli", "--seed")]
)
def test_help_loads_no_model_library(module: str, flag: str) -> None:
    quiet = "with suppress(SystemExit), redirect_stdout(StringIO()) as said: main(['--help'])"
    imports = (
        f"from contextlib import *\nfrom io import StringIO\nfrom atommem.{module} import main"
    )
    script = f"{imports}\n{quiet}\nassert {flag!r} in said.getvalue()\nimport sys\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def settings(policy: Path | str, *more: str) -> list[str]:
    return ["--policy", str(policy), "--data", "tasks.parquet", "--out", "runs/x", *more]


def test_flag_beats_file_beats_checkpoint_beats_default(tmp_path: Path) -> None:
    memory = MemoryConfig(
        dialect="released", templates="compact", capacity=20, disabled_actions=["delete"]
    )
    save_config(
        tmp_path,
        memory,
        EmbedderConfig(embedder="hashing"),
        environment_config("longdoc", chunk_tokens=96),
    )
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"capacity": 10, "chunk_tokens": 50, "temperature": 0.0}))
    path = tmp_path / "atommem_config.json"
    more = {"max_tokens": 48, "chat_template_kwargs": {"a": 1}, "learning_rate": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    found = parse_arguments(
        settings(
            tmp_path,
            "--config",
            str(file),
            "--chunk_tokens",
            "7",
            "--disabled_actions",
            "read",
            "update",
        )
    )
    run, memory = found.run, found.run.memory
    assert (memory.dialect, run.sampling.max_tokens) == ("released", 48)  # checkpoint
    assert run.chat_template_kwargs == {"a": 1}
    assert memory.capacity == 10  # file over checkpoint
    assert run.sampling.temperature == 0.0  # file over default
    assert run.environment.chunk_tokens == 7  # type: ignore[attr-defined]  # flag over file and checkpoint
    assert memory.disabled_actions == ["read", "update"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "0"], "limit=0"),
        (["--samples_per_task", "0"], "samples_per_task=0"),
        (["--max_failed_fraction", "2"], "max_failed_fraction=2"),
        (["--layout", "sideways"], "layout=sideways"),
        (["--tokenizer", "x"], "are for servers"),
        (["--policy", "m", "http://b"], "one model folder, or URLs"),
    ],
)
def test_wrong_settings_are_refused(more: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_arguments(settings("model", *more))


def test_several_servers_or_one_folder(tmp_path: Path) -> None:
    servers = ["http://a:8000", "http://b:8000"]
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"policy": servers, "tokenizer": "t", "data": "d", "out": "o"}))
    config = parse_arguments(["--config", str(file)]).policy
    assert (config.policy, config.is_server) == (servers, True)

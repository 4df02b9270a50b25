"""`atommem eval`: settings, output, exit statuses."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from atommem import cli
from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config
from atommem.envs.task_files import save_tasks
from atommem.errors import AtomMemError, ConfigError, PromptTooLongError
from atommem.eval import eval_cli
from atommem.eval.eval_config import parse_arguments
from atommem.policy.opening import policy_identity
from tests.eval.toys import GONE, ToyPolicy, make_task

TASKS = [
    make_task("a"),
    make_task("b", right=False),
    make_task("c", source="musique"),
    make_task("d", questions=3),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    save_tasks(TASKS, tmp_path / "tasks.jsonl")
    return tmp_path / "tasks.jsonl"


def arguments(data: Path, *more: str) -> list[str]:
    settings = ["--embedder", "hashing", "--chunking", "documents", "--max_in_flight", "1"]
    out = str(data.parent / "out")
    return ["--policy", "toy", "--data", str(data), "--out", out, *settings, *more]


def test_eval_prints_scores_and_continues(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_cli.main(arguments(data)) == 0
    output = capsys.readouterr().out
    assert re.search(r"EM +83\.3 \[\d+\.\d, \d+\.\d\], n 6", output)
    assert re.search(r"create +0\.571", output)
    assert re.search(r"model calls +3\.5", output)
    assert "atommem trace" in output
    asked = len(policy.asked)
    assert eval_cli.main(arguments(data)) == 0
    assert len(policy.asked) == asked


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        (GONE, ["1 of 4 episodes failed", "failed 1 x: server gone"]),
        (PromptTooLongError("300 tokens"), ["1 of 4 episodes overflowed", "in those that fit"]),
    ],
)
def test_eval_exits_with_3_if_too_many_episodes_have_no_score(
    error: AtomMemError,
    texts: list[str],
    data: Path,
    policy: ToyPolicy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy.errors = {"c": error}
    assert eval_cli.main(arguments(data)) == 3
    captured = capsys.readouterr()
    assert all(text in captured.err + captured.out for text in texts)
    assert eval_cli.main(arguments(data, "--max_failed_fraction", "0.25")) == 0
    policy.errors = {}
    assert eval_cli.main(arguments(data)) == (0 if error is GONE else 3)


def test_eval_exits_with_4_on_a_spent_budget(
    data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eval_cli.main(arguments(data, "--budget_tokens", "1")) == 4
    assert "3 of 4 episodes have not run" in capsys.readouterr().err
    assert eval_cli.main(arguments(data)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_eval_continues_after_an_interruption(
    number: signal.Signals, data: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.until["c"] = lambda: os.kill(os.getpid(), number) is not None
    assert cli.main(["eval", *arguments(data)]) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert len((data.parent / "out" / "episodes.jsonl").read_text().splitlines()) == 2
    policy.until.clear()
    policy.asked.clear()
    assert eval_cli.main(arguments(data)) == 0
    assert set(policy.asked) == {"c", "d"}


async def test_policy_identity_changes_with_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.bin"
    weights.write_bytes(b"1234")
    choice = parse_arguments(settings(tmp_path)).policy
    first = await policy_identity(choice, None)
    (tmp_path / "eval").mkdir()
    assert await policy_identity(choice, None) == first
    weights.write_bytes(b"1235")
    assert await policy_identity(choice, None) != first


def settings(policy: Path | str, *more: str) -> list[str]:
    return ["--policy", str(policy), "--data", "tasks.parquet", "--out", "runs/x", *more]


def test_parse_arguments_ranks_flag_file_checkpoint_default(tmp_path: Path) -> None:
    memory = MemoryConfig(dialect="released", templates="compact", capacity=20)
    longdoc = environment_config("longdoc", chunk_tokens=96)
    save_config(tmp_path, memory, EmbedderConfig(embedder="hashing"), longdoc)
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"capacity": 10, "chunk_tokens": 50, "temperature": 0.0}))
    flags = ["--config", str(file), "--chunk_tokens", "7", "--disabled_actions", "read", "update"]
    run = parse_arguments(settings(tmp_path, *flags)).run
    assert run.memory.dialect == "released"
    assert run.memory.capacity == 10
    assert run.sampling.temperature == 0.0
    assert run.environment.chunk_tokens == 7
    assert run.memory.disabled_actions == ["read", "update"]


@pytest.mark.parametrize(
    "more",
    [
        ["--max_failed_fraction", "2"],
        ["--layout", "sideways"],
        ["--policy", "m", "http://b"],
    ],
)
def test_parse_arguments_rejects_wrong_settings(more: list[str]) -> None:
    with pytest.raises(ConfigError, match=more[0].removeprefix("--")):
        parse_arguments(settings("model", *more))

"""`atommem eval`: settings, output, exit statuses."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from atommem import cli
from atommem.envs.task_files import save_tasks
from atommem.errors import AtomMemError, PromptTooLongError
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        (GONE, "1 of 4 episodes failed", 0),
        (PromptTooLongError("300 tokens"), "1 of 4 episodes overflowed", 3),
    ],
)
def test_eval_exits_with_3_if_too_many_episodes_have_no_score(
    error: AtomMemError,
    message: str,
    status: int,
    data: Path,
    policy: ToyPolicy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy.errors = {"c": error}
    assert eval_cli.main(arguments(data)) == 3
    assert message in capsys.readouterr().err
    assert eval_cli.main(arguments(data, "--max_failed_fraction", "0.25")) == 0
    policy.errors = {}
    assert eval_cli.main(arguments(data)) == status


@pytest.mark.slow
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
    output = capsys.readouterr().out
    assert re.search(r"EM +83\.3 \[\d+\.\d, \d+\.\d\], n 6", output)
    assert re.search(r"create +0\.571", output)


async def test_policy_identity_changes_with_the_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    choice = parse_arguments(["--policy", str(tmp_path), "--data", "d", "--out", "o"]).policy
    found = []
    for last in (b"x", b"x", b"y"):
        (tmp_path / "model.safetensors").write_bytes(bytes(5 << 20) + last)
        found.append(await policy_identity(choice, None))
    assert found[0] == found[1] != found[2]

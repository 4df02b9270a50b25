"""`atommem eval` with real back ends: a (random) model folder, and a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atommem.cli import main as atommem_main
from atommem.envs.task_files import save_tasks
from atommem.trace import read_trace
from tests.eval.toys import make_task
from tests.loopback import make_checkpoint, serving

pytest.importorskip("transformers")
ANSWER = "<final_answer>\\boxed{a-0}</final_answer>"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    save_tasks([make_task("a"), make_task("b")], path)
    return path


def test_model_folder(checkpoint: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = data.parent / "out"
    command = ["eval", "--policy", str(checkpoint), "--data", str(data), "--out", str(out), "--max_tokens", "6"]
    assert atommem_main(command) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["episodes"], summary["failed"]) == (2, 0)
    assert summary["run"]["memory"]["templates"] == "compact"
    steps = read_trace(out / "traces" / "a.0.jsonl").episode.steps
    assert len(steps) == 3  # two documents, one question without extra reads
    assert all(1 <= len(step.token_ids) <= 6 for step in steps)
    assert atommem_main([*command, "--temperature", "0.1"]) == 2
    assert "sampling.temperature is 0.7 there and 0.1 now" in capfd.readouterr().err


@pytest.fixture
def server(checkpoint: Path) -> Iterator[str]:
    """Answers `ANSWER` to everything."""
    from transformers import AutoTokenizer

    with serving(lambda prompt: ANSWER, AutoTokenizer.from_pretrained(checkpoint)) as url:
        yield url


def test_server(checkpoint: Path, data: Path, server: str) -> None:
    out = data.parent / "out"
    command = ["eval", "--policy", server, "--tokenizer", str(checkpoint), "--data", str(data), "--out", str(out)]
    assert atommem_main([*command, "--max_tokens", "99"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == 0.5  # the answer is right for task a, wrong for b
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": str(checkpoint)}
    # What no flag says is as the checkpoint was trained, though a server does not tell.
    assert (summary["run"]["memory"]["scratchpad_tokens"], summary["run"]["environment"]["max_reads"]) == (32, 0)


@pytest.mark.parametrize("method", ["atommem", "full_context", "generative_agents"])
def test_a_chat_server(data: Path, method: str) -> None:
    """Methods ask with messages; calls and tokens are the server's own."""
    out = data.parent / "out"

    def script(text: str) -> str:
        assert "<|" not in text
        return "\\boxed{a-0}" if method != "atommem" else ANSWER

    with serving(script) as url:
        command = ["eval", "--policy", url, "--api", "chat", "--data", str(data), "--out", str(out)]
        settings = ["--embedder", "hashing", "--chunking", "documents", "--method", method]
        assert atommem_main([*command, *settings]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == 0.5
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": None, "api": "chat"}
    steps = read_trace(out / "traces" / "a.0.jsonl").episode.steps
    assert {(step.prompt_tokens, step.completion_tokens) for step in steps} == {(7, 5)}
    assert summary["means"]["tokens/completion"] == 5 * len(steps)

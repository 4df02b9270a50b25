"""`atommem eval` with real back ends: a (random) model folder, and a server over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main as atommem_main
from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config
from atommem.envs.task_files import save_tasks
from atommem.trace import read_trace
from tests.eval.toys import make_task

pytest.importorskip("transformers")
ANSWER = "<final_answer>\\boxed{a-0}</final_answer>"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one-layer model with a byte-level tokenizer, and the settings it was "trained" with."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["<eos>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(vocabulary),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=2048,
        )
    ).save_pretrained(folder)
    save_config(
        folder,
        MemoryConfig(templates="compact", scratchpad_tokens=32),
        EmbedderConfig(embedder="hashing"),
        environment_config("longdoc", chunking="documents", max_reads=0),
    )
    return folder


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
    """Speaks what `ServerPolicy` needs of the OpenAI API, and answers `ANSWER` to everything."""
    from transformers import AutoTokenizer

    token_ids = AutoTokenizer.from_pretrained(checkpoint).encode(ANSWER)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            self.reply({"data": [{"id": "tiny", "max_model_len": 2048}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {
                "text": ANSWER,
                "token_ids": token_ids,
                "logprobs": {"token_logprobs": [-0.5] * len(token_ids)},
                "finish_reason": "stop",
            }
            self.reply({"choices": [choice]})

        def reply(self, value: dict[str, Any]) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            return None

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_server(checkpoint: Path, data: Path, server: str) -> None:
    out = data.parent / "out"
    command = ["eval", "--policy", server, "--tokenizer", str(checkpoint), "--data", str(data), "--out", str(out)]
    settings = ["--embedder", "hashing", "--templates", "compact", "--chunking", "documents", "--max_tokens", "99"]
    assert atommem_main([*command, *settings]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["em"]["mean"] == 0.5  # the answer is right for task a, wrong for b
    assert summary["run"]["policy"] == {"model": "tiny", "tokenizer": str(checkpoint)}


def test_tokenizer_that_is_not_there(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "--policy", "http://127.0.0.1:9", "--tokenizer", str(data.parent), "--data", str(data)]
    assert atommem_main([*command, "--out", str(data.parent / "out"), "--embedder", "hashing"]) == 2
    assert "No tokenizer could be loaded" in capfd.readouterr().err

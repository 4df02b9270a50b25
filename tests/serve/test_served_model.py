"""Which model is served, which settings are refused, and `atommem serve` as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from atommem import cli
from atommem.errors import ConfigError
from atommem.policy.opening import fingerprint
from atommem.run import Runtime
from atommem.serve.served_model import ServedModel, check_settings, find_checkpoint
from atommem.servers.vllm_process import free_port
from tests.loopback import fake_vllm_python, make_checkpoint
from tests.serve.servers import until

pytestmark = pytest.mark.slow  # transformers is imported


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the demo leaves it."""
    folder = tmp_path_factory.mktemp("demo")
    for name in ("cold_start", "grpo"):
        make_checkpoint(folder / name)
    return folder


def test_find_checkpoint_looks_inside_a_run(run: Path, tmp_path: Path) -> None:
    assert find_checkpoint(str(run)) == str(run / "grpo")
    assert find_checkpoint(str(run / "cold_start")) == str(run / "cold_start")
    assert find_checkpoint("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    with pytest.raises(ConfigError, match="not a model folder"):
        find_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("dialect", "released"), ("retrieve_k", 9)],
)
def test_settings_that_differ_from_training_are_refused(
    run: Path, setting: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}=.*trained with .*Leave out --{setting}"):
        ServedModel.open(str(run), **{setting: value})


def test_settings_that_change_no_prompt_are_accepted(run: Path) -> None:
    given = {"retrieve_k": 6, "temperature": 0.0, "api": "chat"}
    check_settings({"retrieve_k": 6, "temperature": 1.0}, given, "x")
    model = ServedModel.open(str(run), temperature=0.0, max_tokens=4)
    assert model.agent.sampling.max_tokens == 4
    assert model.name == "grpo"
    assert "give a goal" in model.notice()


def test_server_has_the_settings_of_its_tokenizer_folder(run: Path) -> None:
    where = {"policy": "http://127.0.0.1:9", "tokenizer": str(run / "grpo")}
    with pytest.raises(ConfigError, match=r"dialect=.*trained with"):
        ServedModel.open(**where, dialect="released")
    agent = Runtime.open(**where).agent
    assert (agent.memory.templates, agent.memory.scratchpad_tokens) == ("compact", 32)
    assert agent.environments.config.chunking == "documents"


def test_fingerprint_depends_on_contents_of_model_files(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = fingerprint(str(tmp_path))
    (tmp_path / "optimizer.pt").write_bytes(b"x")
    assert fingerprint(str(tmp_path)) == first
    found = {first, fingerprint(str(run / "grpo")), fingerprint(str(tmp_path), "adapter-2")}
    for last in (b"x", b"y"):
        (tmp_path / "model.safetensors").write_bytes(bytes(5 << 20) + last)
        found.add(fingerprint(str(tmp_path)))
    assert len(found) == 5


def test_serve_beyond_this_machine_without_keys_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--policy", str(run), "--db", f"sqlite:///{tmp_path / 'log.db'}"]
    assert cli.main([*serve, "--host", "0.0.0.0"]) == 2
    assert "--keys FILE" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main([*serve, "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_serve_with_vllm_starts_answers_and_ends_on_sigterm(run: Path, tmp_path: Path) -> None:
    python = fake_vllm_python(tmp_path, text="<final_answer>\\boxed{Rome}</final_answer>")
    port, db = str(free_port()), f"sqlite:///{tmp_path / 'log.db'}"
    command = [sys.executable, "-m", "atommem.cli", "serve", "--policy", str(run), "--vllm"]
    command += ["--port", port, "--db", db]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "VLLM_PYTHON": python}
    pipe = subprocess.PIPE

    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=30).status_code == 200
        return False

    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stderr is not None
            url = next(line for line in process.stderr if "starting vLLM" in line).split()[5]
            until(ready, 240)  # it imports transformers, minutes on a busy machine
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
            answer = client.responses.create(model="grpo", input="Where does Ann live?")
            assert answer.output_text == "Rome"
            process.send_signal(signal.SIGTERM)
            log, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert '"route": "/v1/responses"' in log
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert "--model" in (tmp_path / "runs" / "serve" / f"vllm_{port}.log").read_text()


def test_open_with_vllm_takes_one_folder_and_starts_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "vllm.log"
    monkeypatch.setenv("VLLM_PYTHON", fake_vllm_python(tmp_path))
    with pytest.raises(ConfigError, match="one model folder"):
        ServedModel.open_with_vllm(["http://127.0.0.1:1"], log)
    with pytest.raises(ConfigError, match="Leave out --retrieve_k"):
        ServedModel.open_with_vllm([str(run)], log, retrieve_k=9)
    model, server = ServedModel.open_with_vllm([str(run)], log)
    assert not log.exists()
    assert (model.name, model.checkpoint) == ("grpo", fingerprint(str(run / "grpo")))
    assert server.url.startswith("http://127.0.0.1:")

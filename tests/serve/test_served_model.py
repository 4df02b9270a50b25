"""Which model is served, which settings are refused, and `atommem serve` as a process."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from atommem import cli
from atommem.errors import ConfigError
from atommem.serve.served_model import ServedModel
from atommem.servers.vllm_process import free_port
from tests.loopback import fake_vllm_python, make_checkpoint
from tests.serve.servers import until

pytestmark = pytest.mark.slow  # transformers is imported


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("demo") / "grpo")


def test_settings_that_change_the_prompt_are_refused(run):
    model = ServedModel.open(str(run), temperature=0.0, max_completion_length=4)
    assert (model.agent.sampling.max_completion_length, model.name) == (4, "grpo")
    with pytest.raises(ConfigError, match=r"retrieve_k=.*trained with .*Leave out --retrieve_k"):
        ServedModel.open(str(run), retrieve_k=9)
    with pytest.raises(ConfigError, match="retrieve_k=9: trained with 6"):
        ServedModel.open("smollm2", retrieve_k=9)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--host 0.0.0.0", "--keys FILE"),
        ("--active 0", "active=0: must be at least 1"),
        ("--db sqlite://", "Give sqlite:///FILE"),
    ],
)
def test_serve_without_keys_places_or_a_file_is_refused(flags, message, run, capsys):
    assert cli.main(["serve", "--policy", str(run), *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_serve_with_vllm_starts_answers_and_ends_on_sigterm(run, tmp_path):
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

    streams: Any = {"stdout": pipe, "stderr": pipe, "text": True, "cwd": tmp_path}
    with subprocess.Popen(command, env=environment, **streams) as process:
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

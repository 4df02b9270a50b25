"""Run a command beside a vLLM server; {url} in its words becomes the server's URL.

    scripts/vllm_process.py MODEL LOG COMMAND ...

``VLLM_PYTHON`` names the interpreter of an environment with vLLM; unset, ``scripts/vllm_python``
makes one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import vllm_server


def main(argv: list[str]) -> int:
    """Start the server, run the command and return its status."""
    if len(argv) < 3:
        print(__doc__)
        return 0 if argv[:1] == ["--help"] else 2
    model, log, *command = argv
    print(f"vLLM is starting (log: {log})", flush=True)
    with vllm_server(Path(model), Path(log)) as server:
        return subprocess.run([word.replace("{url}", server.url) for word in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Shared by the benches: command line, JSON line, processes, agents and vLLM servers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ATOMMEM = [sys.executable, "-m", "atommem.cli"]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for `tests`, which has the small worlds of some benches


def command_line(description: str | None, **quick: Any) -> argparse.ArgumentParser:
    """Make a parser with a flag ``--quick`` that sets the options `quick`."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=style)

    class Quick(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
            vars(namespace).update(quick, quick=True)

    if quick:
        text = "show in seconds that the bench runs; the figures mean nothing"
        parser.add_argument("--quick", action=Quick, nargs=0, default=False, help=text)
    return parser


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings to the words of a command line."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def last_line(result: Mapping[str, Any]) -> int:
    """Print the result as one line of JSON; returns 0 if its ``holds`` is true, else 1."""
    print(json.dumps(result))
    return 0 if result["holds"] else 1


@contextmanager
def started(
    command: Sequence[str], url: str, log: Path, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers at `url`, until the block ends."""
    import httpx

    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, **settings)
    try:
        ends = time.monotonic() + 120
        while True:
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{' '.join(command[:4])} failed: {log.read_text()[-2000:]}")
            try:
                if httpx.get(url, timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def make_agent(
    policy: Any,
    embedder: Any = None,
    tokenizer: Any = None,
    *,
    stored: Mapping[str, Any] | None = None,
    keep_prompts: bool = False,
    **settings: Any,
) -> Any:
    """Make the agent of a policy from settings by name; `stored` are those of its folder."""
    from atommem.run import build_agent, make_run, stored_settings

    run = make_run(settings, stored_settings(None, settings.get("environment"), stored))
    return build_agent(
        run, policy, tokenizer=tokenizer, embedder=embedder, keep_prompts=keep_prompts
    )


async def evaluate_variants(
    folder: Path, tasks: Sequence[Any], variants: Mapping[str, Mapping[str, Any]], **settings: Any
) -> dict[str, Any]:
    """Evaluate the policy in `folder` on `tasks` under the settings of each variant."""
    from atommem.config import load_config
    from atommem.eval.runner import evaluate
    from atommem.policy.local import LocalPolicy
    from atommem.rollout import EpisodeRunner

    policy = LocalPolicy.from_pretrained(folder)
    results = {}
    for name, changes in variants.items():
        agent = make_agent(policy, stored=load_config(folder), **settings, **changes)
        results[name] = await evaluate(tasks, EpisodeRunner(agent), progress=False)
    await policy.close()
    return results


def vllm_server(model: Path, log: Path, *options: str, **settings: Any) -> Any:
    """Make a vLLM server (a context manager) from the environment of ``scripts/vllm_python``."""
    from atommem.servers.vllm_process import VllmServer

    script = ROOT / "scripts" / "vllm_python"
    python = subprocess.run([script], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    return VllmServer(python, model, log, *options, **settings)

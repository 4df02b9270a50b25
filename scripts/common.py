"""Shared by the benches: command line, JSON line, processes, agents and vLLM servers."""

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


def read_options(description: str | None, **flags: Any) -> argparse.Namespace:
    """Read flags: each a default, a pair of it and the one under ``--quick``, or a type."""
    parser = command_line(description)
    parser.epilog = "The last line is JSON; the exit status is 0 if its 'holds' is true."
    is_quick = "--quick" in sys.argv
    text = "show in seconds that the bench runs; the figures mean nothing"
    parser.add_argument("--quick", action="store_true", help=text)
    for name, value in flags.items():
        default = value[is_quick] if isinstance(value, tuple) else value
        settings: dict[str, Any] = {"default": default, "help": "default: %(default)s"}
        if isinstance(default, type):
            settings = {"type": default}
        elif isinstance(default, bool):
            settings["action"] = "store_true"
        elif isinstance(default, list):
            settings |= {"nargs": "+", "type": type(default[0])}
        else:
            settings["type"] = type(default)
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def command_line(description: str | None) -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=style)


def flags(settings: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def last_line(result: Mapping[str, Any]) -> int:
    """Print the result as one line of JSON; returns 0 if its ``holds`` is true, else 1."""
    print(json.dumps(result))
    return 0 if result["holds"] else 1


def percentiles(seconds: Sequence[float], *which: int) -> dict[str, float]:
    """Return percentiles in milliseconds: ``p50_ms`` and so on."""
    import numpy as np

    return {f"p{q}_ms": round(float(np.percentile(seconds, q)) * 1e3, 3) for q in which}


@contextmanager
def started(
    command: Sequence[str], url: str, log: Path, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers at `url` (404 will do), until the block ends."""
    import httpx

    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, **settings)
    try:
        ends = time.monotonic() + 120
        while True:
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{' '.join(command[:4])} failed: {log.read_text()[-2000:]}")
            try:
                if httpx.get(url, timeout=5).status_code < 500:
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


def cold_start(recipe: Any, folder: Path, seed: int) -> Path:
    """Return the demo's cold start in `folder`; it takes four minutes unless it is there."""
    from rich.console import Console

    from atommem.demo.run import Demo

    if not (folder / "cold_start" / "atommem_config.json").is_file():
        demo = Demo(recipe, folder, seed, Console(width=120))
        demo.learn_to_copy()
        demo.cold_start()
    return folder / "cold_start"


def python_of(script: str) -> Path:
    """Return the interpreter that a script of this folder prints, and makes if there is none."""
    path = ROOT / "scripts" / script
    found = subprocess.run([path], check=True, text=True, stdout=subprocess.PIPE)
    return Path(found.stdout.strip())


def vllm_server(model: Path, log: Path, *options: str, **settings: Any) -> Any:
    from atommem.servers.vllm_process import VllmServer

    return VllmServer(str(python_of("vllm_python")), model, log, *options, **settings)

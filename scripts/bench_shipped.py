"""Does every shipped recipe start with its launcher, and do two processes train what one trains?

    python scripts/bench_shipped.py [--quick] [--pairs PART ...]

Every accelerate launcher is started with every recipe that names it, by the command in the recipe's
header (or in its own), on CPU processes over gloo. Replaced are: model and embedder (random, a few
thousand parameters), data, sizes, learning rate (a thousandfold) and device. accelerate takes a CPU
process for an accelerator, which FSDP2 needs; where a recipe colocates vLLM, a double samples
(`tests/train/shipped/vllm_double.py`).

Three updates, a checkpoint after each; then the run goes on from the second. The bar: parameters on
two processes equal those of one, and those of the resumed run the uninterrupted one's, to 1e-5,
after at least one has moved by a hundred times that, and a KL at the first update is exactly 0.

async_qwen3_8b_lora samples from a real vLLM server (VLLM_PYTHON), with `max_staleness` 0. The last
line is JSON; it names what was not run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import ATOMMEM, ROOT, flags, last_line, read_options, started, vllm_server
from safetensors.torch import load_file

from atommem.servers.vllm_process import free_port

CONFIGS = ROOT / "configs"
LIMIT, MOVED = 1e-5, 1e-3
WEB = "_web"  # recipes with a judge and tools
UNNAMED = {
    "deepspeed_zero3": "qwen3_8b_hotpotqa",
    "multi_node": "qwen3_8b_hotpotqa",
    "multi_node_ddp": "qwen3_0.6b_lora_1gpu",
}
"""Launchers that no recipe names, with a recipe."""
FILES = ("model.safetensors", "adapter_model.safetensors")
SAMPLED = {"max_completion_length": 6, "num_generations": 4, "embedder_model": "embedder"}
SIZES: dict[str, dict[str, Any]] = {
    "grpo": {**SAMPLED, "token_budget": 2000},
    "async": {**SAMPLED, "token_budget": 2000, "max_staleness": 0},
    "sft": {"max_length": 4096, "max_completion_length": 1024, "logging_steps": 1},
}
EPISODES = {"grpo": 16, "async": 16, "sft": 4}  # of one process's batch; two have half each


@dataclass(frozen=True)
class Pair:
    launcher: str
    recipe: str
    command: str

    @property
    def name(self) -> str:
        return f"{self.launcher} {self.recipe}"

    @property
    def path(self) -> Path:
        return CONFIGS / "train" / f"{self.recipe}.yaml"

    @property
    def stage(self) -> str:
        return re.search(r"train (\w+)", self.command)[1]  # type: ignore[index]

    @property
    def processes(self) -> int:
        return 1 if self.launcher in ("single_gpu", "none") else 2


def pairs() -> list[Pair]:
    found = []
    for recipe in sorted((CONFIGS / "train").glob("*.yaml")):
        for command in _commands(recipe):
            named = re.search(r"atommem configs (\w+)", command)
            found.append(Pair(named[1] if named else "none", recipe.stem, command))
    for launcher, name in UNNAMED.items():
        (command, *_) = _commands(CONFIGS / "accelerate" / f"{launcher}.yaml")
        found.append(Pair(launcher, name, command.replace("RECIPE", name)))
    return found


def _commands(path: Path) -> list[str]:
    lines = path.read_text().replace("\\\n#", " ").splitlines()
    found = (re.match(r"# {2,}((?:accelerate launch|atommem train) .*)", line) for line in lines)
    return [match[1].strip() for match in found if match]


def why_not(pair: Pair) -> str | None:
    if pair.stage == "async" and not os.environ.get("VLLM_PYTHON"):
        return "it needs vLLM servers: set VLLM_PYTHON"
    if pair.launcher == "deepspeed_zero3" and find_spec("deepspeed") is None:
        return "DeepSpeed is not installed"
    if "smollm2" in pair.recipe:
        return "made for a CPU, it is run as it is by scripts/smollm2"
    return None


@contextmanager
def servers(pair: Pair, folder: Path) -> Iterator[dict[str, str]]:
    """Start the servers that the recipe needs; yields the settings that name them."""
    if pair.stage == "async":
        line = r"^# +(\S+)=(\S+) vllm serve \S+ (--[^#\n]*)"
        ((variable, value, words),) = re.findall(line, pair.path.read_text(), re.M)
        model, log, env = folder / "model", folder / "server.log", {variable: value}
        with vllm_server(model, log, *shlex.split(words), env=env) as server:
            yield {"vllm_server_base_url": server.url}
    elif pair.recipe.endswith(WEB):
        from tests.loopback import serving

        with corpus_server(folder) as url, serving(lambda question: "INCORRECT") as judge:
            yield {"search_url": url, "reader_url": url, "judge_url": judge}
    else:
        yield {}


@contextmanager
def corpus_server(folder: Path) -> Iterator[str]:
    texts = [" ".join([f"c{i % 2} city a fact"] * 40) for i in range(6)]
    pages = [json.dumps({"title": f"page {i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "pages.jsonl").write_text("\n".join(pages) + "\n")
    settings: dict[str, Any] = {"cwd": folder, "env": environment()}
    build = [*ATOMMEM, "corpus", "build", "--input", "pages.jsonl", "--output_dir", "corpus"]
    subprocess.run(build, **settings, check=True, capture_output=True, timeout=300)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*ATOMMEM, "corpus", "serve", "corpus", "--port", str(port)]
    with started(command, url, folder / "corpus.log", **settings):
        yield url


def commands(
    pair: Pair, processes: int, out: str, resume: bool, asks: dict[str, str]
) -> list[list[str]]:
    """Return one command for each machine; with one process the part after the launcher."""
    settings = {
        **{**SIZES[pair.stage], "model_name_or_path": "model", "output_dir": out},
        "per_device_train_batch_size": EPISODES[pair.stage] // processes,
        **{
            "learning_rate": 1e-3,
            "warmup_steps": 0,
            "max_steps": 3,
            "save_steps": 1,
            "dtype": "float32",
            **asks,
        },
    }
    launchers = rf"{CONFIGS}/accelerate/\1.yaml"
    words = shlex.split(re.sub(r"\$\(atommem configs (\w+)\)", launchers, pair.command))
    script = words.index("-m")
    train = [*words[script:], "--use_cpu", *flags(settings), *["--resume"] * resume]
    if processes == 1:
        return [[sys.executable, *train]]
    launch = [sys.executable, "-m", "accelerate.commands.launch", *words[2:script]]
    launch += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port"]
    if "RANK" not in launch:
        return [[*launch, "0", *train]]
    launch.append(str(free_port()))
    values = ({"RANK": str(rank), "HOST": "127.0.0.1"} for rank in range(2))
    return [[value.get(word, word) for word in [*launch, *train]] for value in values]


def environment() -> dict[str, str]:
    """Return variables: this tree, the doubles, one thread each, no hub and no W&B server."""
    path = [str(ROOT / "tests/train/shipped/site"), str(ROOT), *sys.path[2:]]
    values = {"ATOMMEM_STAND_INS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    values |= {"TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
    values |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "PYTHONPATH": os.pathsep.join(path)}
    return {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | values


def run(
    pair: Pair, folder: Path, processes: int, out: str, asks: dict[str, str], resume: bool = False
) -> None:
    log = folder / f"{out}.log"
    with log.open("ab") as stream:
        settings: dict[str, Any] = {"cwd": folder, "env": environment()}
        running = [
            subprocess.Popen(command, **settings, stdout=stream, stderr=stream)
            for command in commands(pair, processes, out, resume, asks)
        ]
        try:
            failed = [process.wait(900) for process in running]
        finally:
            for process in running:
                process.kill()
    if any(failed):
        text = re.split(r"(?m)^.*torch/distributed/elastic", log.read_text(errors="replace"))[0]
        end = "\n".join(text.splitlines()[-12:])
        raise RuntimeError(f"{pair.name} on {processes} processes failed:\n{end}")


def compare(pair: Pair, folder: Path, asks: dict[str, str]) -> dict[str, Any]:
    """Train alone, together, and together after a stop; returns the differences."""
    start = load_file(folder / "model" / FILES[0])
    run(pair, folder, pair.processes, "together", asks)
    together = load_weights(folder / "together")
    shutil.rmtree(folder / "together" / "checkpoint-3")
    run(pair, folder, pair.processes, "together", asks, resume=True)
    resumed = load_weights(folder / "together")
    # An adapter's B begins at 0.
    began = {name: start.get(name, weight * 0) for name, weight in together.items()}
    trained = {name for name in together if "lora_A" not in name}
    result: dict[str, Any] = {"resumed": largest_difference(together, resumed, {*together})}
    result["moved"] = largest_difference(together, began, trained)
    if pair.processes > 1:
        run(pair, folder, 1, "alone", asks)
        alone = load_weights(folder / "alone")
        result["difference"] = largest_difference(together, alone, {*together})
    lines = (folder / "together" / "metrics.jsonl").read_text().splitlines()
    updates = [line for line in map(json.loads, lines) if "loss" in line and line["step"] == 1]
    result |= {"kl": updates[0]["kl"]} if "kl" in updates[0] else {}
    equal = max(result["resumed"], result.get("difference", 0.0)) <= LIMIT
    return {**result, "holds": equal and result["moved"] >= MOVED and result.get("kl", 0.0) == 0.0}


def load_weights(folder: Path) -> dict[str, Any]:
    return dict(load_file(next(folder / n for n in FILES if (folder / n).is_file())))


def largest_difference(first: dict[str, Any], second: dict[str, Any], names: set[str]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in names)


def make_traces(folder: Path) -> None:
    """Write traces for sft_qwen3_8b: the tiny policy's own episodes, where they were right."""
    settings: dict[str, Any] = {"policy": "model", "embedder": "hashing"}
    settings |= {"data": "data/hotpotqa_train.parquet"}
    settings |= {"output_dir": "runs/teacher", "temperature": 1}
    settings |= {"num_generations": 8, "max_completion_length": 6}
    command = [*ATOMMEM, "eval", *flags(settings)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)


def measure(pair: Pair, folder: Path) -> dict[str, Any]:
    from tests.train.shipped.tiny import make_world

    # vLLM on CPU has no heads of 8. Rows that share half of their tokens stay on one process:
    # without text of their own, the other would train on none.
    sizes = {"head_dim": 32, "words": 150} if pair.stage == "async" else {}
    make_world(folder, web=pair.recipe.endswith(WEB), **sizes)
    if pair.stage == "sft":
        make_traces(folder)
    try:
        with servers(pair, folder) as asks:
            return compare(pair, folder, asks)
    except (RuntimeError, subprocess.SubprocessError) as error:
        return {"holds": False, "error": str(error)}


def main() -> int:
    options = read_options(__doc__, pairs=([""], ["fsdp2 qwen3_8b_hotpotqa"]))
    results: dict[str, Any] = {}
    for pair in pairs():
        if not any(part in pair.name for part in options.pairs):
            continue
        if reason := why_not(pair):
            results[pair.name] = f"not run: {reason}"
        else:
            with tempfile.TemporaryDirectory() as name:
                results[pair.name] = measure(pair, Path(name))
        print(f"{pair.name:40} {results[pair.name]}", flush=True)
    ran = [result for result in results.values() if isinstance(result, dict)]
    holds = bool(ran) and all(result["holds"] for result in ran)
    return last_line({"bench": "shipped", "pairs": results, "ran": len(ran), "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

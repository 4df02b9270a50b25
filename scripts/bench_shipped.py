"""Does every shipped recipe start with its launcher, and do two processes train what one trains?

    python scripts/bench_shipped.py [--quick] [--pairs PART ...]

Every accelerate launcher is started with every recipe that names it, by the command in the recipe's
header (deepspeed_zero3 and multi_node, which no recipe names, with qwen3_8b_hotpotqa by the command
in their own), on CPU processes over gloo. What is replaced: the model and the embedder (random ones
of a few thousand parameters), the data, the sizes of batch, completion and micro-batch, the
learning rate (a thousandfold, or else nothing would move by more than the bar), and the device (two
processes, `--mixed_precision no --use_cpu --dtype float32`). Two things stand in for a GPU:
accelerate, which offers FSDP2 to accelerators only, takes a CPU process for one; and where a recipe
colocates vLLM, a double samples in its place, which loses its weights in sleep and refuses to
sample or load out of turn (`tests/train/shipped/vllm_double.py`).

Three updates, KL as in the recipe, a checkpoint after each; then the run goes on from that of the
second. It holds if the parameters on two processes are those of one, and those of the resumed run
those of the uninterrupted one, to 1e-5, after at least one has moved by a hundred times that, and
if a KL at the first update is exactly 0.

async_qwen3_8b_lora samples from a real vLLM server, started as its header says, where VLLM_PYTHON
names an interpreter that has vLLM: with `max_staleness` 0, since what is sampled ahead depends on
the clock, and with seeds in its requests. What is not run is named: that recipe without
VLLM_PYTHON, and deepspeed_zero3 without DeepSpeed (PYTHONPATH may name it). `--quick` runs one
pair. The last line is one JSON object.
"""

from __future__ import annotations

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

from common import ATOMMEM, ROOT, command_line, flags, last_line, started, vllm_server
from safetensors.torch import load_file

from atommem.servers.vllm_process import free_port

CONFIGS = ROOT / "configs"
LIMIT, MOVED = 1e-5, 1e-3
WEB = "qwen3_8b_web"
QUICK = "fsdp2 qwen3_8b_hotpotqa"
UNNAMED = ("deepspeed_zero3", "multi_node")
FILES = ("model.safetensors", "adapter_model.safetensors")
GRPO = {
    "max_completion_length": 6,
    "num_generations": 4,
    "micro_batch_tokens": 2000,
    "embedder_model": "embedder",
}
ASYNC = {**GRPO, "token_budget": 2000, "max_staleness": 0}
del ASYNC["micro_batch_tokens"]
SFT = {"max_length": 4096, "max_completion_length": 1024, "logging_steps": 1}
SIZES: dict[str, dict[str, Any]] = {"grpo": GRPO, "async": ASYNC, "sft": SFT}
EPISODES = {"grpo": 16, "async": 16, "sft": 4}
"""Of one process's batch; two have half each."""


@dataclass(frozen=True)
class Pair:
    """A launcher and a recipe, with the command of the header."""

    launcher: str
    recipe: str
    command: str

    @property
    def name(self) -> str:
        return f"{self.launcher} {self.recipe}"

    @property
    def stage(self) -> str:
        return re.search(r"train (\w+)", self.command)[1]  # type: ignore[index]

    @property
    def processes(self) -> int:
        return 1 if self.launcher in ("single_gpu", "none") else 2


def pairs() -> list[Pair]:
    """All of them, read from the headers."""
    found = []
    for recipe in sorted((CONFIGS / "train").glob("*.yaml")):
        for command in _commands(recipe):
            named = re.search(r"atommem configs (\w+)", command)
            found.append(Pair(named[1] if named else "none", recipe.stem, command))
    for launcher in UNNAMED:
        command = _commands(CONFIGS / "accelerate" / f"{launcher}.yaml")[0]
        found.append(
            Pair(launcher, "qwen3_8b_hotpotqa", command.replace("RECIPE", "qwen3_8b_hotpotqa"))
        )
    return found


def _commands(path: Path) -> list[str]:
    """The commands in a header that train."""
    header = "".join(
        line.removeprefix("#") for line in path.read_text().splitlines(True) if line.startswith("#")
    )
    lines = header.replace("\\\n", " ").splitlines()
    return [
        line.strip() for line in lines if re.match(r" {2,}(accelerate launch|atommem train) ", line)
    ]


def why_not(pair: Pair) -> str | None:
    """Why this pair cannot be run here."""
    if pair.stage == "async" and not os.environ.get("VLLM_PYTHON"):
        return "it needs vLLM servers: set VLLM_PYTHON"
    if pair.launcher == "deepspeed_zero3" and find_spec("deepspeed") is None:
        return "DeepSpeed is not installed"
    if pair.recipe.startswith("smollm2") or pair.recipe == "sft_smollm2":
        return "made for a CPU, it is run as it is by scripts/real_train"
    return None


def server_settings(pair: Pair) -> tuple[dict[str, str], list[str]]:
    """Environment variables and flags of the servers that the recipe's header starts."""
    header = (CONFIGS / "train" / f"{pair.recipe}.yaml").read_text()
    found = re.search(r"^# +(\S+)=(\S+) vllm serve \S+ (--[^#\n]*)", header, re.M)
    assert found is not None, pair.recipe
    return {found[1]: found[2]}, found[3].split()


@contextmanager
def servers(pair: Pair, folder: Path) -> Iterator[dict[str, str]]:
    """Start the servers that the recipe needs; yields the settings that name them."""
    if pair.stage == "async":
        variables, words = server_settings(pair)
        with vllm_server(folder / "model", folder / "server.log", *words, env=variables) as server:
            yield {"vllm_server_base_url": server.url}
    elif pair.recipe == WEB:
        from tests.loopback import serving

        with corpus_server(folder) as url, serving(lambda question: "INCORRECT") as judge:
            yield {"search_url": url, "reader_url": url, "judge_url": judge}
    else:
        yield {}


@contextmanager
def corpus_server(folder: Path) -> Iterator[str]:
    """`atommem corpus serve` on pages of the tiny world; its URL."""
    pages = [
        {"title": f"page {i}", "text": " ".join([f"c{i % 2} city a fact"] * 40)} for i in range(6)
    ]
    (folder / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    build = [*ATOMMEM, "corpus", "build", "--input", "pages.jsonl", "--out", "corpus"]
    subprocess.run(
        build, cwd=folder, env=environment(), check=True, capture_output=True, timeout=300
    )
    port = free_port()
    url, command = (
        f"http://127.0.0.1:{port}",
        [*ATOMMEM, "corpus", "serve", "corpus", "--port", str(port)],
    )
    with started(command, f"{url}/health", folder / "corpus.log", cwd=folder, env=environment()):
        yield url


def commands(
    pair: Pair, processes: int, out: str, resume: bool, asks: dict[str, str]
) -> list[list[str]]:
    """One command for each machine; with one process the part after the launcher."""
    settings = {
        **SIZES[pair.stage],
        "model_name_or_path": "model",
        "output_dir": out,
        "per_device_train_batch_size": EPISODES[pair.stage] // processes,
        # Three updates are within the warm-up of the recipes that have one.
        "learning_rate": 1e-2
        if "warmup_steps" in (CONFIGS / "train" / f"{pair.recipe}.yaml").read_text()
        else 1e-3,
        "max_steps": 3,
        "save_steps": 1,
        "dtype": "float32",
    }
    given = ["--use_cpu", *flags({**settings, **asks}), *["--resume"] * resume]
    words = shlex.split(
        re.sub(r"\$\(atommem configs (\w+)\)", rf"{CONFIGS}/accelerate/\1.yaml", pair.command)
    )
    script = words.index("-m")
    train = [sys.executable, *words[script:], *given]
    if processes == 1:
        return [train]
    launch = [sys.executable, "-m", "accelerate.commands.launch", *words[2:script]]
    launch += ["--num_processes", "2", "--mixed_precision", "no"]
    if "RANK" in launch:
        launch += ["--main_process_port", str(free_port())]
        values = ({"RANK": str(rank), "HOST": "127.0.0.1"} for rank in range(2))
        return [[value.get(word, word) for word in [*launch, *train[1:]]] for value in values]
    return [[*launch, "--main_process_port", "0", *train[1:]]]


def environment() -> dict[str, str]:
    """Of the processes: this tree, the doubles, one thread each, no hub and no W&B server."""
    given = {
        **os.environ,
        **{
            "ATOMMEM_STAND_INS": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        },
        **{
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "tests/train/shipped/site"), str(ROOT), *sys.path[2:]]
            )
        },
        **{"WANDB_MODE": "offline", "WANDB_SILENT": "true", "DS_ACCELERATOR": "cpu"},
    }
    given.pop("WORLD_SIZE", None)
    return given


def run(
    pair: Pair, folder: Path, processes: int, out: str, asks: dict[str, str], resume: bool = False
) -> None:
    """Start the processes in `folder` and wait for their end.

    Raises:
        RuntimeError: One failed; the end of what it wrote is in the message.
    """
    log = folder / f"{out.replace('/', '-')}.log"
    with log.open("ab") as stream:
        started = [
            subprocess.Popen(command, cwd=folder, env=environment(), stdout=stream, stderr=stream)
            for command in commands(pair, processes, out, resume, asks)
        ]
        try:
            failed = [process.wait(900) for process in started]
        finally:
            for process in started:
                process.kill()
    if any(failed):
        raise RuntimeError(f"{pair.name} on {processes} processes failed:\n{_tail(log)}")


def compare(pair: Pair, folder: Path, asks: dict[str, str]) -> dict[str, Any]:
    """Alone, together, and together after a stop; the differences."""
    start = load_file(folder / "model" / FILES[0])
    several = pair.processes
    run(pair, folder, several, "together", asks)
    together = _weights(folder / "together")
    shutil.rmtree(folder / "together" / "checkpoint-3")
    run(pair, folder, several, "together", asks, resume=True)
    result: dict[str, Any] = {"resumed": _difference(together, _weights(folder / "together"))}
    # An adapter's B begins at 0.
    began = {
        name: start.get(name, weight.new_zeros(weight.shape)) for name, weight in together.items()
    }
    trained = {name for name in together if "lora_A" not in name}
    result["moved"] = _difference({n: together[n] for n in trained}, {n: began[n] for n in trained})
    if several > 1:
        run(pair, folder, 1, "alone", asks)
        result["difference"] = _difference(together, _weights(folder / "alone"))
    lines = [
        json.loads(line)
        for line in (folder / "together" / "metrics.jsonl").read_text().splitlines()
    ]
    first = next(line for line in lines if line.get("step") == 1 and "loss" in line)
    if "kl" in first:
        result["kl"] = first["kl"]
    equal = max(result["resumed"], result.get("difference", 0.0)) <= LIMIT
    return {**result, "holds": equal and result["moved"] >= MOVED and result.get("kl", 0.0) == 0.0}


def _weights(folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = load_file(
        next(folder / name for name in FILES if (folder / name).is_file())
    )
    return weights


def _difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def _tail(log: Path) -> str:
    """The end of what a failed run wrote, without what the launcher says of it."""
    text = re.split(
        r"^.*(?:Sending process|torch/distributed/elastic)",
        log.read_text(errors="replace"),
        flags=re.M,
    )[0]
    return "\n".join(text.splitlines()[-12:])


def make_traces(folder: Path) -> None:
    """What sft_qwen3_8b learns from: the tiny policy's own episodes, where they were right."""
    made: dict[str, Any] = {
        "policy": "model",
        "embedder": "hashing",
        "data": "data/hotpotqa_train.parquet",
        "out": "runs/teacher",
    }
    made |= {"samples_per_task": 8, "max_tokens": 6, "temperature": 1}
    subprocess.run(
        [*ATOMMEM, "eval", *flags(made)], cwd=folder, check=True, capture_output=True, timeout=600
    )


def main(argv: list[str] | None = None) -> int:
    """Run the pairs, print a line for each and the JSON."""
    parser = command_line(__doc__, pairs=[QUICK])
    parser.add_argument(
        "--pairs",
        nargs="+",
        default=[""],
        metavar="PART",
        help="Only those with PART in their name.",
    )
    options = parser.parse_args(argv)
    from tests.train.shipped.tiny import make_world

    results: dict[str, Any] = {}
    for pair in pairs():
        if not any(part in pair.name for part in options.pairs):
            continue
        if reason := why_not(pair):
            results[pair.name] = f"not run: {reason}"
        else:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                # vLLM on CPU has no heads of 8. Rows that share half of their tokens stay on one
                # process: without text of their own, the other would train on none.
                sizes = {"head_dim": 32, "words": 150} if pair.stage == "async" else {}
                make_world(folder, web=pair.recipe == WEB, **sizes)
                if pair.stage == "sft":
                    make_traces(folder)
                try:
                    with servers(pair, folder) as asks:
                        results[pair.name] = compare(pair, folder, asks)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    results[pair.name] = {"holds": False, "error": str(error)}
        print(f"{pair.name:40} {results[pair.name]}", flush=True)
    ran = [result for result in results.values() if isinstance(result, dict)]
    holds = bool(ran) and all(result["holds"] for result in ran)
    return last_line(
        {"bench": "shipped", "limit": LIMIT, "pairs": results, "ran": len(ran), "holds": holds}
    )


if __name__ == "__main__":
    raise SystemExit(main())

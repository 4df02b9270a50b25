"""A real GRPO run on random weights that says what it took, for `bench_dry_run` and `gpu_check`.

    python scripts/measured_training.py OUT.json [--cpu_fsdp2] -- FLAGS OF atommem train grpo

A random policy earns nothing, and equal rewards train nothing, so rewards are drawn at random; and what it samples is
taken for a scratchpad, so that the prompts of a group differ. All else is the real command. Memory is what torch's
allocators gave out, by phase: on a GPU `torch.cuda.max_memory_allocated`, on a CPU every allocation and release that
the profiler reports. Neither counts what an allocator keeps, code, or Python's objects: it is the same in every run,
which resident memory is not.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from quick import command_line

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ROOT / "train" / "architectures"
SMALL = {
    "model_type": "qwen3", "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
"""22M parameters: the weights of a step outweigh what a step makes, as in a large model."""


def shipped(name: str, **changes: Any) -> dict[str, Any]:
    """An architecture of train/architectures, by its file's name."""
    return {**json.loads((ARCHITECTURES / f"{name}.json").read_text(encoding="utf-8")), **changes}


def make_model(
    architecture: dict[str, Any], dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    """A model of this shape with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        **{**architecture, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def make_inputs(
    folder: Path, model: Any, tasks: int, documents: int, words: int, questions: int = 1
) -> tuple[str, ...]:
    """Model, tokenizer (a word is a token) and tasks of random words; returns the flags that name them."""
    from atommem.demo.tiny_policy import word_tokenizer
    from atommem.envs.task import Document, Question, Task
    from atommem.envs.task_files import save_tasks

    size = model.config.vocab_size
    model.save_pretrained(folder / "model")
    word_tokenizer(f"w{index}" for index in range(3, size)).save_pretrained(folder / "model")
    rng = random.Random(0)

    def text(count: int) -> str:
        return " ".join(f"w{rng.randrange(3, size)}" for _ in range(count))

    made = [
        Task(
            f"t{index}",
            (Question(text(8), ("w3",)),) * questions,
            tuple(Document("", text(words)) for _ in range(documents)),
        )
        for index in range(tasks)
    ]
    save_tasks(made, folder / "tasks.jsonl")
    return "--model_name_or_path", str(folder / "model"), "--data", str(folder / "tasks.jsonl")


class Watch:
    """The most memory that torch's allocator had given out in each phase, and the seconds of each."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()
        self._marks: list[tuple[int, str]] = []
        self._counted: list[tuple[int, int]] = []
        self._peaks: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        if not self.cuda:
            kinds, start = torch._C._profiler, _profiler()
            config = kinds.ProfilerConfig(
                kinds.ProfilerState.KINETO,
                False,
                True,
                False,
                False,
                False,
                kinds._ExperimentalConfig(),
                "",
            )
            start._prepare_profiler(config, {kinds.ProfilerActivity.CPU})
            # Of the scopes only one that nothing is in: allocations without the operations around them.
            start._enable_profiler(
                config, {kinds.ProfilerActivity.CPU}, {kinds.RecordScope.USER_SCOPE}
            )
        self.enter("loading")

    def enter(self, phase: str) -> None:
        """From here on it is this phase."""
        if self.cuda:
            torch.cuda.synchronize()
            self._note()
            torch.cuda.reset_peak_memory_stats()
        now = time.time_ns()
        if self._marks:
            before, name = self._marks[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + (now - before) / 1e9
        self._marks.append((now, phase))

    def count(self) -> None:
        """From here on, held is what live tensors hold: the profiler does not see what gloo's threads release."""
        storages = {}
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                storage = getattr(thing, "_local_tensor", thing).untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        self._counted.append((time.time_ns(), sum(storages.values())))

    def peaks(self) -> dict[str, int]:
        """Bytes by phase; ends the watch."""
        self.enter("end")
        if not self.cuda:
            self._read_profiler()
        self._peaks.pop("end", None)
        return self._peaks

    def _note(self) -> None:
        if self._marks:
            name = self._marks[-1][1]
            self._peaks[name] = max(self._peaks.get(name, 0), torch.cuda.max_memory_allocated())

    def _read_profiler(self) -> None:
        events = _profiler()._disable_profiler().events()
        given = [event for event in events if event.name() == "[memory]"]
        held = phase = counted = 0
        for event in sorted(given, key=lambda event: event.start_ns()):
            while counted < len(self._counted) and event.start_ns() >= self._counted[counted][0]:
                held, counted = self._counted[counted][1], counted + 1
            while phase + 1 < len(self._marks) and event.start_ns() >= self._marks[phase + 1][0]:
                phase += 1
                self._peaks[self._marks[phase][1]] = max(
                    self._peaks.get(self._marks[phase][1], 0), held
                )
            held += event.nbytes()
            name = self._marks[phase][1]
            self._peaks[name] = max(self._peaks.get(name, 0), held)


def _profiler() -> Any:
    return torch.autograd


class Here(Executor):
    """Runs what it is given at once: the profiler only sees the thread that it was started in."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def run(flags: Sequence[str], is_sharded: bool = False) -> dict[str, Any]:
    """Train by the command in this process; returns bytes and seconds by phase, and what was logged."""
    from atommem.environment import Score
    from atommem.envs.longdoc import Environments
    from atommem.policy import local
    from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
    from atommem.train.loops.update_step import UpdateStep
    from atommem.train.rollout.backends import LocalBackend
    from atommem.train.train_cli import main as train_main

    rng = random.Random(int(os.environ.get("RANK", "0")))

    async def score(self: Environments, task: Any, answers: Any) -> Score:
        return Score(rng.random(), (), {})

    def noted(*arguments: Any) -> Any:
        completion = make_completion(*arguments)
        return replace(completion, text=f"<update_scratchpad>{completion.text}</update_scratchpad>")

    Environments.score = score  # type: ignore[assignment,method-assign]
    make_completion: Any = local.make_completion
    local.make_completion = noted  # type: ignore[assignment]
    watch, history = Watch(), list[dict[str, Any]]()
    rollout, close, backward = LocalBackend.rollout, MemoryGRPOTrainer.close, UpdateStep._backward

    @contextmanager
    def marked(self: LocalBackend, trainer: Any) -> Iterator[None]:
        policy = self.runner.agent.policy
        assert isinstance(policy, local.LocalPolicy)
        if not watch.cuda:
            policy._thread = Here()  # type: ignore[assignment]
        watch.enter("rollout")
        with rollout(self, trainer):
            yield
        watch.enter("training")

    def closing(self: MemoryGRPOTrainer) -> None:
        watch.enter("saving")
        history.extend(entry for entry in self.state.log_history if "reward" in entry)
        close(self)

    def counting(self: UpdateStep, *arguments: Any) -> Any:
        sums = backward(self, *arguments)
        watch.count()
        return sums

    if is_sharded and not watch.cuda:
        UpdateStep._backward = counting  # type: ignore[method-assign, assignment]
    LocalBackend.rollout, MemoryGRPOTrainer.close = marked, closing  # type: ignore[method-assign]
    status = train_main(["grpo", *flags])
    return {"status": status, "bytes": watch.peaks(), "seconds": watch.seconds, "updates": history}


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and write what it took; of several processes the first one does."""
    parser = command_line(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--cpu_fsdp2",
        action="store_true",
        help="let accelerate shard CPU processes as it does GPUs",
    )
    argv = list(sys.argv[1:] if argv is None else argv)
    own = argv.index("--")
    arguments = parser.parse_args(argv[:own])
    if arguments.cpu_fsdp2:
        sys.path.insert(0, str(ROOT))
        from tests.train.shipped.cpu_ranks import launch_as_fsdp2

        launch_as_fsdp2()
    found = run(argv[own + 1 :], arguments.cpu_fsdp2)
    if os.environ.get("RANK", "0") == "0":
        arguments.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Asynchronous training reaches the demo's result, and with staleness 0 it is on-policy training.

    python scripts/bench_async.py [--cold_start FOLDER] [--seed N] [--out DIR]

From a cold-started policy of the demo (made first unless ``--cold_start`` names one: the ``cold_start``
folder of a finished ``atommem demo``, with its seed) and the demo's tasks:

1. on-policy, and asynchronous with ``max_staleness: 0``: the first updates of both, side by side;
2. asynchronous with ``max_staleness: 2``: held-out EM before and after.

Bars: the first update's loss differs by at most 1e-4, relatively; EM at most .50 before and at least .90
after; groups were really trained on that older weights had sampled. Takes about 3 minutes on two cores,
and 5 more for the cold start.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

# Sampling and training run at the same time: a core each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from quick import add_quick, command_line, last_line
from rich.console import Console
from tiny_policy import cold_start, taken_up
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.utils.logging import disable_progress_bar

from atommem.demo.recipe import FULL, quick
from atommem.demo.run import Demo
from atommem.envs.synthetic.world import generate
from atommem.train.async_config import AsyncTrainConfig
from atommem.train.stages import ASYNC_COLUMNS
from atommem.train.loops.async_trainer import AsyncMemoryGRPOTrainer
from atommem.train.loops.async_trainer import make_runner
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.rollout.backends import make_local_backend
from atommem.train.train_config import TrainConfig
from atommem.train.logs.console import GRPO_COLUMNS, METRICS_FILE, read_metrics, use_console

COMPARED_UPDATES = 3
STALENESS = 2
MAX_DIFFERENCE = 1e-4
MAX_EM_BEFORE, MIN_EM_AFTER = 0.50, 0.90
TRAINING_STREAM = 3
SHARED_FIELDS = (
    "adam_beta2",
    "dataloader_pin_memory",
    "epsilon",
    "epsilon_high",
    "learning_rate",
    "lr_scheduler_type",
    "max_completion_length",
    "max_grad_norm",
    "max_steps",
    "normalization",
    "num_generations",
    "per_device_train_batch_size",
    "report_to",
    "save_strategy",
    "scale_rewards",
    "seed",
    "weight_decay",
)
_SHOWN = ("reward", "em", "tokens", "no var", "loss", "train s", "idle s", "stale", "dropped")


class StopAfter(TrainerCallback):
    """Ends a run early; the learning-rate schedule is that of the whole run."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step >= self.updates


class Bench:
    """One cold-started policy, and the runs that begin with it."""

    def __init__(self, demo: Demo, cold_start: Path) -> None:
        self.demo = demo
        self.cold_start = cold_start
        self.train = demo.settings.args
        groups = self.train.per_device_train_batch_size // (self.train.num_generations or 1)
        self.tasks = list(
            generate(
                demo.recipe.world, groups * self.train.max_steps, 10 * demo.seed + TRAINING_STREAM
            )
        )

    def on_policy(self, updates: int) -> list[dict[str, Any]]:
        """Log entries of the first `updates`."""
        settings = self.demo.settings
        args = TrainConfig(
            output_dir=str(self.demo.out / "on_policy"),
            micro_batch_tokens=self.train.micro_batch_tokens,
            **self._shared(),
        )
        rollouts = Rollouts(
            args, self.demo.tokenizer, self.demo.embedder, settings.memory, settings.environment
        )
        trainer = MemoryGRPOTrainer(
            AutoModelForCausalLM.from_pretrained(self.cold_start),
            args,
            self.tasks,
            self.demo.tokenizer,
            partial(make_local_backend, rollouts),
            callbacks=[StopAfter(updates)],
        )
        try:
            return self._run(trainer, GRPO_COLUMNS)
        finally:
            trainer.close()

    def asynchronous(
        self, staleness: int, updates: int | None = None
    ) -> tuple[Any, list[dict[str, Any]]]:
        """The trained model, and the log entries of all (or the first `updates`) updates."""
        settings = self.demo.settings
        args = AsyncTrainConfig(
            output_dir=str(self.demo.out / f"staleness_{staleness}"),
            max_staleness=staleness,
            token_budget=self.train.micro_batch_tokens,
            **self._shared(),
        )
        path, tokenizer = str(self.cold_start), self.demo.tokenizer
        rollouts = Rollouts(
            args, tokenizer, self.demo.embedder, settings.memory, settings.environment
        )
        trainer = AsyncMemoryGRPOTrainer(
            path,
            args,
            self.tasks,
            tokenizer,
            partial(make_runner, rollouts, path),
            callbacks=[] if updates is None else [StopAfter(updates)],
        )
        entries = self._run(trainer, ASYNC_COLUMNS)
        # The trained model attends along packed trees only: a fresh one samples.
        model = AutoModelForCausalLM.from_pretrained(self.cold_start)
        model.load_state_dict(trainer.model.state_dict())
        return model, entries

    def _shared(self) -> dict[str, Any]:
        return {"use_cpu": True, **{name: getattr(self.train, name) for name in SHARED_FIELDS}}

    def _run(self, trainer: Any, columns: Any) -> list[dict[str, Any]]:
        use_console(trainer, [column for column in columns if column[0] in _SHOWN])
        trainer.train()
        return [
            entry
            for entry in read_metrics(Path(trainer.args.output_dir) / METRICS_FILE)
            if "reward" in entry
        ]


def relative(a: float, b: float) -> float:
    """Difference of two figures, relative to the second."""
    if (
        a == b
    ):  # also where the rewards were all equal, as a policy's that has learned nothing are, and both are 0
        return 0.0
    return abs(a - b) / abs(b) if b else float("inf")


def main() -> int:
    """Run everything; returns 0 when all bars hold."""
    parser = command_line(__doc__)
    parser.add_argument("--cold_start", type=Path, help="cold_start folder of a finished demo")
    parser.add_argument("--seed", type=int, default=0, help="the demo's (%(default)s)")
    parser.add_argument("--out", type=Path, help="where to write (default: a temporary folder)")
    add_quick(parser)
    arguments = parser.parse_args()
    disable_progress_bar()
    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        out, seed, recipe = (
            arguments.out or Path(scratch),
            arguments.seed,
            quick(FULL) if arguments.quick else FULL,
        )
        start = arguments.cold_start or cold_start(out / f"policy-{seed}", seed, recipe)
        demo = taken_up(start, recipe, out, seed)
        bench = Bench(demo, start)
        em_before = demo.evaluate("before").em

        console.print(f"\n[bold]The first {COMPARED_UPDATES} updates on-policy")
        on_policy = bench.on_policy(COMPARED_UPDATES)
        console.print(
            f"\n[bold]The first {COMPARED_UPDATES} updates asynchronously, max_staleness 0"
        )
        _, strict = bench.asynchronous(0, COMPARED_UPDATES)

        console.print(f"\n[bold]Asynchronously, max_staleness {STALENESS}")
        clock = time.perf_counter()
        demo.model, stale = bench.asynchronous(STALENESS)
        seconds = time.perf_counter() - clock
        em_after = demo.evaluate("after").em

    console.print(
        "\n[bold]update   loss on-policy   staleness 0   relative difference   of the gradient norm"
    )
    for a, b in zip(on_policy, strict, strict=True):
        console.print(
            f"{a['step']:>6}   {a['loss']:>14.8f}   {b['loss']:>11.8f}   {relative(b['loss'], a['loss']):>19.1e}   "
            f"{relative(b['grad_norm'], a['grad_norm']):>20.1e}"
        )
    result = {
        "loss_difference": relative(strict[0]["loss"], on_policy[0]["loss"]),
        "grad_norm_difference": relative(strict[0]["grad_norm"], on_policy[0]["grad_norm"]),
        "em_before": em_before,
        "em_after": em_after,
        "updates": stale[-1]["step"],
        "seconds": round(seconds, 1),
        "staleness_mean": sum(entry["sample/staleness_mean"] for entry in stale) / len(stale),
        "staleness_max": max(entry["sample/staleness_max"] for entry in stale),
        "clipped": sum(entry.get("clip_ratio/region_mean", 0.0) for entry in stale) / len(stale),
        "seed": arguments.seed,
        "seconds_total": round(time.perf_counter() - started, 1),
    }
    result["holds"] = bool(
        result["loss_difference"] <= MAX_DIFFERENCE
        and em_before <= MAX_EM_BEFORE
        and em_after >= MIN_EM_AFTER
        and 0 < result["staleness_max"] <= STALENESS
    )
    console.print(
        f"\nheld-out EM {em_before:.3f} -> {em_after:.3f} in {result['updates']} updates, {seconds:.0f} s; staleness "
        f"{result['staleness_mean']:.2f} on average, {result['staleness_max']:.0f} at most"
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

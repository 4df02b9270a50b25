"""The demo from beginning to end: make a policy, show it faulty demonstrations, train it, measure it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from rich.console import Console
from safetensors.torch import load_model
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils.logging import disable_progress_bar

from atommem.config import drawn_capacity
from atommem.demo.copying import pretrain_copying
from atommem.demo.progress import FOLDERS, Progress
from atommem.demo.recipe import Recipe
from atommem.demo.results import (
    ABLATIONS,
    LABELS,
    SUMMARY_FILE,
    print_outcome,
    results_table,
    summarize,
)
from atommem.demo.settings import load_settings
from atommem.demo.tiny_policy import make_model, make_tokenizer
from atommem.demo.worlds import bounded_world, world_of
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.environment import make_environments
from atommem.envs.scoring.records import EvalResult
from atommem.envs.synthetic.expert_policy import ExpertPolicy
from atommem.envs.synthetic.prose import get_prose
from atommem.envs.synthetic.world import make_task, task_name
from atommem.envs.task import Task
from atommem.envs.task_files import save_tasks, write_json
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.eval.output import TRACES
from atommem.eval.runner import evaluate
from atommem.policy.contract import Sampling
from atommem.policy.local import LocalPolicy
from atommem.session import Agent
from atommem.train.checkpoints import checkpoint_to_resume, list_checkpoints, remove_checkpoint
from atommem.train.errors import TrainingInterrupted
from atommem.train.logs.console import (
    GRPO_COLUMNS,
    METRICS_FILE,
    SFT_COLUMNS,
    read_metrics,
    use_console,
)
from atommem.train.logs.plot import PLOT_FILE, plot_training
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.loops.sft import ColdStartTrainer, demonstrations, sft_dataset
from atommem.train.rollout.backends import make_local_backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.train_config import ColdStartConfig

HELDOUT_FILE = "heldout.parquet"
_GRPO_SHOWN = (
    "reward",
    "create",
    "read",
    "update",
    "scratch",
    "malform",
    "store",
    "tokens",
    "no var",
    "roll s",
    "train s",
)
_NAMES = {"pretrained": "pretrain", "cold_start": "sft", "grpo": "grpo"}
"""Folders of the stages, and what their seconds are called."""
_CHECKPOINTS = {"save_strategy": ("steps",), "save_steps": ("20",), "save_total_limit": ("1",)}
_HELDOUT, _DEMONSTRATIONS, _TRAINING = 1, 2, 3
"""Streams of tasks that share no seed."""


class Demo:
    """One run of the demo. The methods are its phases, in order; each prints what it does.

    On several ranks each of them makes the same calls, and the first one writes and prints.

    Args:
        recipe: What to train, and for how long.
        out: Folder for everything that is written. What an earlier demo left there is replaced.
        seed: Of the weights, of all tasks and of sampling.
        console: Where to print.
        progress: Its stages are taken up instead, and those of this run noted there; GRPO writes checkpoints.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        seed: int,
        console: Console,
        progress: Progress | None = None,
    ) -> None:
        self.recipe = recipe
        self.out = out
        self.seed = seed
        self.console = console
        self.seconds: dict[str, float] = {}
        self.progress = progress
        # Rollouts and updates of GRPO have a thread each: with more, either waits for the other's. What a second core
        # brings to the rest, another rank brings better.
        torch.set_num_threads(1)
        self._ranks = PartialState()
        out.mkdir(parents=True, exist_ok=True)
        if progress is not None and progress.done:
            console.print(
                f"{out}: taken up from an interrupted run: {', '.join(progress.done)}",
                soft_wrap=True,
            )
        elif self._ranks.is_main_process:
            for name in FOLDERS:
                shutil.rmtree(out / name, ignore_errors=True)
            for name in (SUMMARY_FILE, PLOT_FILE):
                (out / name).unlink(missing_ok=True)
            if progress is not None:
                progress.begin()
        self._ranks.wait_for_everyone()
        self.settings = load_settings(
            out / "grpo", recipe, seed, {} if progress is None else _CHECKPOINTS
        )
        torch.manual_seed(seed)
        self.tokenizer = make_tokenizer(
            recipe.world, self.settings.memory, self.settings.environment
        )
        self.model = make_model(recipe.size, self.tokenizer)
        self.embedder = make_embedder(self.settings.embedder)
        self.dialect = get_dialect(self.settings.memory.dialect, self.settings.memory.templates)
        self.heldout = self.tasks(_HELDOUT, recipe.heldout)
        if self._ranks.is_main_process:
            save_tasks(self.heldout, out / HELDOUT_FILE)

    def tasks(self, stream: int, count: int, world: Any = None) -> list[Task]:
        """`count` tasks of one stream of this run, of the recipe's world or another of its kind."""
        world, seed = world or self.recipe.world, 10 * self.seed + stream
        capacities = self.settings.memory.capacities
        if not capacities:
            return list(world_of(world).generate(world, count, seed))
        names = [task_name(seed, index) for index in range(count)]
        worlds = [bounded_world(world, drawn_capacity(capacities, name), name) for name in names]
        return [make_task(one, seed, index) for index, one in enumerate(worlds)]

    def _taken_up(self, stage: str) -> bool:
        """Whether an interrupted run ended this stage; the model is then as the stage left it."""
        found = self.progress.done.get(stage) if self.progress is not None else None
        if found is None:
            return False
        self.seconds[_NAMES[stage]] = found["seconds"]
        load_model(self.model, self.out / stage / SAFE_WEIGHTS_NAME)
        return True

    def _ended(self, stage: str) -> None:
        if self.progress is not None and self._ranks.is_main_process:
            self.progress.add(stage, seconds=self.seconds[_NAMES[stage]])

    def learn_to_copy(self) -> None:
        """Pretraining: the ability to look something up in the context."""
        if self._taken_up("pretrained"):
            return
        with self._phase(
            "pretrain", "Pretraining on copying (a policy that cannot copy cannot use a memory)"
        ):
            rank, ranks = self._ranks.process_index, self._ranks.num_processes
            loss = pretrain_copying(
                self.model, self.recipe.copying, self.seed, rank == 0, rank, ranks
            )
            self.console.print(f"loss {loss:.3f} nats a token")
        if self.progress is not None and self._ranks.is_main_process:
            self.model.save_pretrained(self.out / "pretrained")
        self._ended("pretrained")

    def cold_start(self) -> None:
        """Supervised training on demonstrations that forget things."""
        if self._taken_up("cold_start"):
            return
        recipe = self.recipe.cold_start
        faults = ", ".join(
            f"{rate:.0%} of {name}s" for name, rate in asdict(recipe.faults).items() if rate
        )
        with self._phase(
            "sft", f"Cold start on {recipe.episodes} episodes of an expert that forgets {faults}"
        ):
            episodes = self.demonstrate(recipe.episodes)
            rows, scores = demonstrations(episodes), [episode.metrics["em"] for episode in episodes]
            if self._ranks.num_processes > 1:
                rows, scores = gather_object(rows), gather_object(scores)
            shown = sum(scores) / len(scores)
            self.console.print(f"{len(rows)} steps; the demonstrations' own EM is {shown:.2f}")
            args = ColdStartConfig(
                output_dir=str(self.out / "cold_start"),
                max_steps=recipe.steps,
                per_device_train_batch_size=recipe.batch_size // self._ranks.num_processes,
                learning_rate=recipe.learning_rate,
                lr_scheduler_type="cosine",
                warmup_steps=50,
                adam_beta2=0.95,
                logging_steps=max(1, recipe.steps // 10),
                save_strategy="no",
                report_to="none",
                dataloader_pin_memory=False,
                ddp_find_unused_parameters=False,
                seed=self.seed,
            )
            trainer = ColdStartTrainer(
                self.model, args, sft_dataset(rows), self.tokenizer, settings=self.settings.stored
            )
            use_console(trainer, SFT_COLUMNS)
            trainer.train()
            trainer.save_final()
        self._ended("cold_start")

    def demonstrate(self, count: int) -> list[Episode]:
        """Episodes of the faulty expert, through the one loop: this rank's part of `count`."""
        recipe = self.recipe
        prose = get_prose(recipe.world.prose)
        expert = world_of(recipe.world).expert(prose, self.dialect, recipe.cold_start.faults)
        policy = ExpertPolicy(expert, self.tokenizer, self.tokenizer.eos_token_id)
        runner = EpisodeRunner(self._agent(policy, keep_prompts=True), max_in_flight=256)
        tasks = self.tasks(_DEMONSTRATIONS, count)
        with self._ranks.split_between_processes(tasks) as own:
            return asyncio.run(runner.run_all([(task, 0) for task in own]))

    def evaluate(self, name: str, tasks: Sequence[Task] | None = None) -> EvalResult:
        """Held-out EM, with the sampling of training, and without what `name` switches off, where it is one of
        `ABLATIONS`; traces go to ``eval/NAME``. `tasks` are instead of the held-out ones.
        """
        policy = LocalPolicy(self.model, self.tokenizer)
        runner = EpisodeRunner(self._agent(policy, ABLATIONS.get(name, ())))
        tasks = self.heldout if tasks is None else tasks
        if name == "tools_off":
            tasks = [replace(task, documents=(), metadata={}) for task in tasks]
        elif name == "injected_off":
            tasks = self.tasks(_HELDOUT, len(tasks), replace(self.recipe.world, injected=0.0))

        async def run() -> EvalResult:
            try:
                return await evaluate(tasks, runner, self.out / "eval" / name, progress=False)
            finally:
                await policy.close()

        with self._phase(f"eval_{name}"):
            result = asyncio.run(run())
        self._tell(name, result)
        return result

    def evaluate_all(self, names: Sequence[str]) -> dict[str, EvalResult]:
        """`evaluate` for each, which the ranks share."""
        rank, ranks = self._ranks.process_index, self._ranks.num_processes
        found = {name: self.evaluate(name) for name in names[rank::ranks]}
        if ranks > 1:
            seconds = {name: self.seconds[f"eval_{name}"] for name in found}
            for results, theirs in gather_object([(found, seconds)]):
                for name in results.keys() - found.keys():
                    found[name], self.seconds[f"eval_{name}"] = results[name], theirs[name]
                    self._tell(name, found[name])
        return {name: found[name] for name in names}

    def _tell(self, name: str, result: EvalResult) -> None:
        self.console.print(f"held-out EM, {LABELS.get(name, name).strip()}: {result.em:.3f}")

    def grpo(self, world: Any = None) -> None:
        """Reinforcement learning: whole episodes, one terminal reward, group-relative advantages; on tasks of the
        recipe's world, or another of its kind.
        """
        if self._taken_up("grpo"):
            return
        settings = self.settings
        args = settings.args
        args.resume_from_checkpoint = (
            "auto" if self.progress is not None and list_checkpoints(args.output_dir) else None
        )
        resume = checkpoint_to_resume(args, settings.memory)
        size = args.num_generations or 1
        groups = (args.generation_batch_size or size) // size
        with self._phase(
            "grpo", f"GRPO: {args.max_steps} updates of {groups} tasks with {size} episodes each"
        ):
            rollouts = Rollouts(
                args, self.tokenizer, self.embedder, settings.memory, settings.environment
            )
            trainer = MemoryGRPOTrainer(
                self.model,
                args,
                self.tasks(_TRAINING, groups * args.max_steps, world),
                self.tokenizer,
                partial(make_local_backend, rollouts),
                settings=settings.stored,
            )
            use_console(trainer, [column for column in GRPO_COLUMNS if column[0] in _GRPO_SHOWN])
            if resume:
                self.console.print(f"from {resume}, of an interrupted run", soft_wrap=True)
            try:
                trainer.train(resume_from_checkpoint=resume)
            except TrainingInterrupted:  # its text is of a flag that `atommem train` has
                raise KeyboardInterrupt from None
            finally:
                trainer.close()
            trainer.save_final()
        self._ended("grpo")
        if self._ranks.is_main_process:
            for checkpoint in list_checkpoints(args.output_dir):
                remove_checkpoint(checkpoint)

    def _agent(
        self, policy: Any, disabled: Sequence[str] = (), keep_prompts: bool = False
    ) -> Agent:
        """`policy` in the demo's world, sampled as in training, with some memory actions switched off."""
        settings, train = self.settings, self.settings.args
        return Agent(
            policy=policy,
            embedder=self.embedder,
            tokenizer=self.tokenizer,
            environments=make_environments(settings.environment, self.tokenizer),
            memory=replace(settings.memory, disabled_actions=list(disabled)),
            sampling=Sampling(
                train.temperature, max_tokens=train.max_completion_length or 48, seed=self.seed
            ),
            keep_prompts=keep_prompts,
        )

    @contextmanager
    def _phase(self, name: str, title: str = "") -> Iterator[None]:
        """Announces a phase and notes how long it took."""
        if title:
            self.console.print(f"\n[bold]{title}", soft_wrap=True)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        if title:
            self.console.print(f"({self.seconds[name]:.0f} s)")


def run_demo(
    recipe: Recipe, out: Path, seed: int, console: Console, started: float | None = None
) -> dict[str, Any]:
    """Run all phases, write ``summary.json`` and the plot, print the table; returns the summary.

    One that was interrupted goes on, given the same recipe, folder and seed. `started` is the `time.perf_counter()`
    from which ``seconds_total`` counts, beside the stages that were taken up; unset is now.
    """
    started = time.perf_counter() if started is None else started
    disable_progress_bar()  # of saving one file of weights
    progress = Progress(out, recipe, seed)
    started -= sum(stage["seconds"] for stage in progress.done.values())
    demo = Demo(recipe, out, seed, console, progress)
    demo.learn_to_copy()
    demo.cold_start()
    results = demo.evaluate_all(["before"])
    demo.grpo()
    results |= demo.evaluate_all(["after", *recipe.ablations])
    summary = summarize(results, demo.seconds, time.perf_counter() - started, seed)
    if not PartialState().is_main_process:
        return summary
    lines = {"held-out EM after": summary["em_after"], "held-out EM before": summary["em_before"]}
    plot = plot_training(read_metrics(out / "grpo" / METRICS_FILE), out / PLOT_FILE, lines)
    write_json(out / SUMMARY_FILE, summary)
    progress.end()
    console.print()
    console.print(results_table(results))
    print_outcome(summary, recipe.bars, console)
    trace = min((out / "eval" / "after" / TRACES).iterdir())
    for label, path in (
        ("summary", out / SUMMARY_FILE),
        ("reward and action rates over training", plot),
        ("trained policy", out / "grpo"),
        ("policy before GRPO", out / "cold_start"),
        ("held-out tasks", out / HELDOUT_FILE),
        ("evaluations with all traces", out / "eval"),
    ):
        console.print(f"{label}: {path}", soft_wrap=True)
    console.print(f"Replay an episode: atommem trace {trace}", soft_wrap=True)
    return summary

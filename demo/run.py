"""The demo: make a policy, show it faulty demonstrations, train it, measure it."""

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from transformers import logging

from atommem.demo.recipe import Recipe, grpo_config, make_expert, make_tasks, world_words
from atommem.demo.tiny_policy import make_model, pretrain_copying, prompt_words, word_tokenizer
from atommem.dialects import get_dialect
from atommem.embedding import make_embedder
from atommem.envs.scoring.records import EvalResult, compare
from atommem.envs.synthetic.expert import ExpertPolicy
from atommem.envs.task import Task
from atommem.envs.task_files import save_tasks
from atommem.envs.web.site import refuse_orders
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.eval.runner import TRACES, evaluate
from atommem.files import write_json
from atommem.policy.contract import Completion, Sampling
from atommem.policy.local import LocalPolicy
from atommem.rollout import Agent, EpisodeRunner
from atommem.run import build_agent
from atommem.train.console import (
    GRPO_COLUMNS,
    METRICS_FILE,
    PLOT_FILE,
    SFT_COLUMNS,
    plot_training,
    read_metrics,
    use_console,
)
from atommem.train.errors import TrainingInterrupted
from atommem.train.loops.grpo_trainer import MemoryGRPOTrainer
from atommem.train.loops.sft import ColdStartTrainer, demonstrations, sft_dataset
from atommem.train.rollout.backends import make_local_backend
from atommem.train.rollout.rollouts import Rollouts
from atommem.train.settings import Settings, read_settings
from atommem.train.train_config import ColdStartConfig

SUMMARY_FILE = "summary.json"

ABLATIONS: Mapping[str, tuple[str, ...]] = {
    "store_off": ("create", "read", "update", "delete"),
    **{f"{name}_off": (name,) for name in ("scratchpad", "update", "delete")},
    **dict.fromkeys(("tools_off", "injected_off", "orders_off"), ()),
}
"""Evaluations of the trained policy without memory actions, or with a web without pages (tools) or
instructions on them (injected), or with a rule that drops what a page asks for (orders)."""

LABELS = {
    "before": "before GRPO",
    "after": "after GRPO",
    **{name: f"  {name.replace('_', ' ')}" for name in ABLATIONS},
    "injected_off": "  instructions off",
    "orders_off": "  orders refused",
}
_ACTIONS = ("create", "read", "update", "delete", "scratchpad")


def summarize(
    results: Mapping[str, EvalResult], seconds: Mapping[str, float], total: float, seed: int
) -> dict[str, Any]:
    """Return the contents of ``summary.json`` from evaluations by name and seconds by phase."""
    before, after = results["before"], results["after"]
    paired = compare(before.records, after.records)
    summary = {
        "em_before": before.em,
        "em_after": after.em,
        "n": len(after.records),
        "p_value": paired.p_value,
        "better": paired.wins,
        "worse": paired.losses,
        **{f"em_{name}": results[name].em for name in ABLATIONS if name in results},
        "actions_before": _rates(before),
        "actions_after": _rates(after),
        "seconds_total": round(total, 1),
        "seconds_sft": round(seconds["pretrain"] + seconds["sft"], 1),
        "seconds_grpo": round(seconds["grpo"], 1),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "seed": seed,
    }
    for name, result in results.items():
        if followed := result.summary()["metrics"].get("injection_followed"):
            summary[f"followed_{name}"] = followed["mean"]
    return summary


def _rates(result: EvalResult) -> dict[str, float]:
    means = result.summary()["means"]
    return {action: round(means.get(f"actions/{action}", 0.0), 4) for action in _ACTIONS}


def results_table(results: Mapping[str, EvalResult]) -> Table:
    tasks = max(len(result.records) for result in results.values())
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    table.title = f"{tasks} held-out tasks, sampled at temperature 1"
    table.caption = "actions per step as the policy writes them; one that is off has no effect"
    table.title_justify = table.caption_justify = "left"
    actions = [name for name in _ACTIONS if name != "delete" or "delete_off" in results]
    table.add_column("", no_wrap=True)
    for heading in ("EM", "95% interval", *(name.removesuffix("pad") for name in actions)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        scored = ["-", "-"]
        if em := result.summary()["metrics"].get("em"):
            scored = [f"{em['mean']:.3f}", f"{em['low']:.3f}-{em['high']:.3f}"]
        rates = _rates(result)
        table.add_row(LABELS[name], *scored, *(f"{rates[action]:.2f}" for action in actions))
    return table


def print_outcome(summary: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"GRPO changed the answer on {summary['better'] + summary['worse']} of {summary['n']} "
        f"held-out tasks: {summary['better']} became right, {summary['worse']} wrong "
        f"(sign-flip test p = {summary['p_value']:.2g})."
    )
    if "followed_after" in summary:
        before, after = summary["followed_before"], summary["followed_after"]
        rates = f"before GRPO {before:.3f}, after GRPO {after:.3f}"
        console.print(f"Injected instructions were followed in this share of episodes: {rates}.")
    console.print(f"{summary['seconds_total']:.0f} s in all (seed {summary['seed']})")


HELDOUT_FILE = "heldout.parquet"
_FOLDERS = ("cold_start", "grpo", "eval")
_GRPO_HEADINGS = {"reward", "create", "read", "update", "scratch", "malform", "store", "tokens"}
_GRPO_HEADINGS |= {"no var", "roll s", "train s"}
_HELDOUT, _DEMONSTRATIONS, _TRAINING = 1, 2, 3  # streams of tasks with different seeds


def load_settings(out: Path, recipe: Recipe, seed: int = 0) -> Settings:
    """Read the YAML file of the recipe's world, with the recipe's settings, for output in `out`."""
    given = {"max_steps": recipe.updates, "capacity": recipe.capacity}
    words = {"output_dir": [str(out)], "seed": [str(seed)], **recipe.settings}
    words |= {name: [str(value)] for name, value in given.items() if value is not None}
    arguments = ["--config", str(grpo_config(recipe.world))]
    arguments += [word for name in words for word in (f"--{name}", *words[name])]
    settings = read_settings("grpo", arguments)
    ranks = PartialState().num_processes
    if ranks > 1:  # the file's batch is that of all
        batch = settings.args.per_device_train_batch_size // ranks
        settings = read_settings("grpo", [*arguments, "--per_device_train_batch_size", str(batch)])
    return settings


class Demo:
    """One run of the demo; its methods are the phases, in order.

    An earlier demo in `out` is replaced. All ranks make the same calls; the first one writes.
    """

    def __init__(self, recipe: Recipe, out: Path, seed: int, console: Console) -> None:
        self.recipe, self.out, self.seed, self.console = recipe, out, seed, console
        self.seconds: dict[str, float] = {}
        # Rollouts and updates would wait for each other's threads; a second core serves a rank.
        torch.set_num_threads(1)
        self._ranks = PartialState()
        if self._ranks.is_main_process:
            for name in _FOLDERS:
                shutil.rmtree(out / name, ignore_errors=True)
            for name in (SUMMARY_FILE, PLOT_FILE):
                (out / name).unlink(missing_ok=True)
            out.mkdir(parents=True, exist_ok=True)
        self._ranks.wait_for_everyone()
        self.settings = load_settings(out / "grpo", recipe, seed)
        run = self.settings.run
        torch.manual_seed(seed)
        words = prompt_words(run.environment, run.memory) + world_words(recipe.world, run.memory)
        self.tokenizer = word_tokenizer(words)
        self.model = make_model(recipe.size, self.tokenizer)
        self.embedder = make_embedder(run.embedder)
        self.heldout = self.tasks(_HELDOUT, recipe.heldout)
        if self._ranks.is_main_process:
            save_tasks(self.heldout, out / HELDOUT_FILE)

    def tasks(self, stream: int, count: int, world: Any = None) -> list[Task]:
        """Generate `count` tasks of one stream, of the recipe's world or another of its kind."""
        capacities = self.settings.run.memory.capacities
        world, seed = world or self.recipe.world, 10 * self.seed + stream
        return make_tasks(world, count, seed, capacities, self.recipe.binding)

    def learn_to_copy(self) -> None:
        title = "Pretraining on copying (a policy that cannot copy cannot use a memory)"
        with self._timed("pretrain", title):
            ranks = self._ranks.process_index, self._ranks.num_processes
            loss = pretrain_copying(self.model, self.recipe.copying, self.seed, *ranks)
            self.console.print(f"loss {loss:.3f} nats a token")

    def cold_start(self) -> None:
        recipe = self.recipe.cold_start
        rates = asdict(recipe.faults).items()
        faults = ", ".join(f"{name} {rate:.0%}" for name, rate in rates if 0 < rate < 1)
        title = f"Cold start on {recipe.episodes} episodes of an expert with faults: {faults}"
        with self._timed("sft", title):
            episodes = self._demonstrate(recipe.episodes)
            rows = gather_object(demonstrations(episodes))
            scores = gather_object([episode.metrics["em"] for episode in episodes])
            mean = sum(scores) / len(scores)
            self.console.print(f"{len(rows)} steps; the demonstrations' own EM is {mean:.2f}")
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
            dataset, stored = sft_dataset(rows), self.settings.stored
            trainer = ColdStartTrainer(self.model, args, dataset, self.tokenizer, settings=stored)
            use_console(trainer, SFT_COLUMNS)
            trainer.train()
            trainer.save_final()

    def _demonstrate(self, count: int) -> list[Episode]:
        memory, recipe = self.settings.run.memory, self.recipe
        dialect = get_dialect(memory.dialect, memory.templates)
        expert = make_expert(recipe.world, dialect, recipe.cold_start.faults)
        policy = ExpertPolicy(expert, self.tokenizer, self.tokenizer.eos_token_id)
        runner = EpisodeRunner(self._agent(policy, keep=True), max_in_flight=256)
        with self._ranks.split_between_processes(self.tasks(_DEMONSTRATIONS, count)) as own:
            return asyncio.run(runner.run_all([(task, 0) for task in own]))

    def evaluate(self, name: str, tasks: Sequence[Task] | None = None) -> EvalResult:
        """Measure held-out EM with the sampling of training; traces go to ``eval/NAME``.

        `name` is ``before``, ``after``, or one of `ABLATIONS`, which switches something off.
        """
        kind = _Refusing if name == "orders_off" else LocalPolicy
        policy = kind(self.model, self.tokenizer)
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

        with self._timed(f"eval_{name}"):
            return asyncio.run(run())

    def evaluate_all(self, names: Sequence[str]) -> dict[str, EvalResult]:
        """Share out `evaluate` of `names` among the ranks."""
        rank, ranks = self._ranks.process_index, self._ranks.num_processes
        found = {name: self.evaluate(name) for name in names[rank::ranks]}
        for theirs, seconds in gather_object([(found, self.seconds)]):
            found |= theirs
            self.seconds = {**seconds, **self.seconds}
        for name in names:
            self.console.print(f"held-out EM, {LABELS[name].strip()}: {found[name].em:.3f}")
        return {name: found[name] for name in names}

    def grpo(self) -> None:
        args = self.settings.args
        size = args.num_generations or 1
        groups = (args.generation_batch_size or size) // size
        title = f"GRPO: {args.max_steps} updates of {groups} tasks with {size} episodes each"
        with self._timed("grpo", title):
            rollouts = Rollouts(args, self.settings.run, self.tokenizer, self.embedder)
            backend, stored = partial(make_local_backend, rollouts), self.settings.stored
            tasks = self.tasks(_TRAINING, groups * args.max_steps)
            trainer = MemoryGRPOTrainer(
                self.model, args, tasks, self.tokenizer, backend, settings=stored
            )
            use_console(trainer, [column for column in GRPO_COLUMNS if column[0] in _GRPO_HEADINGS])
            try:
                trainer.train()
            except TrainingInterrupted:  # its message names a flag of `atommem train`
                raise KeyboardInterrupt from None
            finally:
                trainer.close()
            trainer.save_final()

    def _agent(self, policy: Any, disabled: Sequence[str] = (), keep: bool = False) -> Agent:
        run, train = self.settings.run, self.settings.args
        longest = train.max_completion_length or 48
        memory = replace(run.memory, disabled_actions=list(disabled))
        sampling = Sampling(train.temperature, max_completion_length=longest, seed=self.seed)
        changed = replace(run, memory=memory, sampling=sampling)
        shared = {"tokenizer": self.tokenizer, "embedder": self.embedder}
        return build_agent(changed, policy, keep_prompts=keep, **shared)

    @contextmanager
    def _timed(self, name: str, title: str = "") -> Iterator[None]:
        if title:
            self.console.print(f"\n[bold]{title}")
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        if title:
            self.console.print(f"({self.seconds[name]:.0f} s)")


class _Refusing(LocalPolicy):
    """Drops the actions that a page asks for (`refuse_orders`)."""

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        found = await super().complete(prompt_ids, sampling)
        text = refuse_orders(self.tokenizer.decode(prompt_ids), found.text)
        return replace(found, text=text)


def check_out(out: Path) -> None:
    """Raise `ConfigError` if the demo would replace what is not a demo's."""
    found = [name for name in (*_FOLDERS, SUMMARY_FILE) if (out / name).exists()]
    if found and not (out / HELDOUT_FILE).is_file():
        raise ConfigError(f"output_dir={out}: its {', '.join(found)} would be lost. Give another.")


def run_demo(
    recipe: Recipe, out: Path, seed: int, console: Console, started: float | None = None
) -> dict[str, Any]:
    """Run the demo, write summary and plot, and print the table; returns the summary."""
    started = time.perf_counter() if started is None else started
    logging.disable_progress_bar()  # of saving one file of weights
    demo = Demo(recipe, out, seed, console)
    demo.learn_to_copy()
    demo.cold_start()
    found = demo.evaluate_all(["before"])
    demo.grpo()
    found |= demo.evaluate_all(["after", *recipe.ablations])
    summary = summarize(found, demo.seconds, time.perf_counter() - started, seed)
    if not PartialState().is_main_process:
        return summary
    lines = {f"held-out EM {when}": summary[f"em_{when}"] for when in ("after", "before")}
    metrics = {"grpo": read_metrics(out / "grpo" / METRICS_FILE)}
    plot = plot_training(metrics, out / PLOT_FILE, lines)
    write_json(out / SUMMARY_FILE, summary)
    console.print("", results_table(found), sep="\n")
    print_outcome(summary, console)
    console.print(f"summary: {out / SUMMARY_FILE}; training: {plot}", soft_wrap=True)
    console.print(f"policies: {out / 'grpo'}, before GRPO {out / 'cold_start'}", soft_wrap=True)
    trace = min((out / "eval" / "after" / TRACES).iterdir())
    console.print(f"Replay an episode: atommem trace {trace}", soft_wrap=True)
    return summary

"""A plan for people (rich tables) and for programs (one JSON object)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from atommem.train.dry_run.costs import SYNC_BANDWIDTH, WAKE_SECONDS
from atommem.train.dry_run.memory_estimate import PHASES
from atommem.train.dry_run.plan import Plan
from atommem.train.dry_run.timeline import WITHOUT_VARIANCE

WIDTH = 120


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print it: batch, memory, time, what is assumed, and in the end what to change."""
    # Piped or in a log, lines are not broken at 80.
    console = console or Console(width=None if Console().is_terminal else WIDTH)
    launch, model = plan.launch, plan.model
    console.print(
        f"[bold]Dry run: {plan.run.stage}[/] of {model.name} ({_short(model.parameters)} parameters, "
        f"{_short(model.trainable)} trained; {model.source}) on {launch.processes} x {plan.device.name}, "
        f"{launch.name} ({launch.source}), rollouts: {plan.run.rollout}"
    )
    console.print(_table("One update, one process", [], _batch_rows(plan)))
    console.print(_memory_table(plan))
    if plan.timelines:
        console.print(_timeline_table(plan))
    seconds = plan.hours * 3600 / plan.workload.updates
    console.print(f"the run: {plan.workload.updates:,} updates of {seconds:,.0f} s, {plan.hours:,.1f} h", style="bold")
    for line in plan.assumptions:
        console.print(f"assumed: {line}", highlight=False, markup=False)
    given = [f"{name}={_shown(item)}" for name, item in plan.settings.items() if item["source"] != "default"]
    console.print("settings that are not defaults: " + ", ".join(given), highlight=False, markup=False)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="bold yellow", highlight=False, markup=False)
    if not plan.warnings:
        console.print("nothing stands in the way of this run.", style="bold green")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as one JSON object; bytes, FLOPs and seconds are plain numbers."""
    values = asdict(plan)
    values["memory"] = {
        "parts": {part.name: part.bytes for part in plan.memory.parts},
        "phases": {phase: plan.memory.phase(phase) for phase in PHASES},
        "peak": plan.memory.peak,
        "fits": plan.fits,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _batch_rows(plan: Plan) -> Iterable[tuple[str, ...]]:
    load = plan.workload
    if plan.run.stage != "sft":
        tasks = f"{load.tasks:,} tasks on all processes, {load.group} episodes of a task here"
        yield "episodes", f"{load.episodes:,}", f"of {load.steps:.1f} steps, at most {load.most_steps:.1f}; {tasks}"
    mean = f"{load.prompt_tokens:,.0f} prompt + {load.completion_tokens:,.0f} completion tokens"
    yield "rows", f"{load.rows:,}", f"{mean}, at most {load.longest_row:,} of a context of {plan.model.context:,}"
    shared = f"{load.raw_tokens / load.unique_tokens:.1f} raw tokens for each, shared prefixes once"
    yield "unique tokens", f"{load.unique_tokens:,}", shared
    yield "micro-batches", f"{load.micro_batches:,}", f"of about {load.micro_batch:,} tokens"
    costs = plan.costs
    flops = [("rollout", costs.rollout_flops), ("reference", costs.reference_flops), ("training", costs.training_flops)]
    total = sum(amount for _, amount in flops)
    yield "FLOP", _short(total), ", ".join(f"{name} {_short(amount)}" for name, amount in flops if amount)


def _memory_table(plan: Plan) -> Table:
    phases = [phase for phase in PHASES if phase != "rollout" or plan.run.rollout != "none"]
    if not plan.costs.reference_flops:
        phases.remove("reference")
    rows = [
        (part.name, *(f"{part.bytes / 1e9:,.2f}" if phase in part.phases else "" for phase in phases))
        for part in plan.memory.parts
    ]
    table = _table("Memory, one process", ["GB", *phases], rows)
    table.add_section()
    table.add_row("total", *(f"{plan.memory.phase(phase) / 1e9:,.2f}" for phase in phases))
    fits = "fits" if plan.fits else "does not fit"
    table.caption = (
        f"peak {plan.memory.peak / 1e9:,.2f} GB, {fits} the {plan.device.memory / 1e9:,.0f} GB of {plan.device.name}"
    )
    return table


def _timeline_table(plan: Plan) -> Table:
    rows = [(line.name, f"{line.seconds:,.0f}", f"{line.overlap:.0%}", f"{line.idle:.0%}") for line in plan.timelines]
    table = _table("Timeline, simulated", ["", "s an update", "sampling while training", "devices idle"], rows)
    costs, running = plan.costs, plan.workload.episodes
    decode = costs.decode_seconds + running * costs.sequence_seconds
    stated = [
        f"{running / decode:,.0f} tokens/s sampled with {running} episodes at once",
        f"prompts {costs.prompt_seconds:.1f} s, training {costs.training_seconds:.1f} s",
        f"new weights {costs.sync_seconds:.1f} s ({SYNC_BANDWIDTH / 1e9:.0f} GB/s)",
        f"where colocated {costs.switch_seconds or WAKE_SECONDS:.0f} s to wake and sleep",
        f"episodes' lengths deviate by {plan.completion.spread:.0%}",
        f"{WITHOUT_VARIANCE:.0%} of groups have no variance, where they are replaced",
    ]
    table.caption = "a device: " + "; ".join(stated)
    return table


def _table(title: str, head: list[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*head, title=title, title_justify="left", show_header=bool(head), caption_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def _short(number: float) -> str:
    for size, letter in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.2f}{letter}"
    return f"{number:.0f} "


def _shown(item: dict[str, Any]) -> str:
    value = item["value"]
    return f"{json.dumps(value) if isinstance(value, dict | list) else value} ({item['source']})"

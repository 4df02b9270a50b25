"""A plan for people (rich tables) and for programs (one JSON object)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from atommem.envs.task_files import write_text
from atommem.train.dry_run.plan import Plan
from atommem.train.dry_run.timeline import SYNC_BANDWIDTH, WAKE_SECONDS, WITHOUT_VARIANCE


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print it: batch, memory, time, what is assumed, and in the end what to change."""
    console = console or Console()  # piped or in a log: 80 wide, or as COLUMNS says
    launch, model = plan.run.launch, plan.run.model
    console.print(
        f"[bold]Dry run: {plan.run.stage}[/] of {model.name} ({model.parameters:,} parameters, {model.trainable:,} "
        f"trained; {model.source}) on {launch.processes} x {plan.run.device.name}, {launch.name} ({launch.source}), "
        f"rollouts: {plan.run.rollout}"
    )
    console.print(_table("One update, one process", [], _batch_rows(plan)))
    console.print(_memory_table(plan))
    if plan.timelines:
        console.print(_timeline_table(plan))
    console.print(
        f"the run: {plan.workload.updates:,} updates of {plan.seconds:,.0f} s, {plan.hours:,.1f} h",
        style="bold",
    )
    for line in plan.assumptions:
        console.print(f"assumed: {line}", highlight=False, markup=False)
    given = [
        f"{name}={_shown(**item)}"
        for name, item in plan.settings.items()
        if item["source"] != "default"
    ]
    console.print(
        "settings that are not defaults: " + ", ".join(given), highlight=False, markup=False
    )
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="bold yellow", highlight=False, markup=False)
    if not plan.warnings:
        console.print("nothing stands in the way of this run.", style="bold green")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as one JSON object; bytes and seconds are plain numbers."""
    memory = {
        "parts": {part.name: part.bytes for part in plan.parts},
        "phases": plan.phases,
        "fits": plan.fits,
    }
    values = {**asdict(plan), "memory": memory, "hours": plan.hours}
    # What JSON does not know is a model's config, or an enumeration.
    text = json.dumps(
        values, indent=2, default=lambda value: getattr(value, "to_dict", value.__str__)()
    )
    write_text(path, text + "\n")


def _batch_rows(plan: Plan) -> Iterable[tuple[str, ...]]:
    load = plan.workload
    if load.episodes:
        tasks = f"{load.tasks:,} tasks on all processes, {load.group} episodes of a task here"
        if (updates := load.sharing * load.iterations) > 1:
            tasks += f"; {updates} updates on each rollout of {load.sharing * load.episodes:,}"
        yield "episodes", f"{load.episodes:,}", f"of {load.steps:.1f} steps; {tasks}"
    mean = f"{load.prompt_tokens:,.0f} prompt + {load.completion_tokens:,.0f} completion tokens"
    yield (
        "rows",
        f"{load.rows:,}",
        f"{mean}, at most {load.longest_row:,} of a context of {plan.run.model.context:,}",
    )
    shared = f"{load.raw_tokens / load.unique_tokens:.1f} raw tokens for each, shared prefixes once"
    yield "unique tokens", f"{load.unique_tokens:,}", shared
    yield "micro-batches", f"{load.micro_batches:,}", f"of about {load.micro_batch:,} tokens"


def _memory_table(plan: Plan) -> Table:
    without = {"rollout": plan.run.rollout == "none", "reference": not plan.run.beta}
    phases = {phase: total for phase, total in plan.phases.items() if not without.get(phase)}
    rows = [
        (
            part.name,
            *(f"{part.bytes / 1e9:,.2f}" if phase in part.phases else "" for phase in phases),
        )
        for part in plan.parts
    ]
    table = _table("Memory, one process", ["GB", *phases], rows)
    table.add_section()
    table.add_row("total", *(f"{total / 1e9:,.2f}" for total in phases.values()))
    device, peak = plan.run.device, max(plan.phases.values())
    fits = "fits" if plan.fits else "does not fit"
    table.caption = (
        f"peak {peak / 1e9:,.2f} GB, {fits} the {device.memory / 1e9:,.0f} GB of {device.name}"
    )
    return table


def _timeline_table(plan: Plan) -> Table:
    rows = [
        (line.name, f"{line.seconds:,.0f}", f"{line.overlap:.0%}", f"{line.idle:.0%}")
        for line in plan.timelines
    ]
    table = _table(
        "Timeline, simulated",
        ["", "s an\nupdate", "sampling\nwhile training", "devices\nidle"],
        rows,
    )
    costs, running = plan.costs, plan.workload.episodes * plan.workload.sharing
    speed = running / (costs.decode + running * costs.sequence)
    table.caption = (
        f"a device: {speed:,.0f} tokens/s sampled with {running} episodes at once; prompts {costs.prompts:.1f} s, "
        f"training {costs.training:.1f} s; new weights {costs.sync:.1f} s ({SYNC_BANDWIDTH / 1e9:.0f} GB/s); where "
        f"colocated {WAKE_SECONDS:.0f} s to wake and sleep; episodes' lengths deviate by {plan.workload.spread:.0%}; "
        f"{WITHOUT_VARIANCE:.0%} of groups have no variance, where they are replaced"
    )
    return table


def _table(title: str, head: list[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(
        *head, title=title, title_justify="left", show_header=bool(head), caption_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def _shown(value: Any, source: str) -> str:
    return f"{json.dumps(value, default=str).strip(chr(34))} ({source})"

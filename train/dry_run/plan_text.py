"""A plan for people (rich tables) and for programs (one JSON object)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from atommem.train.dry_run.memory_estimate import PHASES
from atommem.train.dry_run.plan import Plan

WIDTH = 120


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print all of it: model, batch, memory, time, settings, warnings."""
    # Piped or in a log, lines are not broken at 80.
    console = console or Console(width=None if Console().is_terminal else WIDTH)
    launch, model, load, compute = plan.launch, plan.model, plan.workload, plan.compute
    console.print(
        f"[bold]Dry run: {plan.stage}[/] of {model.name} ({_short(model.parameters)} parameters, "
        f"{_short(model.trainable)} trained; {model.source}) on {launch.processes} x {plan.device.name}, "
        f"{launch.name} ({launch.source}), rollouts: {plan.rollout}"
    )
    console.print(_table("One update, one process", _batch_rows(plan)))
    console.print(_memory_table(plan))
    console.print(
        _table(
            "Time, one process",
            [
                ("rollout", f"{_short(compute.rollout_flops)}FLOP", f"{compute.rollout_seconds:,.1f} s"),
                ("reference", f"{_short(compute.reference_flops)}FLOP", f"{compute.reference_seconds:,.1f} s"),
                ("training", f"{_short(compute.training_flops)}FLOP", f"{compute.training_seconds:,.1f} s"),
                ("the run", f"{load.updates:,} updates", f"{compute.hours:,.1f} h"),
            ],
        )
    )
    for line in plan.assumptions:
        console.print(f"assumed: {line}", highlight=False, markup=False)
    given = [item for item in plan.settings if item.source != "default"]
    console.print(_table("Settings that are not defaults", [(i.name, _shown(i.value), i.source) for i in given]))
    defaults = [f"{item.name}={_shown(item.value)}" for item in plan.settings if item.source == "default"]
    console.print("defaults: " + " ".join(defaults), highlight=False, markup=False)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="bold yellow", highlight=False, markup=False)
    if not plan.warnings:
        console.print("nothing stands in the way of this run.", style="bold green")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan as one JSON object; bytes, FLOPs and seconds are plain numbers."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(plan_values(plan), indent=2) + "\n", encoding="utf-8")


def plan_values(plan: Plan) -> dict[str, Any]:
    """The plan as JSON takes it."""
    values = asdict(plan)
    values["memory"] = {
        "parts": {part.name: part.bytes for part in plan.memory.parts},
        "phases": {phase: plan.memory.phase(phase) for phase in PHASES},
        "peak": plan.memory.peak,
        "fits": plan.fits,
    }
    values["settings"] = {item.name: {"value": item.value, "source": item.source} for item in plan.settings}
    return values


def _batch_rows(plan: Plan) -> list[tuple[str, ...]]:
    load = plan.workload
    rows: list[tuple[str, ...]] = []
    if plan.stage != "sft":
        rows += [
            ("episodes", f"{load.episodes:,}", f"{load.tasks:,} tasks on all processes; {load.group} of a task here"),
            (
                "steps an episode",
                f"{load.steps:.1f}",
                f"{load.reading_steps:.1f} reading, {load.answering_steps:.1f} answering; at most "
                f"{load.most_steps:.1f}",
            ),
        ]
    shared = load.raw_tokens / load.unique_tokens
    sharing = []
    if plan.stage != "sft":
        sharing = [
            ("unique tokens", f"{load.unique_tokens:,}", f"{shared:.1f} raw tokens for each, shared prefixes once")
        ]
    return [
        *rows,
        (
            "rows",
            f"{load.rows:,}",
            f"{load.prompt_tokens:,.0f} prompt + {load.completion_tokens:,.0f} completion tokens",
        ),
        ("longest row", f"{load.longest_row:,}", f"tokens, of a context of {plan.model.context:,}"),
        ("raw tokens", f"{load.raw_tokens:,}", f"{load.raw_tokens * load.processes:,} on all processes"),
        *sharing,
        ("micro-batches", f"{load.micro_batches:,}", f"of about {load.micro_batch:,} tokens"),
    ]


def _memory_table(plan: Plan) -> Table:
    phases = [phase for phase in PHASES if phase != "rollout" or plan.rollout != "none"]
    if not plan.compute.reference_flops:
        phases.remove("reference")
    table = Table("GB", *phases, title="Memory, one process", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for part in plan.memory.parts:
        table.add_row(part.name, *(f"{part.bytes / 1e9:,.2f}" if phase in part.phases else "" for phase in phases))
    table.add_section()
    table.add_row("total", *(f"{plan.memory.phase(phase) / 1e9:,.2f}" for phase in phases))
    fits = "fits" if plan.fits else "does not fit"
    table.caption = (
        f"peak {plan.memory.peak / 1e9:,.2f} GB, {fits} the {plan.device.memory / 1e9:,.0f} GB of {plan.device.name}"
    )
    return table


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


def _short(number: float) -> str:
    for size, letter in ((1e18, " E"), (1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.2f}{letter}"
    return f"{number:.0f} "


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)

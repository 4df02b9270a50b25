"""Check what scripts/real_eval and scripts/real_train wrote, and print a summary.

    python scripts/real_check.py eval --tasks N EVAL_DIR...
    python scripts/real_check.py train --updates N GRPO_DIR

The last line is one JSON object with "holds"; the exit status is 0 if and only if that is true.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from common import command_line, last_line

from atommem.errors import TraceError
from atommem.memory.log import POLICY
from atommem.trace import Trace, read_trace


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; none if it does not exist."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def check_eval(folder: Path, tasks: int) -> dict[str, Any]:
    """Figures of one evaluation, and ``problems``: what is missing or has no reason."""
    records = {record["task_id"]: record for record in read_lines(folder / "episodes.jsonl")}
    problems = [] if len(records) == tasks else [f"{len(records)} of {tasks} episodes are recorded"]
    traces: dict[str, Trace] = {}
    for path in sorted((folder / "traces").glob("*.jsonl")):
        try:
            trace = read_trace(path)
        except TraceError as error:
            problems.append(str(error))
            continue
        if trace.complete:
            traces[trace.episode.task_id] = trace
        else:
            problems.append(f"{path} ends before its episode does")
    problems += [f"{task_id} has no complete trace" for task_id in records if task_id not in traces]
    failed = [record for record in records.values() if record["stop_reason"] == "failed"]
    problems += [f"{one['task_id']} failed without a reason" for one in failed if not one["error"]]
    steps = [step for trace in traces.values() for step in trace.episode.steps]
    operations = [operation for step in steps for operation in step.operations]
    scored = [question["metrics"] for one in records.values() for question in one["questions"]]
    return {
        "tasks": len(records),
        "traces": len(traces),
        "failed": len(failed),
        "endings": dict(Counter(record["stop_reason"] for record in records.values())),
        "errors": dict(Counter(record["error"] for record in failed)),
        "steps": len(steps),
        "actions": sum(len(step.actions) for step in steps),
        "operations": sum(operation.actor == POLICY for operation in operations),
        "skipped": dict(Counter(str(one.reason) for step in steps for one in step.problems)),
        **{name: round(mean(one[name] for one in scored), 4) for name in ("em", "f1") if scored},
        "problems": problems,
    }


def check_train(folder: Path, updates: int) -> dict[str, Any]:
    """Figures of the updates, and ``problems`` with losses or weights."""
    from safetensors.torch import load_file

    entries = [entry for entry in read_lines(folder / "metrics.jsonl") if "loss" in entry]
    names = ("loss", "grad_norm", "reward", "frac_reward_zero_std")
    figures: dict[str, Any] = {name: [entry.get(name) for entry in entries] for name in names}
    problems = (
        [] if len(entries) == updates else [f"{len(entries)} of {updates} updates are logged"]
    )
    problems += [
        f"{name} is not finite: {figures[name]}"
        for name in ("loss", "grad_norm")
        if not all(value is not None and math.isfinite(value) for value in figures[name])
    ]
    weights = load_file(folder / "adapter_model.safetensors").items()
    matrices = [weight for name, weight in weights if "lora_B" in name]
    figures["lora_b_changed"] = sum(bool(weight.any()) for weight in matrices)
    if not figures["lora_b_changed"]:
        problems.append("no lora_B matrix has left its initial zero: no group had unequal rewards")
    if not all(bool(weight.isfinite().all()) for weight in matrices):
        problems.append("a lora_B matrix is not finite")
    return {**figures, "problems": problems}


def main(argv: list[str] | None = None) -> int:
    """Check the folders."""
    parser = command_line(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    evaluation = commands.add_parser("eval", help="folders of `atommem eval`")
    evaluation.add_argument("folders", nargs="+", type=Path, metavar="EVAL_DIR")
    evaluation.add_argument("--tasks", type=int, required=True, help="tasks in each")
    training = commands.add_parser("train", help="the folder of `atommem train grpo` with LoRA")
    training.add_argument("folders", nargs=1, type=Path, metavar="GRPO_DIR")
    training.add_argument("--updates", type=int, required=True, help="updates that it should have")
    options = parser.parse_args(argv)
    results = {}
    for folder in options.folders:
        if options.command == "eval":
            found = check_eval(folder, options.tasks)
        else:
            found = check_train(folder, options.updates)
        results[folder.name] = found
        print(folder, *(f"  {name:<22} {value}" for name, value in found.items()), sep="\n")
    holds = not any(found["problems"] for found in results.values())
    return last_line({**results, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

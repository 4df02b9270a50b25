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
from typing import Any

from common import command_line, last_line

from atommem.errors import TraceError
from atommem.memory.log import POLICY
from atommem.trace import Trace, read_trace


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; none when it is not there."""
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.is_file()
        else []
    )


def check_eval(folder: Path, tasks: int) -> dict[str, Any]:
    """Figures of one evaluation, and ``problems``: what is missing or has no name."""
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
    endings: Counter[str] = Counter()
    for task_id, record in records.items():
        ending = record["stop_reason"]
        if ending == "failed":
            ending = f"failed: {record['error']}"
            if not record["error"]:
                problems.append(f"{task_id} failed without a reason")
        endings[ending] += 1
    steps = [step for trace in traces.values() for step in trace.episode.steps]
    skipped = Counter(str(problem.reason) for step in steps for problem in step.problems)
    scored = [question for record in records.values() for question in record["questions"]]
    return {
        "tasks": len(records),
        "traces": len(traces),
        "failed": sum(record["stop_reason"] == "failed" for record in records.values()),
        "endings": dict(endings),
        "steps": len(steps),
        "actions": sum(len(step.actions) for step in steps),
        "operations": sum(
            operation.actor == POLICY for step in steps for operation in step.operations
        ),
        "skipped": dict(skipped),
        "em": _mean([question["metrics"]["em"] for question in scored]),
        "f1": _mean([question["metrics"]["f1"] for question in scored]),
        "problems": problems,
    }


def check_train(folder: Path, updates: int) -> dict[str, Any]:
    """Figures of the updates, and ``problems`` with losses or weights."""
    entries = [entry for entry in read_lines(folder / "metrics.jsonl") if "loss" in entry]
    figures: dict[str, Any] = {
        name: [entry.get(name) for entry in entries]
        for name in ("loss", "grad_norm", "reward", "frac_reward_zero_std")
    }
    figures["lora_b"] = _lora_b(folder)
    problems = (
        [] if len(entries) == updates else [f"{len(entries)} of {updates} updates are logged"]
    )
    problems += [
        f"{name} is not finite: {figures[name]}"
        for name in ("loss", "grad_norm")
        if not all(
            isinstance(value, int | float) and math.isfinite(value) for value in figures[name]
        )
    ]
    if not figures["lora_b"]["changed"]:
        problems.append("no lora_B matrix has left its initial zero: no group had unequal rewards")
    return {**figures, "problems": problems}


def _lora_b(folder: Path) -> dict[str, Any]:
    """How many of the adapter's B matrices, which begin as zeros, are zero no more."""
    from safetensors.torch import load_file

    matrices = [
        weight
        for name, weight in load_file(folder / "adapter_model.safetensors").items()
        if "lora_B" in name
    ]
    largest = max(float(weight.abs().max()) for weight in matrices)
    return {
        "matrices": len(matrices),
        "changed": sum(bool(weight.any()) for weight in matrices) if math.isfinite(largest) else 0,
        "largest": largest,
    }


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _print(title: str, figures: dict[str, Any]) -> None:
    print(title)
    for name, value in figures.items():
        print(f"  {name:<22} {value}")


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = command_line(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    evaluation = commands.add_parser("eval", help="folders of `atommem eval`")
    evaluation.add_argument("folders", nargs="+", type=Path, metavar="EVAL_DIR")
    evaluation.add_argument("--tasks", type=int, required=True, help="tasks in each")
    training = commands.add_parser("train", help="the folder of `atommem train grpo` with LoRA")
    training.add_argument("folders", nargs=1, type=Path, metavar="GRPO_DIR")
    training.add_argument("--updates", type=int, required=True, help="updates it should have made")
    arguments = parser.parse_args(argv)
    results = {}
    for folder in arguments.folders:
        check, count = (
            (check_eval, arguments.tasks)
            if arguments.command == "eval"
            else (check_train, arguments.updates)
        )
        results[folder.name] = check(folder, count)
        _print(str(folder), results[folder.name])
    holds = not any(result["problems"] for result in results.values())
    return last_line({**results, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

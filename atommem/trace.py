"""Traces: one JSON Lines file an episode, from which it can be replayed.

Line 1 is the header (task, sample, settings), then one line a step, then the end (answers, reward,
stop reason). `PromptBuilder` makes the prompts again from a step's observation and view.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atommem.episode import Episode, Step
from atommem.errors import TraceError, suggest_path
from atommem.files import write_text
from atommem.memory.log import to_json

FORMAT = 2


@dataclass(frozen=True)
class Trace:
    """A trace file's content; `complete` is False if the file ends before the episode."""

    task: dict[str, Any]
    config: dict[str, Any]
    episode: Episode
    complete: bool


def write_trace(
    path: str | Path, episode: Episode, task: Mapping[str, Any], config: Mapping[str, Any] = {}
) -> Path:
    """Write an episode to a file as a whole, without prompt ids and log-probabilities."""
    path = Path(path)
    end = msgspec.to_builtins(episode)
    header = {name: end.pop(name) for name in ("task_id", "sample")}
    header = {"type": "episode", "format": FORMAT, **header, "task": dict(task)}
    header["config"] = dict(config)
    del end["steps"]
    steps = [step_record(step, tokens=False) for step in episode.steps]
    lines = [header, *steps, {"type": "end", **end, "seconds": round(episode.seconds, 4)}]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_trace(path: str | Path) -> Trace:
    """Read a trace, as far as it goes; raise TraceError if it is missing or damaged."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    except OSError as error:
        inside = next(path.rglob("*.0.jsonl"), None) if path.is_dir() else None
        hint = suggest_path(path) if inside is None else f" (did you mean {inside}?)"
        raise TraceError(f"cannot read the trace {path}{hint}: {error.strerror}.") from error
    records: list[Any] = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the last line of a file that was cut off
    try:
        header = records[0] if records else {}
        if not isinstance(header, dict) or header.get("type") != "episode":
            raise TraceError(f"{path}: not a trace. `atommem eval` and `ask --trace` write them.")
        if header["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        complete = records[-1]["type"] == "end"
        end = records.pop() if complete else {}
        episode = msgspec.convert({**header, **end}, Episode)
        episode.steps = [msgspec.convert(record, Step) for record in records[1:]]
        return Trace(header["task"], header["config"], episode, complete)
    except (LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__} {error}"
        raise TraceError(f"{path}: not a trace, or damaged ({problem}).") from error


def step_record(step: Step, tokens: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"type": "step", **msgspec.to_builtins(step)}
    record["operations"] = [to_json(operation) for operation in step.operations]
    record["seconds"] = round(step.seconds, 4)
    if not tokens:
        del record["prompt_ids"], record["logprobs"]
    return record

"""Traces: one JSON Lines file an episode, with everything needed to replay it.

Line 1 is the header (task, sample, memory settings), then one line a step, then the end (answers,
reward, stop reason). Prompts are not stored unless asked for: `PromptBuilder` makes them again from what is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from atommem.actions import Action, Problem, ProblemReason
from atommem.episode import Episode, Step
from atommem.errors import TraceError, suggest_path
from atommem.memory.log import MemoryView, Retrieved, operation_from_json, to_json
from atommem.observation import Observation, Piece, StopReason

FORMAT = 2
_MAYBE = ("question_metrics", "question_notes")
"""Left out where nothing is said."""
_END = ("answers", "reward", "metrics", *_MAYBE, "stop_reason", "error", "seconds")
"""What an episode has when it has ended."""


@dataclass(frozen=True)
class Trace:
    """A trace as read. `complete` is False when the file ends before the episode does."""

    task: dict[str, Any]
    config: dict[str, Any]
    episode: Episode
    complete: bool


def write_trace(
    path: str | Path,
    episode: Episode,
    task: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    *,
    tokens: bool = False,
) -> Path:
    """Write an episode to `path`, whole or not at all.

    `task` says what the reader should know of the task (id, questions, golds), `config` under which
    settings it ran; both must be JSON values. With `tokens` the prompt ids and log-probabilities are
    written too: everything that training takes from an episode.
    """
    path = Path(path)
    header = {
        "type": "episode",
        "format": FORMAT,
        "task_id": episode.task_id,
        "sample": episode.sample,
        "task": dict(task),
        "config": dict(config or {}),
    }
    end = (
        {"type": "end"}
        | {name: getattr(episode, name) for name in _END}
        | {"seconds": round(episode.seconds, 4)}
    )
    for name, said in zip(
        _MAYBE, (episode.question_metrics, any(episode.question_notes)), strict=True
    ):
        if not said:
            del end[name]
    lines = [header, *(step_record(step, tokens) for step in episode.steps), end]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.replace(draft, path)
    return path


def read_trace(path: str | Path) -> Trace:
    """Read a trace; one that was cut off is read as far as it goes.

    Prompt ids and log-probabilities are part of a trace only if it was written with them: otherwise the
    steps' lists are empty.

    Raises:
        TraceError: There is no such file, or it is not a trace.
    """
    path = Path(path)
    try:
        raw = path.read_text(encoding="utf-8")
    except OSError as error:
        hint = (
            suggest_path(path)
            or ": give a file, as in the folder traces/ of an evaluation or a training run"
        )
        raise TraceError(
            f"cannot read the trace {path}: {error.strerror or error}{hint}."
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not a trace: it is not UTF-8 text.") from error
    records = []
    for number, line in enumerate(raw.rstrip("\n").split("\n"), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == 1:
                raise TraceError(
                    f"{path} is not a trace: line 1 is not JSON ({error.msg})."
                ) from error
            break
    header = records[0] if records else None
    if not isinstance(header, dict) or header.get("type") != "episode":
        raise TraceError(f"{path} is not a trace: its first line is not an episode header.")
    if header.get("format") != FORMAT:
        raise TraceError(
            f"{path} has trace format {header.get('format')!r}, this version reads {FORMAT}."
        )
    try:
        return _trace(header, records[1:])
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} is a broken trace: {type(error).__name__} {error}.") from error


def _trace(header: dict[str, Any], records: list[dict[str, Any]]) -> Trace:
    episode = Episode(task_id=header["task_id"], sample=header["sample"])
    complete = False
    for record in records:
        if record["type"] == "step":
            episode.steps.append(step_of(record))
        elif record["type"] == "end":
            complete = True
            for name in _END:
                value = record.get(name, ()) if name in _MAYBE else record[name]
                setattr(episode, name, tuple(value) if isinstance(value, list) else value)
            episode.stop_reason = StopReason(record["stop_reason"])
        else:
            raise ValueError(f"unknown record type {record['type']!r}")
    return Trace(header["task"], header["config"], episode, complete)


def step_record(step: Step, tokens: bool) -> dict[str, Any]:
    """The line of a step, as JSON values."""
    return {
        "type": "step",
        "index": step.index,
        "observation": _observation_record(step.observation),
        "view": {
            **_values(step.view),
            "retrieved": [_values(item) for item in step.view.retrieved],
        },
        "prompt_tokens": step.prompt_tokens,
        "token_ids": step.token_ids,
        **(
            {}
            if step.completion_tokens == len(step.token_ids)
            else {"completion_tokens": step.completion_tokens}
        ),
        **({"prompt_ids": step.prompt_ids, "logprobs": step.logprobs} if tokens else {}),
        **({} if step.prompt is None else {"prompt": step.prompt}),
        "text": step.text,
        "finish_reason": step.finish_reason,
        "actions": [_values(action) for action in step.actions],
        "problems": [_values(problem) for problem in step.problems],
        "operations": [to_json(operation) for operation in step.operations],
        "store_size": step.store_size,
        "seconds": round(step.seconds, 4),
    }


_PLACES = ("task", "stream", "closing")


def _observation_record(observation: Observation) -> dict[str, Any]:
    return _values(observation) | {
        place: [_piece_record(piece) for piece in getattr(observation, place)] for place in _PLACES
    }


def _piece_record(piece: Piece) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in piece.values.items():
        if isinstance(value, Piece):
            values[name] = _piece_record(value)
        else:
            values[name] = (
                [_piece_record(item) for item in value] if isinstance(value, tuple) else value
            )
    return {"name": piece.name, "values": values, **({"needs": piece.needs} if piece.needs else {})}


def _observation(record: dict[str, Any]) -> Observation:
    return Observation(**record | {place: tuple(map(_piece, record[place])) for place in _PLACES})


def _piece(record: dict[str, Any]) -> Piece:
    values: dict[str, Any] = {}
    for name, value in record["values"].items():
        if isinstance(value, dict):
            values[name] = _piece(value)
        else:
            values[name] = tuple(map(_piece, value)) if isinstance(value, list) else value
    return Piece(record["name"], values, record.get("needs"))


def _values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass without the copies that `dataclasses.asdict` makes: most of the time of a trace."""
    kind: Any = type(record)
    return {name: getattr(record, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def step_of(record: Mapping[str, Any]) -> Step:
    """The inverse of `step_record`. Raises KeyError, TypeError or ValueError where `record` is no step."""
    view = dict(record["view"])
    view["retrieved"] = tuple(Retrieved(**item) for item in view["retrieved"])
    return Step(
        index=record["index"],
        observation=_observation(record["observation"]),
        view=MemoryView(**view),
        prompt_ids=record.get("prompt_ids", []),
        token_ids=record["token_ids"],
        logprobs=record.get("logprobs", []),
        text=record["text"],
        finish_reason=record["finish_reason"],
        actions=tuple(Action(**item) for item in record["actions"]),
        problems=tuple(
            Problem(**{**item, "reason": ProblemReason(item["reason"])})
            for item in record["problems"]
        ),
        operations=tuple(operation_from_json(item) for item in record["operations"]),
        store_size=record["store_size"],
        prompt_tokens=record["prompt_tokens"],
        seconds=record["seconds"],
        prompt=record.get("prompt"),
        completion_tokens=record.get("completion_tokens", 0),
    )

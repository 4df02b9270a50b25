"""Observations and JSON replies of baselines that keep notes."""

from __future__ import annotations

import json
from typing import Any

from atommem.actions import ActionSpec, Body, Problem, ProblemReason
from atommem.episode import Observation, Piece, Step
from atommem.eval.methods.recorder import Recorder
from atommem.text_safety import clean

_REPLY = ActionSpec("reply", Body.TEXT)


def reading(label: str, *pieces: Piece) -> Observation:
    """Make an observation of the stream; the last of `pieces` is the instruction."""
    return Observation("reading", stream=pieces[:-1], closing=pieces[-1:], label=label)


def read_object(record: Recorder, step: Step) -> dict[str, Any]:
    """Return the JSON object in a reply; without one, {} and a problem of the step."""
    parsed = record.parse(step, _REPLY)
    text = parsed[0].text if parsed else ""
    try:
        value = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
        if isinstance(value, dict):
            return value
    except (ValueError, RecursionError):
        pass
    step.problems += (Problem(ProblemReason.NOT_JSON, "json", 0, len(step.text)),)
    return {}


def read_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or [] for other values."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def clean_text(value: Any) -> str:
    """Return a cleaned string, or "" for other values."""
    return clean(value) if isinstance(value, str) else ""


def clean_texts(value: Any) -> list[str]:
    """Return the non-empty strings of a list, or [] for other values."""
    return [text for text in map(clean_text, value if isinstance(value, list) else []) if text]

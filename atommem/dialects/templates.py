"""Prompt wording, read from YAML: our own sets lie beside this file, a user's may lie anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from atommem.errors import ConfigError, DialectError
from atommem.shipped import find_file

SHIPPED = ("full", "compact", "memagent")
PLACES = ("scratchpad", "store")
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")

_REQUIRED = {
    "questions": "questions",
    "chunk": "chunk",
    "scratchpad": "text",
    "query": "text",
    "memory": "entries",
    "entry": "text",
    "question_line": "text",
}


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace ``{name}`` for every name in `values`, once; other braces (``\\boxed{...}``) stay as they are."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), template)


@dataclass(frozen=True)
class Templates:
    """The pieces that a prompt is put together from.

    In every piece ``{tag.create}``, ``{tag.read}``, ``{tag.update}``, ``{tag.delete}``,
    ``{tag.scratchpad}``, ``{tag.answer}`` and ``{tag.tool}`` stand for the dialect's tag names.

    Attributes:
        chat: Send system and user messages through the tokenizer's chat template; otherwise the
            pieces are joined and encoded as plain text.
        join: What stands between two pieces.
        system: The instructions; ``{actions}`` is where the enabled actions are explained.
        actions: One explanation per action kind; those of disabled actions are left out.
        places: What the memory consists of, as ``{places}`` in `system`: one explanation each of ``scratchpad`` and
            ``store``. With actions switched off so that one of them stays empty for ever, its explanation and
            its piece of the prompt are left out. A set without `places` always has all pieces: its form is fixed.
        questions: ``{questions}``; the questions of the task, or the current one.
        question_line: One of several questions: ``{number}``, ``{text}``. A single one stands bare.
        chunk: ``{chunk}``, ``{chunk_number}``, ``{chunk_count}``.
        scratchpad, query: ``{text}``.
        memory: ``{entries}``, ``{size}``, ``{capacity_notice}``. It, `query` and `entry` may be left out by a set
            for a dialect without a store.
        entry: One retrieved entry: ``{handle}``, ``{text}``.
        capacity_notice: Shown with a limited store: ``{size}``, ``{capacity}``.
        empty: Stands for an empty scratchpad, query or list of entries.
        cut_marker: Ends a scratchpad that was cut at its token limit.
        tool_result: ``{text}``.
        reading, answering: Close the prompt of a step; ``{read_notice}`` and ``{reads_left}`` while answering.
        read_notice: What `answering` says of further reads, when they are possible: ``{reads_left}``.
    """

    system: str
    questions: str
    chunk: str
    scratchpad: str
    reading: str
    answering: str
    query: str = ""
    memory: str = ""
    entry: str = ""
    read_notice: str = ""
    question_line: str = "{number}. {text}"
    capacity_notice: str = ""
    empty: str = "(empty)"
    cut_marker: str = " [cut]"
    tool_result: str = "{text}"
    join: str = "\n\n"
    chat: bool = True
    actions: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=32)
def load_templates(name: str) -> Templates:
    """Read a template set: ``full``, ``compact``, ``memagent``, a file's path, or a file of ``configs/templates``.

    Raises:
        DialectError: No such set or file, not YAML, an unknown or missing field, or a piece
            without the placeholder that it is for.
    """
    ours = Path(__file__).parent / f"{name}.yaml"
    try:
        path = ours if name in SHIPPED else find_file("templates", name, "templates")
    except ConfigError as error:
        raise DialectError(f"no template set {name!r}: give {', '.join(SHIPPED)}, or a file. {error}") from error
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DialectError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise DialectError(f"{path} holds {type(loaded).__name__}, not a mapping of template fields.")
    return _checked(path, loaded)


def _checked(path: Path, loaded: dict[Any, Any]) -> Templates:
    known = {item.name: item for item in fields(Templates)}
    unknown = sorted(str(key) for key in loaded if key not in known)
    if unknown:
        raise DialectError(f"{path}: unknown field {', '.join(unknown)}; known are {', '.join(known)}.")
    missing = [
        item.name
        for item in known.values()
        if item.name not in loaded and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise DialectError(f"{path}: missing field {', '.join(missing)}.")
    for name, value in loaded.items():
        expected = {"chat": bool, "actions": dict, "places": dict}.get(name, str)
        if not isinstance(value, expected):
            raise DialectError(f"{path}: field {name} is {type(value).__name__}, expected {expected.__name__}.")
    templates = Templates(**loaded)
    for name, placeholder in _REQUIRED.items():
        piece = getattr(templates, name)
        optional = name in ("query", "memory", "entry")
        if f"{{{placeholder}}}" not in piece and not (optional and not piece):
            raise DialectError(f"{path}: field {name} lacks {{{placeholder}}}, so its content would never be shown.")
    if templates.entry and "{handle}" not in templates.entry:
        raise DialectError(f"{path}: field entry lacks {{handle}}, so entries could not be updated or deleted.")
    if templates.places and (sorted(templates.places) != sorted(PLACES) or "{places}" not in templates.system):
        raise DialectError(f"{path}: field places needs {' and '.join(PLACES)}, and {{places}} in field system.")
    return templates

"""Prompt wording, read from YAML: memory's lies here, every environment's beside itself, a user's anywhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from atommem.errors import ConfigError, DialectError
from atommem.plugins import find_file

SHIPPED = ("full", "compact", "memagent")
PLACES = ("scratchpad", "store")
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")

_REQUIRED = {"scratchpad": "text", "query": "text", "memory": "entries", "entry": "text"}


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace ``{name}`` for every name in `values`, once; other braces (``\\boxed{...}``) stay as they are."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), template)


def placeholders(template: str) -> list[str]:
    """The names in a template, in order."""
    return _PLACEHOLDER.findall(template)


@dataclass(frozen=True)
class Templates:
    """How the memory is worded, and what holds a prompt together.

    In every piece ``{tag.create}``, ``{tag.read}``, ``{tag.update}``, ``{tag.delete}``, ``{tag.scratchpad}``,
    ``{tag.answer}`` and ``{tag.call}`` stand for the dialect's tag names.

    Attributes:
        chat: Send system and user messages through the tokenizer's chat template; otherwise the
            pieces are joined and encoded as plain text.
        join: What stands between two pieces.
        system: The instructions; ``{introduction}`` and ``{rules}`` are the environment's, ``{actions}`` is where the
            enabled actions are explained.
        actions: One explanation per memory action; those of disabled actions are left out.
        call: Explains a tool that the environment does not explain itself: ``{name}``, ``{description}``, ``{schema}``.
        places: What the memory consists of, as ``{places}`` in `system`: one explanation each of ``scratchpad`` and
            ``store``. With actions switched off so that one of them stays empty for ever, its explanation and
            its piece of the prompt are left out. A set without `places` always has all pieces: its form is fixed.
        scratchpad, query: ``{text}``.
        memory: ``{entries}``, ``{size}``, ``{capacity_notice}``. It, `query` and `entry` may be left out by a set
            for a dialect without a store.
        entry: One retrieved entry: ``{handle}``, ``{text}``.
        capacity_notice: Shown with a limited store: ``{size}``, ``{capacity}``.
        empty: Stands for an empty scratchpad, query or list of entries.
        cut_marker: Ends a text that was cut at its token limit.
        environments: Sections for environments by name, in the place of those that they bring.
    """

    system: str
    scratchpad: str = ""
    query: str = ""
    memory: str = ""
    entry: str = ""
    capacity_notice: str = ""
    empty: str = "(empty)"
    cut_marker: str = " [cut]"
    join: str = "\n\n"
    chat: bool = True
    actions: Mapping[str, str] = field(default_factory=dict)
    call: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """How an environment is worded.

    Attributes:
        pieces: The template of every piece that its observations may hold.
        introduction, rules: Its part of the instructions: what the task is, and what else holds.
        actions: One explanation per action of its own; the others are explained by their description.
    """

    pieces: Mapping[str, str]
    introduction: str = ""
    rules: str = ""
    actions: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=32)
def load_templates(name: str) -> Templates:
    """Read a template set: ``full``, ``compact``, ``memagent``, a file's path, or a file of ``configs/templates``.

    Raises:
        DialectError: No such set or file, not YAML, an unknown or missing field, or a piece
            without the placeholder that it is for.
    """
    try:
        path = (
            Path(__file__).parent / f"{name}.yaml"
            if name in SHIPPED
            else find_file("templates", name, "templates")
        )
    except ConfigError as error:
        raise DialectError(
            f"no template set {name!r}: give {', '.join(SHIPPED)}, or a file. {error}"
        ) from error
    templates: Templates = _record(Templates, path, _read(path))
    for piece, placeholder in _REQUIRED.items():
        text = getattr(templates, piece)
        if f"{{{placeholder}}}" not in text and text:
            raise DialectError(
                f"{path}: field {piece} lacks {{{placeholder}}}, so its content would never be shown."
            )
    if templates.entry and "{handle}" not in templates.entry:
        raise DialectError(
            f"{path}: field entry lacks {{handle}}, so entries could not be updated or deleted."
        )
    if templates.places and (
        sorted(templates.places) != sorted(PLACES) or "{places}" not in templates.system
    ):
        raise DialectError(
            f"{path}: field places needs {' and '.join(PLACES)}, and {{places}} in field system."
        )
    return templates


def load_section(
    name: str,
    environment: str,
    folder: Path,
    pieces: Mapping[str, Sequence[str]],
    shown: Collection[str] | None = None,
) -> Section:
    """The section of an environment in the template set `name`.

    A file of a user's may hold it (``environments``); the shipped sets are those that the environment brings. For a
    file without it, it is the environment's ``full``, or ``compact`` where the file is plain text.

    Args:
        name: As for `load_templates`.
        environment: The environment's name.
        folder: Where its own sections lie.
        pieces: Every piece that it may show, with the placeholders that its template must have.
        shown: Those that it shows under its settings, and that must be there; unset: all.

    Raises:
        DialectError: There is none, or it has an unknown field, or lacks a piece or a piece's placeholder.
    """
    templates = load_templates(name)
    if environment in templates.environments:
        path, loaded = (
            Path(f"{name}, environments.{environment}"),
            templates.environments[environment],
        )
    else:
        wording = name if name in SHIPPED else "full" if templates.chat else "compact"
        path = folder / f"{wording}.yaml"
        if not path.is_file():
            raise DialectError(
                f"environment {environment!r} has no wording {wording!r}: there is no {path}."
            )
        loaded = _read(path)
    section: Section = _record(Section, path, loaded)
    for piece, placeholders in pieces.items():
        if piece not in section.pieces:
            if shown is not None and piece not in shown:
                continue
            raise DialectError(f"{path}: pieces lacks {piece}, which the environment shows.")
        for placeholder in placeholders:
            if f"{{{placeholder}}}" not in section.pieces[piece]:
                raise DialectError(
                    f"{path}: piece {piece} lacks {{{placeholder}}}, so its content would never be shown."
                )
    unknown = sorted(set(section.pieces) - set(pieces))
    if unknown:
        raise DialectError(
            f"{path}: unknown piece {', '.join(unknown)}; known are {', '.join(pieces)}."
        )
    return section


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DialectError(f"{path} is not valid YAML: {error}") from error


def _record(kind: Any, path: Path, loaded: Any) -> Any:
    """`loaded` as a record of `kind`, every field known, there, and of its type."""
    if not isinstance(loaded, dict):
        raise DialectError(
            f"{path} holds {type(loaded).__name__}, not a mapping of template fields."
        )
    known = {item.name: item for item in fields(kind)}
    unknown = sorted(str(key) for key in loaded if key not in known)
    if unknown:
        raise DialectError(
            f"{path}: unknown field {', '.join(unknown)}; known are {', '.join(known)}."
        )
    missing = [
        item.name
        for item in known.values()
        if item.name not in loaded and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise DialectError(f"{path}: missing field {', '.join(missing)}.")
    for name, value in loaded.items():
        declared = str(known[name].type)
        expected: type = (
            bool if declared == "bool" else dict if declared.startswith("Mapping") else str
        )
        if not isinstance(value, expected):
            raise DialectError(
                f"{path}: field {name} is {type(value).__name__}, expected {expected.__name__}."
            )
        for key, text in (
            value.items() if isinstance(value, dict) and name != "environments" else ()
        ):
            if not isinstance(text, str):
                raise DialectError(f"{path}: {name}.{key} is {type(text).__name__}, expected str.")
    return kind(**loaded)

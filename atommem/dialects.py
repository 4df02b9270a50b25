"""Dialects and templates: the tags that a checkpoint writes and the wording of its prompts.

A dialect is always chosen by name and saved with a checkpoint, because one tag can mean two things:
``update_memory`` changes an entry in `paper` and writes the scratchpad in `released`.

Wording is read from YAML: the memory's from ``atommem/templates``, an environment's from beside it,
a user's from any file. In a template ``{name}`` stands for text or further pieces and ``{name:d}``
for a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from atommem.actions import ANSWER, ANSWER_ACTION, CALL, MEMORY_ACTIONS, SCRATCHPAD, ActionSpec
from atommem.errors import ConfigError, DialectError
from atommem.grammar import Grammar
from atommem.plugins import find_file
from atommem.text_safety import TemplatePart

SHIPPED = ("full", "compact", "memagent")
PLACES = ("scratchpad", "store")
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)(:d)?\}")
_REQUIRED = {"scratchpad": "text", "query": "text", "memory": "entries", "entry": "text"}
_NEEDED_TAGS = (*(spec.name for spec in MEMORY_ACTIONS), ANSWER)


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace the placeholders named in `values`, once; other braces (``\\boxed{...}``) stay."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), template)


def split_template(template: str) -> list[TemplatePart]:
    """The literal runs of a template, each with the placeholder behind it."""
    parts = []
    end = 0
    for match in _PLACEHOLDER.finditer(template):
        literal = template[end : match.start()]
        parts.append(TemplatePart(literal, match[1], match[2] is not None))
        end = match.end()
    return [*parts, TemplatePart(template[end:], "")]


def placeholders(template: str) -> list[str]:
    """The names in a template, in order."""
    return [part.placeholder for part in split_template(template) if part.placeholder]


@dataclass(frozen=True)
class Templates:
    """The wording of a memory, and what holds a prompt together.

    In every piece ``{tag.create}``, ``{tag.read}``, ``{tag.update}``, ``{tag.delete}``,
    ``{tag.scratchpad}``, ``{tag.answer}`` and ``{tag.call}`` stand for the dialect's tag names.

    Attributes:
        chat: Send system and user messages through the tokenizer's chat template; otherwise the
            pieces are joined and encoded as plain text.
        join: Stands between two pieces.
        system: The instructions; ``{introduction}`` and ``{rules}`` are the environment's,
            ``{actions}`` is where the enabled actions are explained.
        actions: One explanation per memory action; those of disabled actions are left out.
        call: Explains a tool that the environment does not explain: ``{name}``, ``{description}``,
            ``{schema}``.
        places: Explain ``scratchpad`` and ``store``, as ``{places}`` in `system`. With actions
            switched off so that one of them stays empty for ever, its explanation and its piece of
            the prompt are left out. A set without `places` always has all pieces.
        scratchpad, query: ``{text}``.
        memory: ``{entries}``, ``{size}``, ``{capacity_notice}``. A set for a dialect without a
            store leaves out `memory`, `query` and `entry`.
        entry: One retrieved entry: ``{handle}``, ``{text}``.
        capacity_notice: Shown with a limited store: ``{size}``, ``{capacity}``.
        empty: Stands for an empty scratchpad, query or list of entries.
        cut_marker: Ends a text that was cut at its token limit.
        environments: Sections of environments by name, instead of those that they bring.
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
    """The wording of an environment.

    Attributes:
        pieces: The template of every piece that its observations may hold.
        introduction, rules: Its part of the instructions.
        actions: One explanation per action of its own; the others are explained by their
            description.
    """

    pieces: Mapping[str, str]
    introduction: str = ""
    rules: str = ""
    actions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """How completions are read, with the templates that explain it to the model.

    Attributes:
        tags: The tag of each memory action, of the answer and of tool calls (``call``); empty for a
            dialect of whole completions. Other actions of an environment bring their own.
        whole: For a dialect without tags, the one action that a completion is as a whole, by phase.
    """

    name: str
    tags: Mapping[str, str]
    templates: Templates
    whole: Mapping[str, str] = field(default_factory=dict)

    def grammar(
        self, actions: Sequence[ActionSpec] = (ANSWER_ACTION,), phases: Sequence[str] = ()
    ) -> Grammar:
        """Make the grammar of completions in an environment with these actions and phases.

        Raises:
            DialectError: Two actions share a tag, or a dialect of whole completions does not know a
                phase.
        """
        specs = (*MEMORY_ACTIONS, *actions)
        if self.whole:
            unknown = [phase for phase in phases if phase not in self.whole]
            if unknown:
                raise DialectError(
                    f"dialect {self.name!r} reads whole completions in the phases "
                    f"{', '.join(self.whole)}, and this environment has {', '.join(unknown)} as "
                    "well: choose a dialect with tags."
                )
            by_name = {spec.name: spec for spec in specs}
            whole = {phase: by_name[name] for phase, name in self.whole.items() if name in by_name}
            return Grammar({}, whole=whole)
        tools = {spec.name: spec for spec in actions if spec.is_tool}
        tags: dict[str, ActionSpec] = {}
        taken = {self.call_tag.lower()} if tools else set()
        for spec in specs:
            if spec.is_tool:
                continue
            tag = self.tag(spec)
            if tag.lower() in taken:
                raise DialectError(
                    f"dialect {self.name!r} uses the tag {tag!r} for two actions: rename one."
                )
            taken.add(tag.lower())
            tags[tag] = spec
        return Grammar(tags, tools, self.call_tag if tools else None)

    def tag(self, spec: ActionSpec) -> str:
        """The tag of an action that is written with one."""
        return self.tags.get(spec.name) or spec.tag or spec.name

    @property
    def call_tag(self) -> str:
        """The tag of tool calls."""
        return self.tags.get(CALL, "tool_call")

    def can_write(self, name: str) -> bool:
        """Whether a memory action can be written in it."""
        return name in self.tags or name in self.whole.values()


_REGISTERED: dict[str, Dialect] = {}


def register_dialect(
    name: str, tags: Mapping[str, str], whole: Mapping[str, str] | None = None
) -> None:
    """Make a dialect known under `name`: either of tags, or of whole completions.

    Args:
        tags: A tag for every memory action and the answer (``call`` may be missing: ``tool_call``),
            or none at all with `whole`.
        whole: The action that a completion is as a whole, by phase.

    Raises:
        DialectError: The name is taken by another dialect, an action has no tag, two share one, or
            there are both tags and `whole`.
    """
    new = Dialect(name, MappingProxyType(dict(tags)), Templates(""), MappingProxyType(whole or {}))
    lowered = [tag.lower() for tag in tags.values()]
    if whole and tags:
        raise DialectError(
            f"dialect {name!r} reads whole completions: give an action for each phase, and no tags."
        )
    if not whole and (missing := [kind for kind in _NEEDED_TAGS if kind not in tags]):
        raise DialectError(
            f"dialect {name!r} has no tag for {', '.join(missing)}: name one for each."
        )
    if len(set(lowered)) != len(lowered):
        raise DialectError(f"dialect {name!r} uses one tag for two actions: {sorted(lowered)}.")
    if _REGISTERED.get(name, new) != new:
        raise DialectError(f"dialect {name!r} is registered with other tags: choose another name.")
    _REGISTERED[name] = new


def dialect_names() -> list[str]:
    """The registered names."""
    return sorted(_REGISTERED)


def get_dialect(name: str, templates: str = "full") -> Dialect:
    """The dialect `name` with the wording of `templates` (see `load_templates`).

    Raises:
        DialectError: The name is not registered, the template file is missing or incomplete, or its
            wording is for another kind of dialect.
    """
    if name not in _REGISTERED:
        raise DialectError(
            f"unknown dialect {name!r}: give one of {', '.join(dialect_names())}, or register it."
        )
    dialect = replace(_REGISTERED[name], templates=load_templates(templates))
    wording = dialect.templates
    if dialect.whole and wording.actions:
        raise DialectError(
            f"templates {templates!r} explain tags, and dialect {name!r} has none: give templates "
            "memagent or a file."
        )
    if not dialect.whole and not (wording.query and wording.memory and wording.entry):
        raise DialectError(
            f"templates {templates!r} have no query, memory or entry, and dialect {name!r} has a "
            "store: its content would never be shown."
        )
    return dialect


# arXiv 2601.08323, Table 5 and Figures 7 and 8.
register_dialect(
    "paper",
    {
        "scratchpad": "update_scratchpad",
        "create": "create_memory",
        "read": "read_memory",
        "update": "update_memory",
        "delete": "delete_memory",
        "call": "tool_call",
        "answer": "final_answer",
    },
)
# The tags that the published checkpoint AtomMem-8B was trained on.
register_dialect(
    "released",
    {
        "scratchpad": "update_memory",
        "create": "add_memory",
        "read": "update_query",
        "update": "modify_memory",
        "delete": "delete_memory",
        "call": "tool_call",
        "answer": "final_answer",
    },
)
# MemAgent (arXiv 2507.02259): the memory is one text, and every completion overwrites it.
register_dialect("memagent", {}, whole={"reading": SCRATCHPAD, "answering": ANSWER})


@lru_cache(maxsize=32)
def load_templates(name: str) -> Templates:
    """Read a template set: a shipped name, a file's path, or a file of ``configs/templates``.

    Raises:
        DialectError: The set or file is missing, is not YAML, has an unknown or missing field, or a
            piece lacks the placeholder that it is for.
    """
    try:
        path = (
            Path(__file__).parent / "templates" / f"{name}.yaml"
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
        if text and placeholder not in placeholders(text):
            raise DialectError(
                f"{path}: field {piece} lacks {{{placeholder}}}, so its content would never be "
                "shown."
            )
    if templates.entry and "handle" not in placeholders(templates.entry):
        raise DialectError(
            f"{path}: field entry lacks {{handle}}, so entries could not be updated or deleted."
        )
    if templates.places and (
        sorted(templates.places) != sorted(PLACES) or "places" not in placeholders(templates.system)
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

    A user's file may hold it (``environments``); the shipped sets are those that the environment
    brings. For a file without it, it is the environment's ``full``, or ``compact`` where the file
    is plain text.

    Args:
        name: As for `load_templates`.
        environment: The environment's name.
        folder: Holds the environment's own sections.
        pieces: Every piece that it may show, with the placeholders that its template must have.
        shown: Those that it shows under its settings, and that must be there; unset: all.

    Raises:
        DialectError: There is none, or it has an unknown field, or lacks a piece or a piece's
            placeholder.
    """
    templates = load_templates(name)
    if environment in templates.environments:
        path = Path(f"{name}, environments.{environment}")
        loaded = templates.environments[environment]
    else:
        wording = name if name in SHIPPED else "full" if templates.chat else "compact"
        path = folder / f"{wording}.yaml"
        if not path.is_file():
            raise DialectError(
                f"environment {environment!r} has no wording {wording!r}: there is no {path}."
            )
        loaded = _read(path)
    section: Section = _record(Section, path, loaded)
    for piece, needed in pieces.items():
        if piece in section.pieces:
            missing = set(needed) - set(placeholders(section.pieces[piece]))
            if missing:
                raise DialectError(
                    f"{path}: piece {piece} lacks {{{min(missing)}}}, so its content would never "
                    "be shown."
                )
        elif shown is None or piece in shown:
            raise DialectError(f"{path}: pieces lacks {piece}, which the environment shows.")
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
    """`loaded` as a record of `kind`, with its fields checked."""
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
    for name, item in known.items():
        if name not in loaded:
            if item.default is MISSING and item.default_factory is MISSING:
                raise DialectError(f"{path}: missing field {name}.")
            continue
        value: Any = loaded[name]
        declared = str(item.type)
        expected: type = {"bool": bool, "str": str}.get(declared, dict)
        if not isinstance(value, expected):
            raise DialectError(
                f"{path}: field {name} is {type(value).__name__}, expected {expected.__name__}."
            )
        if declared == "Mapping[str, str]":
            for key, text in loaded[name].items():
                if not isinstance(text, str):
                    raise DialectError(
                        f"{path}: {name}.{key} is {type(text).__name__}, expected str."
                    )
    return kind(**loaded)

"""Dialects: the tag names and the prompt wording that a checkpoint speaks.

A dialect is always chosen by name and saved with a checkpoint, because one tag can mean two things:
``update_memory`` changes an entry in `paper` and writes the scratchpad in `released`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from atommem.actions import ActionKind, Parsed
from atommem.dialects.templates import Templates, load_templates
from atommem.episode import Phase
from atommem.errors import DialectError
from atommem.parsing import parse, parse_whole

__all__ = ["Dialect", "Templates", "dialect_names", "get_dialect", "load_templates", "register_dialect"]

_NEEDED = (
    ActionKind.CREATE,
    ActionKind.READ,
    ActionKind.UPDATE,
    ActionKind.DELETE,
    ActionKind.SCRATCHPAD,
    ActionKind.ANSWER,
)


@dataclass(frozen=True)
class Dialect:
    """What a completion is read as, with the templates that explain it to the model.

    Attributes:
        name: What configs call it.
        tags: The tag of each action kind; empty for a dialect of whole completions.
        templates: The prompt wording.
        whole: For a dialect without tags, the one action that a completion is as a whole, by phase.
    """

    name: str
    tags: Mapping[ActionKind, str]
    templates: Templates
    whole: Mapping[Phase, ActionKind] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[ActionKind]:
        """The actions that can be written in it."""
        return frozenset(self.tags) | frozenset(self.whole.values())

    def parse(self, text: str, phase: Phase) -> Parsed:
        """The actions of a completion that was written in `phase`."""
        return parse_whole(text, self.whole[phase]) if self.whole else parse(text, self)


@dataclass(frozen=True)
class _Registered:
    tags: Mapping[ActionKind, str]
    whole: Mapping[Phase, ActionKind]


_REGISTERED: dict[str, _Registered] = {}


def register_dialect(
    name: str, tags: Mapping[ActionKind, str], whole: Mapping[Phase, ActionKind] | None = None
) -> None:
    """Make a dialect known under `name`: either of tags, or of whole completions.

    Args:
        name: What configs call it.
        tags: A tag for every action kind (the tool call's may be missing), or none at all with `whole`.
        whole: What a completion is as a whole, for both phases.

    Raises:
        DialectError: The name is taken by another dialect, a kind has no tag, two kinds share one, or
            `whole` lacks a phase or comes with tags.
    """
    new = _Registered(MappingProxyType(dict(tags)), MappingProxyType(dict(whole or {})))
    if whole:
        if tags or set(whole) != {"reading", "answering"}:
            raise DialectError(
                f"dialect {name!r} reads whole completions: give an action for reading and for answering, and no tags."
            )
    else:
        _check_tags(name, tags)
    if name in _REGISTERED and _REGISTERED[name] != new:
        raise DialectError(f"dialect {name!r} is registered with other tags: choose another name.")
    _REGISTERED[name] = new


def _check_tags(name: str, tags: Mapping[ActionKind, str]) -> None:
    missing = [str(kind) for kind in _NEEDED if kind not in tags]
    if missing:
        raise DialectError(f"dialect {name!r} has no tag for {', '.join(missing)}: name one for each.")
    lowered = [tag.lower() for tag in tags.values()]
    if len(set(lowered)) != len(lowered):
        raise DialectError(f"dialect {name!r} uses one tag for two actions: {sorted(lowered)}.")


def dialect_names() -> list[str]:
    """The registered names."""
    return sorted(_REGISTERED)


def get_dialect(name: str, templates: str = "full") -> Dialect:
    """The dialect `name` with the wording of `templates`: ``full``, ``compact``, ``memagent`` or a YAML file's path.

    Raises:
        DialectError: The name is not registered, the template file is missing or incomplete, or its wording is for
            another kind of dialect.
    """
    if name not in _REGISTERED:
        raise DialectError(f"unknown dialect {name!r}: give one of {', '.join(dialect_names())}, or register it.")
    registered = _REGISTERED[name]
    dialect = Dialect(name, registered.tags, load_templates(templates), registered.whole)
    wording = dialect.templates
    if dialect.whole and wording.actions:
        raise DialectError(
            f"templates {templates!r} explain tags, and dialect {name!r} has none: give templates memagent or a file."
        )
    if not dialect.whole and not (wording.query and wording.memory and wording.entry):
        raise DialectError(
            f"templates {templates!r} have no query, memory or entry, and dialect {name!r} has a store: its content "
            "would never be shown."
        )
    return dialect


# arXiv 2601.08323, Table 5 and Figures 7 and 8.
register_dialect(
    "paper",
    {
        ActionKind.SCRATCHPAD: "update_scratchpad",
        ActionKind.CREATE: "create_memory",
        ActionKind.READ: "read_memory",
        ActionKind.UPDATE: "update_memory",
        ActionKind.DELETE: "delete_memory",
        ActionKind.TOOL: "tool_call",
        ActionKind.ANSWER: "final_answer",
    },
)
# The tags that the published checkpoint AtomMem-8B was trained on.
register_dialect(
    "released",
    {
        ActionKind.SCRATCHPAD: "update_memory",
        ActionKind.CREATE: "add_memory",
        ActionKind.READ: "update_query",
        ActionKind.UPDATE: "modify_memory",
        ActionKind.DELETE: "delete_memory",
        ActionKind.TOOL: "tool_call",
        ActionKind.ANSWER: "final_answer",
    },
)
# MemAgent (arXiv 2507.02259): the memory is one text, and every completion overwrites it.
register_dialect("memagent", {}, whole={"reading": ActionKind.SCRATCHPAD, "answering": ActionKind.ANSWER})

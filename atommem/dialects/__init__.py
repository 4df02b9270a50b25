"""Dialects: the tag names and the prompt wording that a checkpoint speaks.

A dialect is always chosen by name and saved with a checkpoint, because one tag can mean two things:
``update_memory`` changes an entry in `paper` and writes the scratchpad in `released`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from atommem.actions import ANSWER, ANSWER_ACTION, CALL, MEMORY_ACTIONS, SCRATCHPAD, ActionSpec
from atommem.dialects.templates import Section, Templates, load_section, load_templates
from atommem.errors import DialectError
from atommem.parsing import Grammar

__all__ = [
    "Dialect",
    "Section",
    "Templates",
    "dialect_names",
    "get_dialect",
    "load_section",
    "load_templates",
    "register_dialect",
]

_NEEDED = (*(spec.name for spec in MEMORY_ACTIONS), ANSWER)


@dataclass(frozen=True)
class Dialect:
    """What a completion is read as, with the templates that explain it to the model.

    Attributes:
        name: What configs call it.
        tags: The tag of each memory action, of the answer and of tool calls (``call``); empty for a dialect of whole
            completions. Other actions of an environment bring their own.
        templates: The prompt wording.
        whole: For a dialect without tags, the one action that a completion is as a whole, by phase.
    """

    name: str
    tags: Mapping[str, str]
    templates: Templates
    whole: Mapping[str, str] = field(default_factory=dict)

    def grammar(
        self, actions: Sequence[ActionSpec] = (ANSWER_ACTION,), phases: Sequence[str] = ()
    ) -> Grammar:
        """How completions are read in an environment with these `actions` and `phases`.

        Raises:
            DialectError: Two actions share a tag, or a dialect of whole completions does not know a phase.
        """
        specs = (*MEMORY_ACTIONS, *actions)
        if self.whole:
            unknown = [phase for phase in phases if phase not in self.whole]
            if unknown:
                raise DialectError(
                    f"dialect {self.name!r} reads whole completions in the phases {', '.join(self.whole)}, and this "
                    f"environment has {', '.join(unknown)} as well: choose a dialect with tags."
                )
            by_name = {spec.name: spec for spec in specs}
            return Grammar(
                {},
                whole={
                    phase: by_name[name] for phase, name in self.whole.items() if name in by_name
                },
            )
        tags: dict[str, ActionSpec] = {}
        tools = {spec.name: spec for spec in actions if spec.is_tool}
        for spec in specs:
            if spec.is_tool:
                continue
            tag = self.tag(spec)
            if tag.lower() in {
                other.lower() for other in (*tags, *([self.call_tag] if tools else []))
            }:
                raise DialectError(
                    f"dialect {self.name!r} uses the tag {tag!r} for two actions: rename one of them."
                )
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
_NO_WORDS = Templates(system="")


def register_dialect(
    name: str, tags: Mapping[str, str], whole: Mapping[str, str] | None = None
) -> None:
    """Make a dialect known under `name`: either of tags, or of whole completions.

    Args:
        name: What configs call it.
        tags: A tag for every memory action and the answer (``call`` may be missing: ``tool_call``), or none at all
            with `whole`.
        whole: What a completion is as a whole, by phase.

    Raises:
        DialectError: The name is taken by another dialect, an action has no tag, two share one, or there are both
            tags and `whole`.
    """
    new = Dialect(
        name, MappingProxyType(dict(tags)), _NO_WORDS, MappingProxyType(dict(whole or {}))
    )
    if whole and tags:
        raise DialectError(
            f"dialect {name!r} reads whole completions: give an action for each phase, and no tags."
        )
    if not whole:
        _check_tags(name, tags)
    if name in _REGISTERED and _REGISTERED[name] != new:
        raise DialectError(f"dialect {name!r} is registered with other tags: choose another name.")
    _REGISTERED[name] = new


def _check_tags(name: str, tags: Mapping[str, str]) -> None:
    missing = [kind for kind in _NEEDED if kind not in tags]
    if missing:
        raise DialectError(
            f"dialect {name!r} has no tag for {', '.join(missing)}: name one for each."
        )
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
        raise DialectError(
            f"unknown dialect {name!r}: give one of {', '.join(dialect_names())}, or register it."
        )
    dialect = replace(_REGISTERED[name], templates=load_templates(templates))
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

"""Dialects and templates: the tags that a checkpoint writes and the wording of its prompts.

A dialect is always chosen by name and saved with a checkpoint, because one tag can mean two things:
``update_memory`` changes an entry in `paper` and writes the scratchpad in `released`.

Wording is read from YAML: the memory's from ``atommem/templates``, an environment's from beside it,
a user's from any file. A template's ``{name}`` is text or further pieces, ``{name:d}`` a number.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec
import msgspec.yaml

from atommem.actions import ANSWER, ANSWER_ACTION, CALL, MEMORY_ACTIONS, MEMORY_KINDS, ActionSpec
from atommem.errors import DialectError, suggest
from atommem.files import load_beside
from atommem.grammar import Grammar
from atommem.plugins import find_file
from atommem.text_safety import TemplatePart

SHIPPED = ("full", "compact", "memagent")
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)(:d)?\}")
_NEEDED = {
    "scratchpad": ("text",),
    "query": ("text",),
    "memory": ("entries",),
    "entry": ("handle", "text"),
}
"""The placeholders without which a field of `Templates` would show nothing."""


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace the placeholders named in `values`, once; other braces (``\\boxed{...}``) stay."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), template)


def split_template(template: str) -> list[TemplatePart]:
    """Return the literal runs of a template, each with the placeholder behind it."""
    *parts, last = _PLACEHOLDER.split(template)  # with a third of None where it is no number
    found = zip(parts[::3], parts[1::3], map(bool, parts[2::3]), strict=True)
    return [*starmap(TemplatePart, found), TemplatePart(last, "")]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wording of an environment."""

    pieces: Mapping[str, str]
    introduction: str = ""
    rules: str = ""
    actions: Mapping[str, str] = {}  # explain its own, where their description does not


class Templates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wording of a memory, and what holds a prompt together.

    In every field ``{tag.create}``, ``{tag.answer}``, ``{tag.call}``, ... stand for tag names. A
    set for a dialect without a store leaves out `memory`, `query` and `entry`. With `chat`, the
    tokenizer's chat template words messages; otherwise the pieces are joined as plain text.
    """

    system: str  # with {introduction} and {rules} of the environment, {actions} and {places}
    scratchpad: str = ""
    query: str = ""
    memory: str = ""  # with {entries}, {size}, {capacity_notice}
    entry: str = ""
    past: str = ""  # an entry that was replaced or deleted since (`read_past`)
    capacity_notice: str = ""
    empty: str = "(empty)"  # stands for an empty scratchpad, query or list of entries
    cut_marker: str = " [cut]"  # ends a text that was cut at its token limit
    join: str = "\n\n"  # stands between two pieces
    chat: bool = True
    actions: Mapping[str, str] = {}  # explain memory actions, unless they are disabled
    call: str = ""  # a tool that the environment does not explain: {name}, {description}, {schema}
    places: Mapping[str, str] = {}  # explain `scratchpad` and `store`, unless nothing fills them
    environments: Mapping[str, Section] = {}  # by name, instead of those that they bring


@dataclass(frozen=True)
class Dialect:
    """Tags of completions, with the templates that explain them to the model.

    `tags` are those of memory actions, of the answer and of tool calls (``call``); other actions
    bring their own. A dialect without tags has in `whole` the action of a completion, by phase.
    """

    name: str
    tags: Mapping[str, str]
    templates: Templates
    whole: Mapping[str, str] = field(default_factory=dict)

    def grammar(
        self, actions: Sequence[ActionSpec] = (ANSWER_ACTION,), phases: Sequence[str] = ()
    ) -> Grammar:
        """Make the grammar of completions in an environment with these actions and phases."""
        specs = (*MEMORY_ACTIONS, *actions)
        if self.whole:
            if unknown := [phase for phase in phases if phase not in self.whole]:
                raise DialectError(
                    f"dialect={self.name}: reads whole completions in the phases "
                    f"{', '.join(self.whole)}; this environment also has {', '.join(unknown)}. "
                    "Give a dialect with tags."
                )
            by_name = {spec.name: spec for spec in specs}
            whole = {phase: by_name[name] for phase, name in self.whole.items() if name in by_name}
            return Grammar({}, whole=whole)
        tools = {spec.name: spec for spec in actions if spec.is_tool}
        tagged = [(self.tag(spec), spec) for spec in specs if not spec.is_tool]
        tags = [tag.lower() for tag, _ in tagged] + [self.call_tag.lower()] * bool(tools)
        if len(set(tags)) < len(tags):
            raise DialectError(f"dialect={self.name}: two actions have one tag. Rename one.")
        return Grammar(dict(tagged), tools, self.call_tag if tools else None)

    def tag(self, spec: ActionSpec) -> str:
        """Return the tag of an action that is written with one."""
        return self.tags.get(spec.name) or spec.tag or spec.name

    @property
    def call_tag(self) -> str:
        return self.tags.get(CALL, "tool_call")

    def can_write(self, name: str) -> bool:
        return name in self.tags or name in self.whole.values()


_REGISTERED: dict[str, Dialect] = {}


def register_dialect(name: str, tags: Mapping[str, str], whole: Mapping[str, str] = {}) -> None:
    """Make a dialect known under `name`: of tags, or of whole completions (see `Dialect`).

    `tags` has one for every memory action and the answer; ``call`` is ``tool_call`` by default.
    """
    needed = () if whole else (*MEMORY_KINDS, ANSWER)
    if missing := [kind for kind in needed if kind not in tags]:
        raise DialectError(f"dialect={name}: no tag for {', '.join(missing)}. Name one for each.")
    new = Dialect(name, dict(tags), Templates(""), whole)
    if _REGISTERED.setdefault(name, new) != new:
        raise DialectError(f"dialect={name}: registered with other tags. Choose another name.")


def get_dialect(name: str, templates: str = "full") -> Dialect:
    """Return the dialect `name` with the wording of `templates` (see `load_templates`)."""
    if name not in _REGISTERED:
        hint = f"{suggest(name, _REGISTERED)}. Give one of {', '.join(sorted(_REGISTERED))}."
        raise DialectError(f"dialect={name}: unknown{hint}")
    dialect = replace(_REGISTERED[name], templates=load_templates(templates))
    if bool(dialect.whole) == bool(dialect.templates.entry):
        store, others = ("no store", "with") if dialect.whole else ("a store", "without")
        raise DialectError(
            f"dialect={name}: has {store}, and templates={templates} are for dialects {others} "
            "one. Give other templates."
        )
    return dialect


for _name, _texts in load_beside(__file__, "dialects.yaml").items():
    register_dialect(_name, **_texts)


@cache
def load_templates(name: str) -> Templates:
    """Read a template set: a shipped name, a file's path, or a file of ``configs/templates``.

    With ``base``, it has the pieces of that set which it does not replace.
    """
    shipped = Path(__file__).parent / "templates" / f"{name}.yaml"
    path = shipped if name in SHIPPED else find_file("templates", name, "templates")
    templates: Templates = _load(Templates, path)
    for piece, needed in _NEEDED.items():
        if text := getattr(templates, piece):
            _check_placeholders(f"{path}: {piece}", text, needed)
    return templates


def load_section(
    name: str,
    environment: str,
    folder: Path,
    pieces: Mapping[str, Sequence[str]],
    shown: Collection[str],
) -> Section:
    """Return the section of an environment in the template set `name`.

    A user's file may hold it (``environments``); the shipped sets lie in the `folder` of the
    environment. For a file without it, it is the environment's ``full``, or ``compact`` where the
    file is plain text. `pieces` are all that it may show, with the placeholders that they must
    have; those of `shown` must be there.
    """
    templates = load_templates(name)
    wording = name if name in SHIPPED else "full" if templates.chat else "compact"
    place = folder / f"{wording}.yaml"
    section: Section = templates.environments.get(environment) or _load(Section, place)
    for piece in shown:
        if piece not in section.pieces:
            raise DialectError(f"templates={name}: {environment} has no piece {piece}. Word it.")
    for piece, template in section.pieces.items():
        if piece not in pieces:
            raise DialectError(f"templates={name}: {environment} shows no piece {piece}. Drop it.")
        _check_placeholders(f"templates={name}: piece {piece}", template, pieces[piece])
    return section


def _load(kind: Any, path: Path) -> Any:
    try:
        values = msgspec.yaml.decode(path.read_bytes())
        if isinstance(values, dict) and (base := values.pop("base", None)):
            values = {**msgspec.to_builtins(load_templates(base)), **values}
        return msgspec.convert(values, kind)
    except (OSError, msgspec.DecodeError) as error:
        raise DialectError(f"{path}: {error}. Correct the file.") from error


def _check_placeholders(place: str, template: str, needed: Sequence[str]) -> None:
    missing = set(needed) - {part.placeholder for part in split_template(template)}
    if missing:
        raise DialectError(f"{place} lacks {{{min(missing)}}}: its content is never shown. Add it.")

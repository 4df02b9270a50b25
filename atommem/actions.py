"""What a policy can do: the actions that one completion is parsed into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """The kinds of XML element that a dialect names with its own tags."""

    CREATE = "create"
    READ = "read"
    UPDATE = "update"
    DELETE = "delete"
    SCRATCHPAD = "scratchpad"
    TOOL = "tool"
    ANSWER = "answer"


MEMORY_ACTIONS = (
    ActionKind.CREATE,
    ActionKind.READ,
    ActionKind.UPDATE,
    ActionKind.DELETE,
    ActionKind.SCRATCHPAD,
)


class ProblemReason(StrEnum):
    """Why a piece of a completion did not become an action."""

    UNCLOSED = "unclosed"
    """An opening tag that is never closed."""
    STRAY_CLOSE = "stray_close"
    """A closing tag without an opening one."""
    NESTED = "nested"
    """An opening tag inside another element: part of that element's body, not an action."""
    EMPTY = "empty"
    """An element whose body is empty and needs one."""
    MISSING_HANDLE = "missing_handle"
    """An update or delete that does not name an entry."""
    NO_BOX = "no_box"
    """An answer without ``\\boxed{...}``."""
    UNCLOSED_THINKING = "unclosed_thinking"
    """``<think>`` is never closed, so nothing after it is parsed."""
    NOT_JSON = "not_json"
    """A reply that was asked for as JSON and is not (baselines of an evaluation)."""


@dataclass(frozen=True, slots=True)
class Action:
    """One parsed XML element.

    Attributes:
        kind: What to do.
        text: The body, stripped. Create/update: the entry's text; read: the query; scratchpad: its
            new content; answer: the content of the (last) box; tool: the call as written.
        handle: Update/delete: the number of the entry in the observation that the model saw.
        start, end: Character span of the element in the completion, ``text[start:end]``.
    """

    kind: ActionKind
    text: str = ""
    handle: int | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A malformed element: skipped and recorded; the rest of the completion still applies."""

    reason: ProblemReason
    tag: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """Actions in the order they were written, and what could not be read as one."""

    actions: tuple[Action, ...]
    problems: tuple[Problem, ...]


def first(actions: Sequence[Action], kind: ActionKind) -> Action | None:
    """The first action of `kind`, or None."""
    return next((action for action in actions if action.kind is kind), None)

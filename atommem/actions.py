"""Actions of a policy, the memory's and any environment's, and what parsing a completion gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CREATE, READ, UPDATE, DELETE, SCRATCHPAD = "create", "read", "update", "delete", "scratchpad"
ANSWER = "answer"
CALL = "call"
"""The name of a dialect's tag for tool calls: ``<tool_call>{"name": ...}</tool_call>``."""


class Body(StrEnum):
    """The content of an element between its tags."""

    TEXT = "text"
    NOTE = "note"  # text that may be empty
    HANDLE = "handle"  # the number of an entry that was shown
    HANDLE_TEXT = "handle_text"  # such a number, then text
    BOX = "box"  # text with ``\boxed{...}``, whose content counts
    BOXES = "boxes"  # text with any number of boxes, each an action of its own, an empty one too
    ARGUMENTS = "arguments"  # a JSON object that fits the action's schema


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action that can be written, as parser, prompts, statistics and traces know it."""

    name: str
    body: Body
    tag: str | None = None  # where the dialect has none for `name`; unset: `name`
    description: str = ""  # explains it to the model, where the environment's templates do not
    schema: Mapping[str, Any] | None = None  # JSON schema of the arguments
    ends_anywhere: bool = False  # without its closing tag, it ends where the next tag begins

    @property
    def is_tool(self) -> bool:
        """Whether it is a tool, written as a call by its name."""
        return self.body is Body.ARGUMENTS and self.tag is None


MEMORY_ACTIONS = (
    ActionSpec(CREATE, Body.TEXT, ends_anywhere=True),
    ActionSpec(READ, Body.TEXT, ends_anywhere=True),
    ActionSpec(UPDATE, Body.HANDLE_TEXT),
    ActionSpec(DELETE, Body.HANDLE),
    ActionSpec(SCRATCHPAD, Body.NOTE, ends_anywhere=True),
)
MEMORY_KINDS = tuple(spec.name for spec in MEMORY_ACTIONS)

ANSWER_ACTION = ActionSpec(ANSWER, Body.BOX)
"""The answer as environments that ask questions take it; every dialect has a tag for it."""
STOP_ACTION = ActionSpec(
    "stop",
    Body.NOTE,
    tag="stop_reading",
    description="ends the reading, and the questions are asked at once: for when your memory holds "
    "all that they need. If you then write no answer, the reading goes on.",
)
"""Ends the reading of a long document (``early_stop``)."""
ANSWERS_ACTION = ActionSpec(ANSWER, Body.BOXES)
"""The answers where several questions are asked at once."""
OUR_KINDS = (*MEMORY_KINDS, ANSWER, CALL)
"""Names that no tool may have: an action is executed by its name."""


class ProblemReason(StrEnum):
    """Why a piece of a completion did not become an action."""

    UNCLOSED = "unclosed"  # an opening tag that is never closed
    STRAY_CLOSE = "stray_close"  # a closing tag without an opening one
    NESTED = "nested"  # an opening tag inside another element: part of its body, not an action
    EMPTY = "empty"  # an element whose body is empty and needs one
    MISSING_HANDLE = "missing_handle"  # an update or delete that does not name one entry
    NO_BOX = "no_box"  # an answer without ``\boxed{...}``
    UNCLOSED_THINKING = "unclosed_thinking"  # ``<think>`` without its end: nothing after it counts
    NOT_JSON = "not_json"  # arguments that are not a JSON object (or such a reply of a baseline)
    UNKNOWN_TOOL = "unknown_tool"  # a call of a tool that the environment does not have
    BAD_ARGUMENTS = "bad_arguments"  # arguments that do not fit the tool's schema


@dataclass(frozen=True, slots=True)
class Action:
    """One parsed element of a completion, its characters `start` to `end`.

    `text` is the body, stripped: after a handle, in the box of an answer, or JSON as written.
    """

    kind: str
    text: str = ""
    handle: int | None = None  # of the entry in the observation that the model saw
    arguments: Mapping[str, Any] | None = None  # the parsed JSON (`Body.ARGUMENTS`)
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A malformed element: skipped and recorded; the rest of the completion still applies.

    `detail` explains to the model what to write instead, where `reason` does not.
    """

    reason: ProblemReason
    tag: str
    start: int
    end: int
    detail: str = ""


Call = Action | Problem  # a call of a tool, or a problem in one


@dataclass(frozen=True, slots=True)
class Parsed:
    """Actions and malformed elements, in the order in which they were written."""

    actions: tuple[Action, ...]
    problems: tuple[Problem, ...]


def first(actions: Sequence[Action], kind: str) -> Action | None:
    return next((action for action in actions if action.kind == kind), None)


def answers_in(actions: Sequence[Action], count: int) -> list[str | None]:
    """Return the answers to `count` questions asked at once: the last boxes, None if missing."""
    texts = [action.text or None for action in actions if action.kind == ANSWER][-count:]
    return [*texts, *[None] * (count - len(texts))]

"""What a policy can do: descriptions of actions, and what one completion is parsed into.

Memory brings its actions (`MEMORY_ACTIONS`), every environment its own. Whoever brings an action says what its body
holds; the parser, prompts, statistics, traces and viewers go by that description and hold no list of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

CREATE, READ, UPDATE, DELETE, SCRATCHPAD = "create", "read", "update", "delete", "scratchpad"
ANSWER = "answer"
CALL = "call"
"""What a dialect's tag for tool calls stands under: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""


class Body(StrEnum):
    """What an element holds between its tags."""

    TEXT = "text"
    NOTE = "note"
    """Text that may be empty."""
    HANDLE = "handle"
    """The number of an entry that was shown."""
    HANDLE_TEXT = "handle_text"
    """Such a number, then text."""
    BOX = "box"
    r"""Text with ``\\boxed{...}``, whose content counts."""
    BOXES = "boxes"
    """Text with any number of boxes, each of which is an action of its own, an empty one too."""
    ARGUMENTS = "arguments"
    """A JSON object that fits the action's schema."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action that can be written.

    Attributes:
        name: What it is called in operations, statistics and traces.
        body: What the element holds.
        executor: Who carries it out.
        tag: Its tag, where the dialect has none for `name`; unset is `name` itself. An action with `ARGUMENTS` and
            without a tag is a tool, written as a call by its name.
        description: Tells the model what it does, where the environment's templates do not explain it.
        schema: JSON schema of the arguments (`ARGUMENTS`).
        ends_anywhere: An element that lacks its closing tag counts as closed where the next tag begins. For actions
            whose text is whole by then, and that can do no harm if it is not.
    """

    name: str
    body: Body
    executor: Literal["memory", "environment"] = "environment"
    tag: str | None = None
    description: str = ""
    schema: Mapping[str, Any] | None = None
    ends_anywhere: bool = False

    @property
    def is_tool(self) -> bool:
        """Whether it is written as a call by name."""
        return self.body is Body.ARGUMENTS and self.tag is None


MEMORY_ACTIONS = (
    ActionSpec(CREATE, Body.TEXT, "memory", ends_anywhere=True),
    ActionSpec(READ, Body.TEXT, "memory", ends_anywhere=True),
    ActionSpec(UPDATE, Body.HANDLE_TEXT, "memory"),
    ActionSpec(DELETE, Body.HANDLE, "memory"),
    ActionSpec(SCRATCHPAD, Body.NOTE, "memory", ends_anywhere=True),
)
MEMORY_KINDS = tuple(spec.name for spec in MEMORY_ACTIONS)

ANSWER_ACTION = ActionSpec(ANSWER, Body.BOX)
"""The answer as environments that ask questions take it; every dialect has a tag for it."""
ANSWERS_ACTION = ActionSpec(ANSWER, Body.BOXES)
"""The answers where several questions are asked at once."""
OUR_KINDS = (*MEMORY_KINDS, ANSWER, CALL)
"""Names that no tool may have: what is done with an action goes by its name."""


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
    """An update or delete that does not name one entry."""
    NO_BOX = "no_box"
    """An answer without ``\\boxed{...}``."""
    UNCLOSED_THINKING = "unclosed_thinking"
    """``<think>`` is never closed, so nothing after it is parsed."""
    NOT_JSON = "not_json"
    """Arguments that are no JSON object (or a reply of a baseline that was asked for JSON)."""
    UNKNOWN_TOOL = "unknown_tool"
    """A call of a tool that the environment does not have."""
    BAD_ARGUMENTS = "bad_arguments"
    """Arguments that do not fit the tool's schema."""


@dataclass(frozen=True, slots=True)
class Action:
    """One parsed element.

    Attributes:
        kind: The action's name.
        text: The body, stripped. With a handle: what follows it; of an answer: the content of the (last) box; of
            arguments: the JSON as it was written.
        handle: The number of the entry in the observation that the model saw (update, delete).
        arguments: What was parsed from the JSON (`Body.ARGUMENTS`).
        start, end: Character span of the element in the completion, ``text[start:end]``.
    """

    kind: str
    text: str = ""
    handle: int | None = None
    arguments: Mapping[str, Any] | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A malformed element: skipped and recorded; the rest of the completion still applies.

    `detail` says more where the reason alone does not tell the model what to write instead.
    """

    reason: ProblemReason
    tag: str
    start: int
    end: int
    detail: str = ""


Call = Action | Problem
"""A call of a tool, or one that could not be read as such: its problem's `detail` says why."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Actions in the order they were written, and what could not be read as one."""

    actions: tuple[Action, ...]
    problems: tuple[Problem, ...]


def calls(actions: Sequence[Action], problems: Sequence[Problem]) -> list[Call]:
    """The calls of one completion in the order in which they were written."""
    made = [action for action in actions if action.arguments is not None]
    refused = [problem for problem in problems if problem.reason in _REFUSED_CALLS]
    return sorted([*made, *refused], key=lambda call: call.start)


_REFUSED_CALLS = (ProblemReason.NOT_JSON, ProblemReason.UNKNOWN_TOOL, ProblemReason.BAD_ARGUMENTS)


def first(actions: Sequence[Action], kind: str) -> Action | None:
    """The first action of `kind`, or None."""
    return next((action for action in actions if action.kind == kind), None)


def answers_in(actions: Sequence[Action], count: int) -> list[str | None]:
    """The answers to `count` questions asked at once: the last boxes written, in their order; None: none was given."""
    texts = [action.text or None for action in actions if action.kind == ANSWER][-count:]
    return [*texts, *[None] * (count - len(texts))]

"""Prompts: from an observation and a memory view to token ids.

A prompt is a sequence of segments, template text or data, encoded one by one: no control token
comes out of data, and template text keeps its ids up to the joints with data.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from atommem.actions import CREATE, MEMORY_ACTIONS, OUR_KINDS, READ, SCRATCHPAD, ActionSpec
from atommem.chat_format import ChatFormat
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section, fill, split_template
from atommem.environment import EnvironmentFactory
from atommem.episode import Observation, Piece
from atommem.errors import ConfigError, DialectError
from atommem.memory.log import MemoryView
from atommem.text_safety import (
    Headings,
    SegmentEncoder,
    TemplatePart,
    clean,
    control_tokens,
    forms_in,
    guard_text,
)
from atommem.thinking import closing_thought
from atommem.tokens import Tokenizer

_MEMORY = "memory."
"""Prefix of the names of memory's own pieces: an environment may use the same names."""
_MEMORY_PIECES = ("scratchpad", "query", "memory", "entry", "capacity_notice")
_NUMBERS = {"handle": "{handle:d}", "size": "{size:d}", "capacity": "{capacity:d}"}
"""Of memory's pieces; an environment marks its numbers itself."""
_NO_NOTICE = f"{_MEMORY}unlimited"
_EMPTY = f"{_MEMORY}empty"
_UNGUARDED = (_NO_NOTICE, _EMPTY)  # variants of pieces, which bring no heading of their own
_USER = "ATOMMEM-USER-MESSAGE"  # stands for the user message while the chat template is rendered
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class Segment(NamedTuple):
    """Template text, or data with the piece and the placeholder that it fills."""

    text: str
    place: tuple[str, str] | None = None
    blank: str = ""  # what stands before data and is encoded with it


class PromptBuilder:
    """Renders prompts for one dialect, layout, environment and set of enabled actions.

    Layout ``prefix`` puts the stream before the memory, so that the episodes of a group share
    almost the whole prompt; ``paper`` puts it last, as arXiv 2601.08323 does. Different
    observations and memories have different prompts (`atommem.text_safety`).

    `system` is the system message of the template set; a chat template that explains tools itself
    (Qwen's) gets their schemas instead of the set's explanations. With `opens_thinking`, it ends
    prompts with ``<think>`` or its like, which `closing_thought` closes: completions begin inside.

    DialectError: a template begins with a placeholder, or the chat template raises or drops the
    user message. ConfigError: a tool's name cannot be called, or is that of an action of ours.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        section: Section,
        actions: Sequence[ActionSpec],
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._config, self._section = config, section
        self._templates = dialect.templates
        join, chat = dialect.templates.join, dialect.templates.chat
        self.chat = ChatFormat(tokenizer, join, chat_template_kwargs or {}, chat=chat)
        tagged = [spec for spec in (*MEMORY_ACTIONS, *actions) if not spec.is_tool]
        self._tags = {f"tag.{spec.name}": dialect.tag(spec) for spec in tagged}
        self._tags["tag.call"] = dialect.call_tag
        written = [spec.name for spec in MEMORY_ACTIONS if dialect.can_write(spec.name)]
        self._enabled = [name for name in written if name not in config.disabled_actions]
        # A place that no action can fill stays empty for ever.
        self._places = {
            place
            for place, needed in {"scratchpad": {SCRATCHPAD}, "store": {READ, CREATE}}.items()
            if needed <= set(self._enabled) or not self._templates.places
        }
        explained = () if dialect.whole else actions
        self._tools = self._shown_tools(explained)
        self.system = self._instructions(explained)
        frame = self._make_frame(explained)
        self._frame = frame.split(_USER)
        self.closing_thought = closing_thought(frame) if self._templates.chat else ""
        self.opens_thinking = bool(self.closing_thought)
        self._parts = self._split_templates()
        headings = {name: parts for name, parts in self._parts.items() if name not in _UNGUARDED}
        self._headings = Headings(headings, "\n" in self._templates.join, self._templates.empty)
        self._encoder = SegmentEncoder(tokenizer, forms_in(frame) if self._templates.chat else ())
        # The episodes of a group read the same chunk, and a memory shows its entries repeatedly.
        self._cached_ids = lru_cache(maxsize=1024)(self._ids)

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        factory: EnvironmentFactory,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> PromptBuilder:
        section = factory.section(config.templates, factory.config)
        return cls(tokenizer, dialect, config, section, factory.actions, chat_template_kwargs)

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        """Return the prompt of one step as token ids."""
        token_ids: list[int] = []
        for segment in self._segments(observation, view):
            token_ids.extend(self._cached_ids(segment, not token_ids))
        first = self.chat.first_ids
        return token_ids if token_ids[: len(first)] == first else [*first, *token_ids]

    def text(self, observation: Observation, view: MemoryView) -> str:
        """Return the prompt of one step as text, chat markup included, for people."""
        segments = self._segments(observation, view)
        text = "".join(segment.blank + self._guarded(segment) for segment in segments)
        if first_ids := self.chat.first_ids:
            first = self.tokenizer.decode(first_ids, skip_special_tokens=False)
            return text if text.startswith(first) else first + text
        return text

    def messages(self, observation: Observation, view: MemoryView) -> list[dict[str, str]]:
        """Return the prompt of one step as chat messages, for an unknown tokenizer."""
        user = "".join(
            guard_text(self._guarded(segment)) if segment.place else segment.text
            for segment in self._user(observation, view)
        )
        return self.chat.messages(user, self.system)

    @property
    def digest(self) -> str:
        """SHA-256 of all wording, the chat template's included."""
        words = (self._templates, self._section, *self._tools.items(), self._frame)
        return hashlib.sha256(repr(words).encode()).hexdigest()

    # Segments ---

    def _segments(self, observation: Observation, view: MemoryView) -> list[Segment]:
        """Return template text and data in turns; words are encoded with the blank before them."""
        user = self._user(observation, view)
        parts = [Segment(self._frame[0])]
        for after in self._frame[1:]:
            parts += (*user, Segment(after))
        segments: list[Segment] = []
        literal = ""
        for part in parts:
            if part.place is None:
                literal += part.text
                continue
            text = literal.rstrip(" ")
            segments += (Segment(text), part._replace(blank=literal[len(text) :]))
            literal = ""
        return [one for one in (*segments, Segment(literal)) if one.text or one.place]

    def _user(self, observation: Observation, view: MemoryView) -> list[Segment]:
        stream, memory = observation.stream, self._memory(view)
        middle = (*stream, *memory) if self._config.layout == "prefix" else (*memory, *stream)
        pieces = (*observation.task, *middle, *observation.closing)
        return self._joined(pieces, self._templates.join)

    def _joined(self, pieces: Sequence[Piece], between: str) -> list[Segment]:
        segments: list[Segment] = []
        for piece in pieces:
            if written := self._piece(piece):
                segments += (Segment(between), *written)
        return segments[1:]

    def _piece(self, piece: Piece) -> list[Segment]:
        """Return a piece in words; nothing where it needs an action that cannot be written."""
        if piece.needs is not None and piece.needs not in self._enabled:
            return []
        segments: list[Segment] = []
        for literal, placeholder, _ in self._parts[piece.name]:
            segments.append(Segment(literal))
            value = piece.values.get(placeholder, f"{{{placeholder}}}" if placeholder else "")
            if placeholder not in piece.values or isinstance(value, int):
                segments.append(Segment(str(value)))
            elif isinstance(value, str):
                segments.append(Segment(value, (piece.name, placeholder)))
            else:
                between = "\n" if self._templates.chat else self._templates.join
                segments += self._joined((value,) if isinstance(value, Piece) else value, between)
        return [segment for segment in segments if segment.text or segment.place]

    def _memory(self, view: MemoryView) -> list[Piece]:
        empty = Piece(_EMPTY)
        pieces = []
        if "scratchpad" in self._places:
            pieces.append(Piece(f"{_MEMORY}scratchpad", {"text": view.scratchpad or empty}))
        if "store" in self._places:
            entries = []
            for one in view.retrieved:
                name = f"{_MEMORY}{'past' if one.entry_id < 0 else 'entry'}"
                entries.append(Piece(name, {"handle": one.handle, "text": one.text}))
            values: dict[str, Any] = {"entries": tuple(entries) or empty, "size": view.size}
            name = _NO_NOTICE
            if self._config.capacity_notice and view.capacity is not None:
                name, filled = f"{_MEMORY}memory", {"size": view.size, "capacity": view.capacity}
                values["capacity_notice"] = Piece(f"{_MEMORY}capacity_notice", filled)
            query = empty if view.query is None else view.query
            pieces += (Piece(f"{_MEMORY}query", {"text": query}), Piece(name, values))
        return pieces

    def _guarded(self, segment: Segment) -> str:
        if segment.place is None:
            return segment.text
        return self._headings.guard(clean(segment.text), *segment.place)

    def _ids(self, segment: Segment, first: bool) -> Sequence[int]:
        if segment.place is None:
            return array("I", self._encoder.template(segment.text, first))
        return array("I", self._encoder.data(segment.blank + self._guarded(segment)))

    # Template text ---

    def _split_templates(self) -> dict[str, list[TemplatePart]]:
        memory = {name: getattr(self._templates, name) for name in _MEMORY_PIECES}
        if self._config.read_past:
            memory["past"] = self._templates.past or f"Past {memory['entry']}"
        memory["unlimited"] = memory["memory"].replace("{capacity_notice}", "").rstrip()
        memory["empty"] = self._templates.empty
        templates = {f"{_MEMORY}{name}": fill(text, _NUMBERS) for name, text in memory.items()}
        templates |= self._section.pieces
        return {name: split_template(fill(text, self._tags)) for name, text in templates.items()}

    def _instructions(self, actions: Sequence[ActionSpec]) -> str:
        templates, section = self._templates, self._section
        explained = [templates.actions[name] for name in self._enabled if name in templates.actions]
        explained += [text for text in map(self._explanation, actions) if text]
        places = [text for place, text in templates.places.items() if place in self._places]
        # Explanations and the environment's words hold tag names themselves.
        values = {
            "actions": fill("\n".join(explained), self._tags),
            "places": "\n".join(places),
            "introduction": fill(section.introduction, self._tags),
            "rules": fill(section.rules, self._tags),
        }
        return fill(templates.system, {**self._tags, **values}).strip()

    def _explanation(self, spec: ActionSpec) -> str:
        if spec.name in self._section.actions:
            return self._section.actions[spec.name]
        if spec.is_tool:
            tool = self._tools[spec.name]
            schema = json.dumps(tool["parameters"], ensure_ascii=False)
            return fill(self._templates.call, {**tool, "schema": schema})
        tag = self._tags[f"tag.{spec.name}"]
        return f"<{tag}>...</{tag}> {spec.description}" if spec.description else ""

    def _shown_tools(self, actions: Sequence[ActionSpec]) -> dict[str, dict[str, Any]]:
        """Return the tools among `actions` by name, as chat templates take functions.

        Their texts are data of servers: each stands in one line, without control tokens.
        """
        frame = self.chat.render(self.chat.messages("", "-")) if self._templates.chat else ""
        words = [*control_tokens(self.tokenizer).values(), *forms_in(frame)]

        def shown(value: Any) -> Any:
            if isinstance(value, str):
                return guard_text(" ".join(value.split()), words)
            if isinstance(value, Mapping):
                return {shown(str(name)): shown(item) for name, item in value.items()}
            return [shown(item) for item in value] if isinstance(value, list | tuple) else value

        tools = {}
        for spec in (spec for spec in actions if spec.is_tool):
            if not _TOOL_NAME.fullmatch(spec.name) or spec.name in OUR_KINDS:
                raise ConfigError(
                    f"tool={spec.name[:200]!r}: a name has at most 128 letters, digits, '_', '.', "
                    f"':', '/' and '-', and is not {' or '.join(OUR_KINDS)}. Drop its source."
                )
            explained = {"description": spec.description, "parameters": spec.schema or {}}
            tools[spec.name] = {"name": spec.name, **shown(explained)}
        return tools

    def _make_frame(self, actions: Sequence[ActionSpec]) -> str:
        """Return the prompt around the user message, tools worded by the chat template if it can.

        It can if it asks for calls in the dialect's tag, and tools' texts become no control tokens.
        """
        ours = self.chat.render(self.chat.messages(_USER, self.system))
        if not (self._tools and self._templates.chat):
            return ours
        without_tools = self._instructions([spec for spec in actions if not spec.is_tool])
        messages = self.chat.messages(_USER, without_tools)
        names = [{"name": name, "description": "", "parameters": {}} for name in self._tools]
        try:
            native = self.chat.render(messages, [*self._tools.values()])
            bare = self.chat.render(messages, names)
        except DialectError:  # the template takes no tools
            return ours
        call = f"<{self._tags['tag.call']}>"
        asks = call in native and call not in self.chat.render(messages)
        encoder = SegmentEncoder(self.tokenizer)
        controls, expected = (encoder.controls(encoder.template(text)) for text in (native, bare))
        is_native = asks and controls == expected and all(name in native for name in self._tools)
        return native if is_native else ours

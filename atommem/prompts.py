"""Prompts: from an observation and a memory view to token ids.

A prompt is a sequence of segments, each template text or data. They are encoded one by one, so that
no control token comes out of data; template text keeps the ids that the tokenizer gives it, up to
the joints with data.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from atommem.actions import CREATE, MEMORY_ACTIONS, OUR_KINDS, READ, SCRATCHPAD, ActionSpec
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section, fill, split_template
from atommem.environment import EnvironmentFactory
from atommem.episode import Observation, Piece
from atommem.errors import ConfigError, DialectError
from atommem.grammar import THINK
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
from atommem.tokens import Tokenizer

_MEMORY = "memory."
"""Prefix of the names of memory's own pieces: an environment may use the same names."""
_MEMORY_PIECES = ("scratchpad", "query", "memory", "entry", "capacity_notice")
_MEMORY_NUMBERS = ("handle", "size", "capacity")
_NO_NOTICE = f"{_MEMORY}unlimited"
_EMPTY = f"{_MEMORY}empty"
_USER = "ATOMMEM-USER-MESSAGE"
"""Stands for the user message while the chat template is rendered."""
_CACHED_CHARACTERS = 65_536
"""Longest data whose ids are cached: 512 of them take at most 128 MiB."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_LONGEST_TOOL_TEXT = 2000

Tools = list[dict[str, Any]]
"""As chat templates and OpenAI's API take them."""


class Segment(NamedTuple):
    """Template text, or data with the piece and the placeholder that it fills."""

    text: str
    place: tuple[str, str] | None = None
    blank: str = ""  # what stands before data and is encoded with it


class PromptBuilder:
    """Renders prompts for one dialect, layout, environment and set of enabled actions.

    Layout ``prefix`` puts the stream before the memory, so that the episodes of a group share
    almost the whole prompt; ``paper`` puts it last, as arXiv 2601.08323 does. All text of
    observations and memory is data (`atommem.text_safety`): different observations and memories
    have different prompts.

    Args:
        tokenizer: The policy's.
        dialect: Tags and wording of the memory.
        config: Layout, disabled actions.
        section: Wording of the environment.
        actions: The environment's.
        chat_template_kwargs: Passed to the chat template (``enable_thinking`` of Qwen3).

    Attributes:
        system: The system message of the template set. A chat template that explains tools itself
            (Qwen's), and asks for calls as the dialect reads them, gets their schemas instead of
            the set's explanations.
        opens_thinking: Whether the chat template ends prompts with ``<think>``: completions then
            begin inside of it.

    Raises:
        DialectError: A template begins with a placeholder instead of a word, or the chat template
            does not show the user message.
        ConfigError: A tool's name or description cannot be shown.
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
        self.layout = config.layout
        self._templates = templates = dialect.templates
        self._section = section
        self._capacity_notice = config.capacity_notice
        self._chat_template_kwargs = chat_template_kwargs or {}
        tagged = [spec for spec in (*MEMORY_ACTIONS, *actions) if not spec.is_tool]
        self._tags = {f"tag.{spec.name}": dialect.tag(spec) for spec in tagged}
        self._tags["tag.call"] = dialect.call_tag
        self._enabled = [
            spec.name
            for spec in MEMORY_ACTIONS
            if dialect.can_write(spec.name) and spec.name not in config.disabled_actions
        ]
        # A place that no action can fill stays empty for ever.
        fillable = {"scratchpad": {SCRATCHPAD}, "store": {READ, CREATE}}
        self._places = {
            place
            for place, needed in fillable.items()
            if needed <= set(self._enabled) or not templates.places
        }

        explained = () if dialect.whole else actions
        tools = shown_tools(explained, self._guard_tool)
        self._tools = {tool["function"]["name"]: tool["function"] for tool in tools}
        self.system = system = self._instructions(explained)
        native: Tools = []
        if tools and templates.chat:
            without_tools = self._instructions([spec for spec in explained if not spec.is_tool])
            if self._template_words(tools, without_tools, dialect.call_tag):
                native, system = tools, without_tools
        frame = self._rendered(self._messages(_USER, system), native)
        self._frame = frame.split(_USER)
        if len(self._frame) == 1:
            raise DialectError("the tokenizer's chat template does not show the user message.")
        self.opens_thinking = templates.chat and frame.rstrip().endswith(f"<{THINK}>")

        words = {f"{_MEMORY}{name}": getattr(templates, name) for name in _MEMORY_PIECES}
        words |= section.pieces
        self._parts = {name: self._split(name, template) for name, template in words.items()}
        self._headings = Headings(self._parts, "\n" in templates.join, templates.empty)
        unlimited = templates.memory.replace("{capacity_notice}", "").rstrip()
        self._parts[_NO_NOTICE] = self._split(_NO_NOTICE, unlimited)
        self._parts[_EMPTY] = self._split(_EMPTY, templates.empty)
        self._encoder = SegmentEncoder(tokenizer, forms_in(frame) if templates.chat else ())
        # The episodes of a group read the same chunk, and a memory shows its entries repeatedly.
        self._cached_template_ids = lru_cache(maxsize=1024)(self._template_ids)
        self._cached_data_ids = lru_cache(maxsize=512)(self._data_ids)

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        factory: EnvironmentFactory,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> PromptBuilder:
        """Make the builder of an environment's prompts."""
        section = factory.section(config.templates, factory.config)
        return cls(tokenizer, dialect, config, section, factory.actions, chat_template_kwargs)

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        """Return the prompt of one step as token ids."""
        token_ids: list[int] = []
        for segment in self._segments(observation, view):
            if segment.place is None:
                token_ids.extend(self._cached_template_ids(segment.text, not token_ids))
            elif len(segment.text) > _CACHED_CHARACTERS:
                token_ids.extend(self._data_ids(segment))
            else:
                token_ids.extend(self._cached_data_ids(segment))
        return token_ids

    def text(self, observation: Observation, view: MemoryView) -> str:
        """Return the prompt of one step as text, chat markup included, for people."""
        segments = self._segments(observation, view)
        return "".join(segment.blank + self._guarded(segment) for segment in segments)

    def messages(self, observation: Observation, view: MemoryView) -> list[dict[str, str]]:
        """Return the prompt of one step as chat messages, for an unknown tokenizer."""
        user = "".join(
            guard_text(self._guarded(segment)) if segment.place else segment.text
            for segment in self._user(observation, view)
        )
        return self._messages(user, self.system)

    @property
    def digest(self) -> str:
        """SHA-256 of all wording."""
        words = (self._templates, self._section, *self._tools.items())
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
            if text:
                segments.append(Segment(text))
            segments.append(part._replace(blank=literal[len(text) :]))
            literal = ""
        return [*segments, Segment(literal)] if literal else segments

    def _user(self, observation: Observation, view: MemoryView) -> list[Segment]:
        stream, memory = observation.stream, self._memory(view)
        middle = (*stream, *memory) if self.layout == "prefix" else (*memory, *stream)
        return self._joined(
            (*observation.task, *middle, *observation.closing), self._templates.join
        )

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
        for literal, placeholder, is_number in self._parts[piece.name]:
            segments.append(Segment(literal))
            value = piece.values.get(placeholder, f"{{{placeholder}}}" if placeholder else "")
            if placeholder not in piece.values or isinstance(value, int):
                segments.append(Segment(str(value)))
            elif isinstance(value, str):
                if is_number:
                    raise DialectError(
                        f"piece {piece.name}: its template takes a number for {{{placeholder}}}, "
                        f"not {value!r}."
                    )
                segments.append(Segment(value, (piece.name, placeholder)))
            else:
                pieces = (value,) if isinstance(value, Piece) else value
                segments += self._joined(
                    pieces, "\n" if self._templates.chat else self._templates.join
                )
        return [segment for segment in segments if segment.text or segment.place]

    def _memory(self, view: MemoryView) -> list[Piece]:
        empty = Piece(_EMPTY)
        pieces = []
        if "scratchpad" in self._places:
            pieces.append(Piece(f"{_MEMORY}scratchpad", {"text": view.scratchpad or empty}))
        if "store" in self._places:
            entries = tuple(
                Piece(f"{_MEMORY}entry", {"handle": item.handle, "text": item.text})
                for item in view.retrieved
            )
            values: dict[str, Any] = {"entries": entries or empty, "size": view.size}
            name = _NO_NOTICE
            if self._capacity_notice and view.capacity is not None:
                name, filled = f"{_MEMORY}memory", {"size": view.size, "capacity": view.capacity}
                values["capacity_notice"] = Piece(f"{_MEMORY}capacity_notice", filled)
            query = empty if view.query is None else view.query
            pieces += (Piece(f"{_MEMORY}query", {"text": query}), Piece(name, values))
        return pieces

    def _guarded(self, segment: Segment) -> str:
        """Return the text of a segment, headings in data marked."""
        if segment.place is None:
            return segment.text
        return self._headings.guard(clean(segment.text), *segment.place)

    def _template_ids(self, text: str, first: bool) -> Sequence[int]:
        return array("I", self._encoder.template(text, first))

    def _data_ids(self, segment: Segment) -> Sequence[int]:
        return array("I", self._encoder.data(segment.blank + self._guarded(segment)))

    # Template text ---

    def _split(self, name: str, template: str) -> list[TemplatePart]:
        numbers = _MEMORY_NUMBERS if name.startswith(_MEMORY) else ()
        return [
            part._replace(is_number=part.is_number or part.placeholder in numbers)
            for part in split_template(fill(template, self._tags))
        ]

    def _instructions(self, actions: Sequence[ActionSpec]) -> str:
        """Return the system message."""
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
        """Return the environment's explanation of an action, or one from its description."""
        if spec.name in self._section.actions:
            return self._section.actions[spec.name]
        if spec.is_tool:
            tool = self._tools[spec.name]
            schema = json.dumps(tool["parameters"], ensure_ascii=False)
            return fill(self._templates.call, {**tool, "schema": schema})
        tag = self._tags[f"tag.{spec.name}"]
        return f"<{tag}>...</{tag}> {spec.description}" if spec.description else ""

    def _guard_tool(self, text: str) -> str:
        """Return a text of a tool's server without control tokens."""
        frame = self._rendered(self._messages("", "-")) if self._templates.chat else ""
        return guard_text(text, [*control_tokens(self.tokenizer).values(), *forms_in(frame)])

    def _template_words(self, tools: Tools, system: str, call_tag: str) -> bool:
        """Return whether the chat template words tools itself and asks for calls in `call_tag`.

        Raises:
            ConfigError: The text of a tool becomes a control token in this template.
        """
        if getattr(self.tokenizer, "chat_template", None) is None:
            return False
        messages = self._messages("", system)
        try:
            rendered = self._rendered(messages, tools)
        except Exception:  # a template that takes no tools raises what it likes
            return False
        names = [tool["function"]["name"] for tool in tools]
        asks = f"<{call_tag}>" in rendered and f"<{call_tag}>" not in self._rendered(messages)
        if not asks or not all(name in rendered for name in names):
            return False
        encoder = SegmentEncoder(self.tokenizer)
        bare = self._rendered(messages, [_function(name, "", {}) for name in names])
        if encoder.controls(encoder.template(rendered)) != encoder.controls(encoder.template(bare)):
            raise ConfigError(
                f"the tools {', '.join(names)} have texts with control tokens. Leave out their "
                "source."
            )
        return True

    def _messages(self, user: str, system: str) -> list[dict[str, str]]:
        first = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": user}]

    def _rendered(self, messages: list[dict[str, str]], tools: Tools | None = None) -> str:
        if self._templates.chat:
            options = self._chat_template_kwargs | ({"tools": tools} if tools else {})
            return render_chat(self.tokenizer, messages, options)
        return self._templates.join.join(message["content"] for message in messages)


def render_chat(
    tokenizer: Tokenizer, messages: list[dict[str, str]], chat_template_kwargs: Mapping[str, Any]
) -> str:
    """Render messages by the tokenizer's chat template, or join them where it has none."""
    if getattr(tokenizer, "chat_template", "") is None:
        return "\n\n".join(message["content"] for message in messages)
    rendered: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **chat_template_kwargs
    )
    return rendered


def shown_tools(actions: Sequence[ActionSpec], guard: Callable[[str], str]) -> Tools:
    """Return the tools among `actions`, whose descriptions and schemas are data of their servers.

    Every text stands in one line of at most 2,000 characters, guarded.

    Raises:
        ConfigError: A tool's name could not be called, or is that of an action of ours.
    """

    def shown(value: Any) -> Any:
        if isinstance(value, str):
            line = " ".join(value.split())
            cut = "..." if len(line) > _LONGEST_TOOL_TEXT else ""
            return guard(line[:_LONGEST_TOOL_TEXT] + cut)
        if isinstance(value, Mapping):
            return {shown(str(name)): shown(item) for name, item in value.items()}
        return [shown(item) for item in value] if isinstance(value, list | tuple) else value

    tools = [spec for spec in actions if spec.is_tool]
    for spec in tools:
        if not _TOOL_NAME.fullmatch(spec.name) or spec.name in OUR_KINDS:
            raise ConfigError(
                f"tool={spec.name[:200]!r}: a name has at most 128 letters, digits, '_', '.', ':', "
                f"'/' and '-', and is none of {', '.join(OUR_KINDS)}. Leave out its source."
            )
    return [
        _function(spec.name, shown(spec.description), shown(spec.schema or {})) for spec in tools
    ]


def _function(name: str, description: str, parameters: Any) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}

"""From an observation and a memory view to what the policy reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from atommem.actions import CREATE, MEMORY_ACTIONS, READ, SCRATCHPAD, ActionSpec
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section
from atommem.dialects.templates import fill
from atommem.environment import EnvironmentFactory
from atommem.memory.entries import MemoryView
from atommem.observation import Observation, Piece
from atommem.parsing import THINK
from atommem.tokens import Tokenizer


class PromptBuilder:
    """Renders prompts for one dialect, layout, environment and set of enabled actions.

    Layout ``prefix`` puts what is new before the memory, so that the episodes of a group share almost
    the whole prompt; ``paper`` puts it last, as arXiv 2601.08323 does.

    Args:
        tokenizer: The policy's.
        dialect: Tags and wording of the memory.
        config: Layout, disabled actions.
        section: Wording of the environment.
        actions: The environment's.
        chat_template_kwargs: Passed to the tokenizer's chat template (``enable_thinking`` of Qwen3).

    Attributes:
        opens_thinking: Whether the chat template ends prompts with ``<think>``: completions then begin inside of it.
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
        self._templates = dialect.templates
        self._section = section
        self._capacity_notice = config.capacity_notice
        self._chat_template_kwargs = chat_template_kwargs or {}
        specs = {spec.name: spec for spec in (*MEMORY_ACTIONS, *actions) if not spec.is_tool}
        self._tags = {f"tag.{name}": dialect.tag(spec) for name, spec in specs.items()}
        self._tags["tag.call"] = dialect.call_tag
        self._enabled = [
            spec.name
            for spec in MEMORY_ACTIONS
            if dialect.can_write(spec.name) and spec.name not in config.disabled_actions
        ]
        # What no action can fill stays empty for ever.
        used = {
            "scratchpad": SCRATCHPAD in self._enabled,
            "store": READ in self._enabled and CREATE in self._enabled,
        }
        self._places = {place for place, is_used in used.items() if is_used or not self._templates.places}
        self.system = self._instructions(() if dialect.whole else actions)
        self.opens_thinking = False
        if self._templates.chat:
            self.opens_thinking = self._chat([{"role": "user", "content": ""}]).rstrip().endswith(f"<{THINK}>")

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        environments: EnvironmentFactory,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> PromptBuilder:
        """The prompts of an environment."""
        section = environments.section(config.templates)
        return cls(tokenizer, dialect, config, section, environments.actions, chat_template_kwargs)

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        """The prompt of one step as token ids."""
        return self.tokenizer.encode(self.text(observation, view), add_special_tokens=False)

    def text(self, observation: Observation, view: MemoryView) -> str:
        """The prompt of one step as text, chat markup included."""
        if self._templates.chat:
            return self._chat(self.messages(observation, view))
        return self._templates.join.join(item["content"] for item in self.messages(observation, view))

    def messages(self, observation: Observation, view: MemoryView) -> list[dict[str, str]]:
        """The prompt of one step as chat messages."""
        stream = [self._piece(piece) for piece in observation.stream]
        memory = self._memory(view)
        pieces = [
            *(self._piece(piece) for piece in observation.task),
            *((*stream, *memory) if self.layout == "prefix" else (*memory, *stream)),
            *(self._piece(piece) for piece in observation.closing),
        ]
        user = self._templates.join.join(piece for piece in pieces if piece)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": user}]

    @property
    def digest(self) -> str:
        """SHA-256 of all wording."""
        return hashlib.sha256(repr((self._templates, self._section)).encode()).hexdigest()

    def _chat(self, messages: list[dict[str, str]]) -> str:
        return render_chat(self.tokenizer, messages, self._chat_template_kwargs)

    def _instructions(self, actions: Sequence[ActionSpec]) -> str:
        """The system message."""
        templates, section = self._templates, self._section
        explained = [templates.actions[name] for name in self._enabled if name in templates.actions]
        explained += [text for text in (self._explanation(spec) for spec in actions) if text]
        places = [text for place, text in templates.places.items() if place in self._places]
        # Explanations and the environment's words hold tag names themselves.
        values = {
            "actions": self._tagged("\n".join(explained)),
            "places": "\n".join(places),
            "introduction": self._tagged(section.introduction),
            "rules": self._tagged(section.rules),
        }
        return fill(templates.system, {**self._tags, **values}).strip()

    def _explanation(self, spec: ActionSpec) -> str:
        """How an action of the environment's is explained: in its own words, or from its description."""
        if spec.name in self._section.actions:
            return self._section.actions[spec.name]
        values = {"name": spec.name, "description": spec.description}
        if spec.is_tool:
            return fill(self._templates.call, {**values, "schema": json.dumps(dict(spec.schema or {}))})
        tag = self._tags[f"tag.{spec.name}"]
        return f"<{tag}>...</{tag}> {spec.description}" if spec.description else ""

    def _tagged(self, template: str) -> str:
        return fill(template, self._tags)

    def _fill(self, template: str, **values: object) -> str:
        return fill(template, {**self._tags, **values})

    def _piece(self, piece: Piece) -> str:
        """A piece in its environment's words; nothing where it needs an action that cannot be written."""
        if piece.needs is not None and piece.needs not in self._enabled:
            return ""
        return self._fill(
            self._section.pieces[piece.name], **{name: self._value(value) for name, value in piece.values.items()}
        )

    def _value(self, value: str | int | Piece | tuple[Piece, ...]) -> str:
        if isinstance(value, Piece):
            return self._piece(value)
        if isinstance(value, tuple):
            return "\n".join(self._piece(item) for item in value)
        return str(value)

    def _memory(self, view: MemoryView) -> list[str]:
        templates = self._templates
        entries = [self._fill(templates.entry, handle=item.handle, text=item.text) for item in view.retrieved]
        separator = "\n" if templates.chat else templates.join
        notice = ""
        if self._capacity_notice and view.capacity is not None:
            notice = self._fill(templates.capacity_notice, size=view.size, capacity=view.capacity)
        memory = self._fill(
            templates.memory,
            entries=separator.join(entries) or templates.empty,
            size=view.size,
            capacity_notice=notice,
        )
        pieces = []
        if "scratchpad" in self._places:
            pieces.append(self._fill(templates.scratchpad, text=view.scratchpad or templates.empty))
        if "store" in self._places:
            pieces += [self._fill(templates.query, text=view.query or templates.empty), memory.rstrip()]
        return pieces


def render_chat(tokenizer: Tokenizer, messages: list[dict[str, str]], chat_template_kwargs: dict[str, Any]) -> str:
    """Messages as the policy reads them: through its chat template, or joined where its tokenizer has none."""
    if getattr(tokenizer, "chat_template", "") is None:
        return "\n\n".join(message["content"] for message in messages)
    rendered: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **chat_template_kwargs
    )
    return rendered

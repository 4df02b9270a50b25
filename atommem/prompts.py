"""From an observation and a memory view to what the policy reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from atommem.actions import CREATE, MEMORY_ACTIONS, READ, SCRATCHPAD, ActionSpec
from atommem.config import MemoryConfig
from atommem.dialects import Dialect, Section
from atommem.dialects.templates import fill
from atommem.environment import EnvironmentFactory
from atommem.errors import DialectError
from atommem.memory.log import MemoryView
from atommem.observation import Observation, Piece
from atommem.parsing import THINK
from atommem.tokens import Tokenizer
from atommem.tool_schemas import Tools, native_tools, schema_text, shown_tools
from atommem.untrusted import PromptGuard, Rewrite, Structure, forms_in

_MEMORY = "memory."
"""Before the names of memory's own pieces: an environment may use the same names."""
_MEMORY_PIECES = ("scratchpad", "query", "memory", "entry", "capacity_notice")
_NO_NOTICE = f"{_MEMORY}unlimited"
_USERS = ("Question:\nWho?", " a  b", "\n\nc", "\u00e9\u4e2d\U0001f600", "1 \t<b>")
"""What a user may say, for `PromptGuard.learn_head`."""


class PromptBuilder:
    """Renders prompts for one dialect, layout, environment and set of enabled actions.

    Layout ``prefix`` puts what is new before the memory, so that the episodes of a group share almost
    the whole prompt; ``paper`` puts it last, as arXiv 2601.08323 does.

    All text of observations and memory is data (`atommem.untrusted`): no control token comes out of it, and different
    observations and memories have different prompts.

    Args:
        tokenizer: The policy's.
        dialect: Tags and wording of the memory.
        config: Layout, disabled actions.
        section: Wording of the environment.
        actions: The environment's.
        numbers, inside: What its `EnvironmentFactory` says of its pieces.
        chat_template_kwargs: Passed to the tokenizer's chat template (``enable_thinking`` of Qwen3).

    Attributes:
        system: The system message in our own words. A chat template that words tools itself (Qwen's), and asks for
            calls as the dialect reads them, is given their schemas instead of our explanations.
        opens_thinking: Whether the chat template ends prompts with ``<think>``: completions then begin inside of it.

    Raises:
        DialectError: The templates do not let one piece be told from another.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        section: Section,
        actions: Sequence[ActionSpec],
        chat_template_kwargs: dict[str, Any] | None = None,
        *,
        numbers: Sequence[str] = (),
        inside: Mapping[str, str] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.layout = config.layout
        self._templates = dialect.templates
        self._section = section
        self._inside = inside or {}
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
        self._places = {
            place for place, is_used in used.items() if is_used or not self._templates.places
        }
        explained = () if dialect.whole else actions
        self._tools: Tools = []
        told = (
            shown_tools(explained, self._tool_guard())
            if any(spec.is_tool for spec in explained)
            else []
        )
        self._shown = {tool["function"]["name"]: tool for tool in told}
        self.system = self._system = self._instructions(explained)
        if self._templates.chat:
            untold = self._instructions([spec for spec in explained if not spec.is_tool])
            self._tools = native_tools(
                *(explained, told, tokenizer, dialect.call_tag),
                lambda tools: self._rendered(self._messages("", untold), tools),
            )
            self._system = untold if self._tools else self.system
        frame = self._rendered(self._messages("", self._system))
        self.opens_thinking = self._templates.chat and frame.rstrip().endswith(f"<{THINK}>")
        wording = {
            f"{_MEMORY}{name}": getattr(self._templates, name) for name in _MEMORY_PIECES
        } | dict(section.pieces)
        self._words = {name: self._tagged(template) for name, template in wording.items()}
        self._structure = Structure(
            self._words,
            join=self._templates.join,
            numbers=("handle", "size", "capacity", *numbers),
            inside={f"{_MEMORY}{name}": f"{_MEMORY}memory" for name in ("entry", "capacity_notice")}
            | dict(self._inside),
            lists=("entries",),
            empty=self._templates.empty,
        )
        self._numbers = frozenset(numbers)
        self._words[f"{_MEMORY}empty"] = self._templates.empty
        self._words[_NO_NOTICE] = (
            self._words[f"{_MEMORY}memory"].replace("{capacity_notice}", "").rstrip()
        )
        self._guard = PromptGuard(
            tokenizer, self._structure, forms_in(frame) if self._templates.chat else ()
        )
        # None where the pieces themselves hold control tokens: then it depends on which are shown.
        bare = not any(self._guard.controls(self._encoded(words)) for words in self._words.values())
        self._controls = self._guard.controls(self._encoded(frame)) if bare else None
        self._guard.learn_head(
            [self._rendered(self._messages(user, self._system)) for user in _USERS]
        )

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
        section = environments.section(config.templates, environments.config)
        return cls(
            tokenizer,
            dialect,
            config,
            section,
            environments.actions,
            chat_template_kwargs,
            numbers=environments.numbers,
            inside=environments.inside,
        )

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        """The prompt of one step as token ids."""
        return self._guard.encode(
            lambda rewrite: self._text(observation, view, rewrite), self._controls
        )

    def text(self, observation: Observation, view: MemoryView) -> str:
        """The prompt of one step as text, chat markup included."""
        return self._text(observation, view, self._guard.data)

    def messages(self, observation: Observation, view: MemoryView) -> list[dict[str, str]]:
        """The prompt of one step as chat messages, for a server whose tokenizer is not known."""
        return self._messages(self._user(observation, view, self._server_guard.data), self.system)

    @cached_property
    def _server_guard(self) -> PromptGuard:
        return PromptGuard(None, self._structure)

    def _text(self, observation: Observation, view: MemoryView, rewrite: Rewrite) -> str:
        return self._rendered(self._messages(self._user(observation, view, rewrite), self._system))

    def _user(self, observation: Observation, view: MemoryView, rewrite: Rewrite) -> str:
        """What the user says: all pieces, their data rewritten."""
        memory = self._memory(view)
        pieces = [
            *observation.task,
            *(
                (*observation.stream, *memory)
                if self.layout == "prefix"
                else (*memory, *observation.stream)
            ),
            *observation.closing,
        ]
        shown = (self._piece(piece, rewrite) for piece in pieces)
        return self._guard.closed(self._templates.join.join(piece for piece in shown if piece))

    def _tool_guard(self) -> PromptGuard:
        """For what is said of tools: no control token of the tokenizer, nor what its template marks messages with."""
        forms = forms_in(self._rendered(self._messages("", "-"))) if self._templates.chat else ()
        return PromptGuard(self.tokenizer, None, forms)

    def _messages(self, user: str, system: str) -> list[dict[str, str]]:
        first = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": user}]

    def _rendered(self, messages: list[dict[str, str]], tools: Tools | None = None) -> str:
        if self._templates.chat:
            tools = self._tools if tools is None else tools
            return render_chat(
                self.tokenizer,
                messages,
                self._chat_template_kwargs | ({"tools": tools} if tools else {}),
            )
        return self._templates.join.join(message["content"] for message in messages)

    def _encoded(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    @property
    def digest(self) -> str:
        """SHA-256 of all wording."""
        tools = (self._shown,) if self._shown else ()
        return hashlib.sha256(repr((self._templates, self._section, *tools)).encode()).hexdigest()

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
        if spec.is_tool:
            tool = self._shown[spec.name]
            described = {
                "name": spec.name,
                "description": tool["function"]["description"],
                "schema": schema_text(tool),
            }
            return fill(self._templates.call, described)
        tag = self._tags[f"tag.{spec.name}"]
        return f"<{tag}>...</{tag}> {spec.description}" if spec.description else ""

    def _tagged(self, template: str) -> str:
        return fill(template, self._tags)

    def _piece(self, piece: Piece, rewrite: Rewrite) -> str:
        """A piece in words; nothing where it needs an action that cannot be written."""
        if piece.needs is not None and piece.needs not in self._enabled:
            return ""
        values = {
            name: self._value(piece.name, name, value, rewrite)
            for name, value in piece.values.items()
        }
        return fill(self._words[piece.name], values)

    def _value(
        self, owner: str, name: str, value: str | int | Piece | tuple[Piece, ...], rewrite: Rewrite
    ) -> str:
        if isinstance(value, str):
            if name in self._numbers:
                raise DialectError(
                    f"piece {owner} has {value!r} for {{{name}}}, which its environment calls a number."
                )
            return rewrite(value, owner, name)
        if isinstance(value, int):
            return str(value)
        pieces = (value,) if isinstance(value, Piece) else value
        for piece in pieces:
            if not piece.name.startswith(_MEMORY) and self._inside.get(piece.name) != owner:
                raise DialectError(
                    f"piece {piece.name} stands in {owner}: say so in `inside` of its environment."
                )
        between = "\n" if self._templates.chat else self._templates.join
        return between.join(self._piece(piece, rewrite) for piece in pieces)

    def _memory(self, view: MemoryView) -> list[Piece]:
        """The memory as pieces."""
        empty = Piece(f"{_MEMORY}empty")
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
            pieces.append(
                Piece(f"{_MEMORY}query", {"text": empty if view.query is None else view.query})
            )
            pieces.append(Piece(name, values))
        return pieces


def render_chat(
    tokenizer: Tokenizer, messages: list[dict[str, str]], chat_template_kwargs: Mapping[str, Any]
) -> str:
    """Messages as the policy reads them: through its chat template, or joined where its tokenizer has none."""
    if getattr(tokenizer, "chat_template", "") is None:
        return "\n\n".join(message["content"] for message in messages)
    rendered: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **chat_template_kwargs
    )
    return rendered

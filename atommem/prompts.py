"""From an observation and a memory view to the token ids that the policy reads."""

from __future__ import annotations

from typing import Any

from atommem.actions import MEMORY_ACTIONS, ActionKind
from atommem.config import MemoryConfig
from atommem.dialects import Dialect
from atommem.dialects.templates import fill
from atommem.episode import Observation
from atommem.memory.entries import MemoryView
from atommem.tokens import Tokenizer


class PromptBuilder:
    """Renders prompts for one dialect, layout and set of enabled actions.

    Layout ``prefix`` puts the chunk before the memory, so that the episodes of a group share almost
    the whole prompt; ``paper`` puts it last, as arXiv 2601.08323 does.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        config: MemoryConfig,
        chat_template_kwargs: dict[str, Any] | None = None,
        tools: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.dialect = dialect
        self.layout = config.layout
        self._templates = dialect.templates
        self._capacity_notice = config.capacity_notice
        self._chat_template_kwargs = chat_template_kwargs or {}
        self._tags = {f"tag.{kind}": tag for kind, tag in dialect.tags.items()}
        enabled = [
            kind for kind in MEMORY_ACTIONS if kind in dialect.kinds and str(kind) not in config.disabled_actions
        ]
        self._reads = ActionKind.READ in enabled
        # What no action can fill stays empty for ever.
        used = {
            "scratchpad": ActionKind.SCRATCHPAD in enabled,
            "store": self._reads and ActionKind.CREATE in enabled,
        }
        self._places = {place for place, is_used in used.items() if is_used or not self._templates.places}
        shown = [*enabled, ActionKind.ANSWER, *([ActionKind.TOOL] if tools else [])]
        explained = [self._templates.actions[kind] for kind in shown if kind in self._templates.actions]
        places = [text for place, text in self._templates.places.items() if place in self._places]
        # Filled twice: the explanations themselves hold tag names.
        actions = fill("\n".join(explained), self._tags)
        self.system = fill(self._templates.system, {**self._tags, "actions": actions, "places": "\n".join(places)})

    def build(self, observation: Observation, view: MemoryView) -> list[int]:
        """The prompt of one step as token ids."""
        return self.tokenizer.encode(self.text(observation, view), add_special_tokens=False)

    def text(self, observation: Observation, view: MemoryView) -> str:
        """The prompt of one step as text, chat markup included."""
        templates = self._templates
        user = templates.join.join(self._pieces(observation, view))
        if not templates.chat:
            return templates.join.join(piece for piece in (self.system, user) if piece)
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
        return render_chat(self.tokenizer, messages, self._chat_template_kwargs)

    def _pieces(self, observation: Observation, view: MemoryView) -> list[str]:
        stream = self._stream(observation)
        memory = self._memory(view)
        closing = self._templates.reading
        if observation.phase == "answering":
            # Filled twice: the notice itself holds the number.
            notice = self._templates.read_notice if self._reads else ""
            closing = self._fill(self._templates.answering, read_notice=notice)
        closing = self._fill(closing, reads_left=observation.reads_left)
        body = [*stream, *memory] if self.layout == "prefix" else [*memory, *stream]
        return [piece for piece in (self._questions(observation), *body, closing) if piece]

    def _fill(self, template: str, **values: object) -> str:
        return fill(template, {**self._tags, **values})

    def _questions(self, observation: Observation) -> str:
        questions = observation.questions
        if len(questions) == 1:
            shown = questions[0]
        else:
            shown = "\n".join(
                self._fill(self._templates.question_line, number=number, text=text)
                for number, text in enumerate(questions, start=1)
            )
        return self._fill(self._templates.questions, questions=shown)

    def _stream(self, observation: Observation) -> list[str]:
        pieces = []
        if observation.chunk is not None:
            pieces.append(
                self._fill(
                    self._templates.chunk,
                    chunk=observation.chunk,
                    chunk_number=observation.chunk_index + 1,
                    chunk_count=observation.chunk_count,
                )
            )
        if observation.tool_result is not None:
            pieces.append(self._fill(self._templates.tool_result, text=observation.tool_result))
        return pieces

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

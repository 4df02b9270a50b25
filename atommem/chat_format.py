"""The form that a model reads: its chat template, probed.

A template may refuse the system role, want content in parts, print today's date, or drop text.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from atommem.errors import ConfigError, DialectError
from atommem.text_safety import control_tokens
from atommem.thinking import marks
from atommem.tokens import Tokenizer

Message = Mapping[str, str]

TODAY = "2024-07-26"
"""The date in templates that print one, on every day: that of Llama 3.1's template."""
_SYSTEM, _USER, _REPLY = "ATOMMEM-SYSTEM\n\n<b> & 'x'", "ATOMMEM-USER <b> &", "ATOMMEM-REPLY"


class ChatFormat:
    """How a tokenizer's chat template words messages; without one, they are joined.

    `first_ids` are what the tokenizer puts before a text, where no template was applied. With
    `folds_system` the template refuses or drops a system message, so its text comes first in the
    user's. DialectError: it raises for every form of messages, or drops the user's.
    """

    def __init__(
        self, tokenizer: Tokenizer, join: str, options: Mapping[str, Any], *, chat: bool = True
    ) -> None:
        self._tokenizer, self._join, self._options = tokenizer, join, dict(options)
        template = getattr(tokenizer, "chat_template", "")
        self.has_template = chat and template is not None
        self.folds_system = self._in_parts = False
        self._dated = self.has_template and "strftime_now" in str(template)
        if self._dated:
            today = _day(self._options.pop("today", TODAY))
            # A variable of the template hides transformers' function of that name.
            self._options["strftime_now"] = today.strftime
            self._today = today.date().isoformat()
        self.first_ids = [] if self.has_template else _first_ids(tokenizer)
        if self.has_template:
            self._probe()

    def record(self) -> dict[str, Any]:
        """Return ``chat_format`` of a run's record, as JSON values: what is out of the ordinary."""
        found = {
            "system": "before the user's text" if self.folds_system else None,
            "content": "in parts" if self._in_parts else None,
            "today": self._today if self._dated else None,
            "first_ids": self.first_ids,
        }
        found = {name: value for name, value in found.items() if value}
        return {"chat_format": found} if found else {}

    def messages(self, user: str, system: str = "", reply: str = "") -> list[dict[str, str]]:
        """Return messages as the template takes them; empty ones are left out."""
        if system and self.folds_system:
            user, system = f"{system}\n\n{user}", ""
        said = (("system", system), ("user", user), ("assistant", reply))
        return [{"role": role, "content": text} for role, text in said if text or role == "user"]

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = True,
    ) -> str:
        """Render messages by the chat template, or join them; raises DialectError."""
        if not self.has_template:
            return self._join.join(message["content"] for message in messages)
        options = dict(self._options)
        if tools:
            options["tools"] = [{"type": "function", "function": tool} for tool in tools]
        shown: list[dict[str, Any]] = [dict(message) for message in messages]
        for message in shown if self._in_parts else ():
            message["content"] = [{"type": "text", "text": message["content"]}]
        options |= {"tokenize": False, "add_generation_prompt": generation}
        try:
            return str(self._tokenizer.apply_chat_template(shown, **options))
        except Exception as error:  # a template raises what it likes
            raise DialectError(
                f"the tokenizer's chat template cannot be rendered: {type(error).__name__}: {error}"
            ) from error

    def reply_frame(self) -> tuple[str, int | None]:
        """Return what stands before an assistant's text after the prompt, and the token after it.

        The token is `eos_token_id` where the template shows none.
        """
        end: int | None = getattr(self._tokenizer, "eos_token_id", None)
        if not self.has_template:
            return "", end
        try:
            prompt = self.render(self.messages(_USER))
            turns = self.render(self.messages(_USER, reply=_REPLY), generation=False)
        except DialectError:
            return "", end
        before, _, after = turns.partition(_REPLY)
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        controls = control_tokens(self._tokenizer)
        end = next((token for token in ids if token in controls), end)
        return before[len(prompt) :] if before.startswith(prompt) else "", end

    def _probe(self) -> None:
        errors: list[DialectError] = []
        for self.folds_system in (False, True):
            for self._in_parts in (False, True):
                try:
                    text = self.render(self.messages(_USER, _SYSTEM))
                except DialectError as error:
                    errors.append(error)
                    continue
                if _SYSTEM in text and _USER in text and "'type':" not in text:
                    return
        if len(errors) == 4:
            raise errors[0]
        raise DialectError("the tokenizer's chat template does not show the user message.")


def turn_ends(tokenizer: Any) -> set[int]:
    """Return the tokens that end a reply: EOS, and what the chat template ends a turn with.

    A token that ends a thought is none of these: after gpt-oss's ``<|end|>`` the answer follows.
    """
    ends = {getattr(tokenizer, "eos_token_id", None)}
    with suppress(DialectError):
        _, end = ChatFormat(tokenizer, "", {}).reply_frame()
        if end is not None and not any(marks(tokenizer.decode([end]), inside=True)):
            ends.add(end)
    return {end for end in ends if end is not None}


def _first_ids(tokenizer: Any) -> list[int]:
    plain, whole = (tokenizer.encode("x", add_special_tokens=special) for special in (False, True))
    places = range(len(whole) - len(plain) + 1)
    at = next((at for at in places if whole[at : at + len(plain)] == plain), 0)
    return list(whole[:at])


def _day(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ConfigError(
            f"chat_template_kwargs.today={json.dumps(text)}: not a date. Write 2026-01-31."
        ) from error

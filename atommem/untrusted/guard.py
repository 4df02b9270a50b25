"""The guard of a prompt: data goes in as text, and comes out as nothing but text."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np

from atommem.errors import ConfigError
from atommem.tokens import Tokenizer, encoder
from atommem.untrusted.cleaning import clean
from atommem.untrusted.control import control_tokens, find_tokens, fold_of, watched_ids
from atommem.untrusted.escaping import Escaper, Fold, compatible
from atommem.untrusted.known_forms import find_known_forms
from atommem.untrusted.structure import Structure
from atommem.untrusted.unwritable import WriteOut

Rewrite = Callable[[str, str, str], str]
"""Data, the piece and the placeholder that it stands in -> what stands there."""

# A backslash says to every reader that what follows is meant as written. The others are for a tokenizer that has it in
# one of its control tokens.
ESCAPES = "\\/~^`¦¤¬‖⁞"
_LONGEST = 65_536
"""Characters of a text that may be remembered: 512 of them are 32 MiB."""


class PromptGuard:
    """Rewrites data for the prompts of one tokenizer and one set of templates, and checks the prompts.

    Ordinary text stays as it is, byte for byte. A control token in it is broken by a backslash behind its first
    character (``<\\|im_end|>``), a heading of the templates gets one in front (``\\Memory 2: ...``), and what looks
    rewritten already gets one more: the rewrite is injective (see `atommem.untrusted.escaping`), and so is rendering
    (see `atommem.untrusted.structure`).

    Args:
        tokenizer: Whose control tokens are guarded; None for a server whose tokenizer is not known: then it is the
            forms that control tokens have in all model families (`guard_text`).
        structure: Of the templates; None for prompts without any.
        forms: Further texts that its model takes for control tokens (see `forms_in`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        structure: Structure | None = None,
        forms: Collection[str] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._structure = structure
        self._fold = Fold(compatible) if tokenizer is None else fold_of(tokenizer)
        self._lines = tokenizer is None or structure is None or _keeps_lines(tokenizer)
        tokens = control_tokens(tokenizer)
        watched = () if tokenizer is None else watched_ids(tokenizer, tokens)
        # One more than the highest: it stands for all that are higher.
        self._is_control = np.zeros(max(watched, default=-1) + 2, dtype=bool)
        self._is_control[list(watched)] = True
        self._watches = bool(watched)
        self._encoder = None if tokenizer is None else encoder(tokenizer)
        self._head, self._head_ids = "", list[int]()
        texts = {*tokens.values(), *forms}
        self._tokens = [text for text in tokens.values() if text]
        self.escape = _escape_for(texts, structure.literals if structure else (), self._fold)
        self._find_tokens = (
            find_tokens(texts, self._fold) if tokenizer is not None else [find_known_forms]
        )
        write_out = None if tokenizer is None else WriteOut(tokenizer, watched, texts, self.escape)
        self._write_out = write_out if write_out is not None and write_out.needed else str
        self._escapers: dict[tuple[str, str], Escaper] = {}
        # The episodes of a group read the same chunk, and a memory shows the same entries again and again.
        self._remembered = lru_cache(maxsize=512)(self._data)

    def data(self, text: str, piece: str = "", placeholder: str = "") -> str:
        """`text` as data of a placeholder of a piece (without them: of any)."""
        return (self._remembered if len(text) <= _LONGEST else self._data)(text, piece, placeholder)

    def _data(self, text: str, piece: str, placeholder: str) -> str:
        text = self._write_out(clean(text))
        place = (piece, placeholder)
        if place not in self._escapers:
            finders = list(self._find_tokens)
            if self._structure is not None:
                finders.append(self._structure.finder(*place, self.escape, self._fold, self._lines))
            self._escapers[place] = Escaper(self.escape, self._fold, finders)
        return self._escapers[place](text)

    def controls(self, token_ids: Sequence[int]) -> list[int]:
        """The control tokens among `token_ids`, in order."""
        if not self._watches:
            return []  # such a tokenizer may have ids of any size (`RoughTokenizer`)
        ids = np.frombuffer(
            array("I", token_ids), dtype=np.uint32
        )  # four times as fast as from a list
        found: list[int] = ids[
            self._is_control[np.minimum(ids, len(self._is_control) - 1)]
        ].tolist()
        return found

    def closed(self, message: str) -> str:
        """A message of which nothing is lost where a chat template strips it."""
        return message + self.escape if message.rstrip(self.escape)[-1:].isspace() else message

    def encode(
        self, render: Callable[[Rewrite], str], expected: Sequence[int] | None = None
    ) -> list[int]:
        """The token ids of a prompt, among which no control token comes from data.

        The last word is the token level's: should the control tokens not be those of the prompt without data, it is
        rendered again with every character of the data by itself, and if that does not help either (no tokenizer is
        known for which it would be so) without the data.

        Args:
            render: Renders the prompt with the given rewrite of its data.
            expected: The control tokens of the prompt without data, where they are known.
        """
        token_ids = self._encode(render(self.data))
        if expected is not None and self.controls(token_ids) == list(expected):
            return token_ids
        expected = self.controls(self._encode(render(_nothing)))
        for harder in (self._apart, _nothing):
            if self.controls(token_ids) == expected:
                break
            token_ids = self._encode(render(harder))
        return token_ids

    def learn_head(self, prompts: Sequence[str]) -> None:
        """What all `prompts` begin with, up to the last control token in it, is encoded once, and not with each prompt.

        A tokenizer takes control tokens out of a text before it looks at what is between them: where it does not so
        with these prompts, which should differ in what follows, nothing is done.
        """
        same = next(
            (at for at, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1), 0
        )
        head = prompts[0][: max([0, *(prompts[0].rfind(token, 0, same) for token in self._tokens)])]
        if head:
            head_ids = self._encode(head)
            if all(
                self._encode(prompt) == head_ids + self._encode(prompt[len(head) :])
                for prompt in prompts
            ):
                self._head, self._head_ids = head, head_ids

    def _encode(self, prompt: str) -> list[int]:
        assert self._encoder is not None, "a prompt for a server is not encoded here"
        if self._head and prompt.startswith(self._head):
            return self._head_ids + self._encoder(prompt[len(self._head) :])
        return self._encoder(prompt)

    def _apart(self, text: str, piece: str = "", placeholder: str = "") -> str:
        text = self._write_out(clean(text))
        return self.escape + "".join(character + self.escape for character in text)


def _nothing(text: str, piece: str = "", placeholder: str = "") -> str:
    return ""


def _keeps_lines(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer tells a line break from a blank."""
    line, blank = (tokenizer.encode(f"a{between}b", add_special_tokens=False) for between in "\n ")
    return line != blank


def _escape_for(tokens: Collection[str], literals: Collection[str], fold: Fold) -> str:
    """A character that no control token holds, no heading begins with, and the normaliser leaves alone."""
    folded = [fold(token)[0] for token in tokens]
    for escape in ESCAPES:
        used = any(escape in token for token in (*tokens, *folded)) or any(
            text.startswith(escape) for text in literals
        )
        if not used and fold(escape)[0] == escape:
            return escape
    raise ConfigError(
        f"each of {ESCAPES} stands in a control token or begins a template: word the templates otherwise."
    )

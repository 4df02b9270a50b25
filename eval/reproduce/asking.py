"""A policy of the user's that is asked one question at a time, from code that does not wait in a loop of its own."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from types import TracebackType
from typing import Any, Self

from atommem.eval.journal import Journal
from atommem.policy.contract import Sampling
from atommem.policy.opening import API_HELP, PolicyChoice, open_policy
from atommem.prompts import render_chat


def add_policy_flags(parser: argparse.ArgumentParser, what: str) -> None:
    """Flags that name the model.

    Args:
        parser: Gets them.
        what: What the model does, for the help.
    """
    parser.add_argument("--policy", nargs="+", help=f"A model folder, or a server's URL: {what}.")
    parser.add_argument("--api", default="completions", help=API_HELP)
    parser.add_argument("--model", help="Name of the model on the server.")
    parser.add_argument("--tokenizer", help="Tokenizer folder or hub name (server).")


class Asking:
    """A context manager around the policy that the flags name.

    Args:
        arguments: Of the command.
        journal: Keeps the replies; a message that it has a reply to is not sent again.

    Raises:
        AtomMemError: It cannot be opened, or (when asked) reached.
    """

    def __init__(self, arguments: argparse.Namespace, journal: Journal) -> None:
        self._journal = journal
        choice = PolicyChoice(arguments.policy, arguments.api, arguments.model, arguments.tokenizer)
        self._policy: Any = open_policy(choice)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run_until_complete(self._policy.close())
        self._loop.close()

    def ask(self, text: str, max_tokens: int) -> str:
        """The greedy reply to one message."""
        name = "reply " + hashlib.sha256(f"{max_tokens} {text}".encode("utf-8", "surrogatepass")).hexdigest()
        if (known := self._journal.get(name)) is not None:
            return str(known)
        messages = [{"role": "user", "content": text}]
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        if hasattr(self._policy, "complete_chat"):
            asked = self._policy.complete_chat(messages, sampling)
        else:
            rendered = render_chat(self._policy.tokenizer, messages, {})
            asked = self._policy.complete(self._policy.tokenizer.encode(rendered, add_special_tokens=False), sampling)
        return str(self._journal.add(name, self._loop.run_until_complete(asked).text))

"""A policy of the user's that is asked one question at a time, from code that does not wait in a loop of its own."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from atommem.config import PolicyConfig
from atommem.eval.journal import Journal
from atommem.policy.contract import Sampling
from atommem.policy.opening import open_policy
from atommem.prompts import render_chat

Ask = Callable[[str, int], str]
"""The greedy reply to one message, of so many tokens at most."""


def add_policy_flags(parser: argparse.ArgumentParser, what: str) -> None:
    """Flags that name the model.

    Args:
        parser: Gets them.
        what: What the model does, for the help.
    """
    parser.add_argument("--policy", nargs="+", help=f"A model folder, or a server's URL: {what}.")
    parser.add_argument("--api", default="completions", help="completions or chat")
    parser.add_argument("--model", help="Name of the model on the server.")
    parser.add_argument("--tokenizer", help="Tokenizer folder or hub name (server).")


@contextmanager
def asking(arguments: argparse.Namespace, journal: Journal) -> Iterator[Ask]:
    """The policy that the flags name.

    Args:
        arguments: Of the command.
        journal: Keeps the replies; a message that it has a reply to is not sent again.

    Raises:
        AtomMemError: It cannot be opened, or (when asked) reached.
    """
    policy: Any = open_policy(
        PolicyConfig(arguments.policy, arguments.api, arguments.model, arguments.tokenizer)
    )

    async def reply(text: str, max_tokens: int) -> str:
        messages = [{"role": "user", "content": text}]
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        if hasattr(policy, "complete_chat"):
            return str((await policy.complete_chat(messages, sampling)).text)
        prompt_ids = policy.tokenizer.encode(
            render_chat(policy.tokenizer, messages, {}), add_special_tokens=False
        )
        return str((await policy.complete(prompt_ids, sampling)).text)

    def ask(text: str, max_tokens: int) -> str:
        name = (
            "reply "
            + hashlib.sha256(f"{max_tokens} {text}".encode("utf-8", "surrogatepass")).hexdigest()
        )
        return str(journal.once(name, lambda: runner.run(reply(text, max_tokens))))

    with asyncio.Runner() as runner:
        try:
            yield ask
        finally:
            runner.run(policy.close())

"""A policy that an experiment asks by messages: its flags, and replies that are stored."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import Any

from atommem.chat_format import ChatFormat
from atommem.config import PolicyConfig, check_least
from atommem.policy.contract import MessagePolicy, Sampling
from atommem.policy.opening import open_policy, policy_identity
from atommem.text_safety import guard_text
from atommem.thinking import after_thoughts
from papers.experiment import Journal

SECONDS = "seconds asked"


class Asker:
    """Asks a policy by messages; seeds depend on the task, so that they agree across arms."""

    def __init__(self, policy: Any, sampling: Sampling) -> None:
        self._policy, self._sampling = policy, sampling
        self._format: ChatFormat | None = None
        if not isinstance(policy, MessagePolicy):
            self._format = ChatFormat(policy.tokenizer, "\n\n", {})

    async def ask(self, system: str, user: str, key: str) -> str:
        """Return the reply without its thoughts; texts of records cannot be control tokens."""
        sampling = self._sampling.for_request(key, 0)
        user = guard_text(user)
        if self._format is None:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            completion = await self._policy.complete_chat(messages[0 if system else 1 :], sampling)
        else:
            text = self._format.render(self._format.messages(user, system))
            encode = self._policy.tokenizer.encode
            ids = [*self._format.first_ids, *encode(text, add_special_tokens=False)]
            completion = await self._policy.complete(ids, sampling)
        return after_thoughts(completion.text).strip()


def add_policy_flags(parser: argparse.ArgumentParser, unset: str, longest: int) -> None:
    """Add ``--policy`` and its settings; `unset` says what runs without one."""
    add = parser.add_argument
    add("--policy", help=f"Model folder, or URL of a server; unset: {unset}.")
    add("--api", default="completions", help="Of a server: completions or chat (%(default)s).")
    add("--model", help="Name of the model on the server.")
    add("--tokenizer", help="Tokenizer of the server's model, for --api completions.")
    reply = "Longest reply (%(default)s)."
    add("--max_completion_length", type=int, default=longest, help=reply)


@asynccontextmanager
async def open_asker(arguments: argparse.Namespace) -> AsyncIterator[tuple[Asker, str]]:
    """Open the policy of the flags, greedy; yields it with a text that identifies it."""
    check_least(arguments, max_completion_length=1)
    server = {name: getattr(arguments, name) for name in ("api", "model", "tokenizer")}
    config = PolicyConfig([arguments.policy], **server)
    policy = open_policy(config)
    try:
        identity = str(await policy_identity(config, policy))
        longest = arguments.max_completion_length
        yield Asker(policy, Sampling(0.0, max_completion_length=longest, seed=0)), identity
    finally:
        await policy.close()


@contextmanager
def opened_in(runner: asyncio.Runner, arguments: argparse.Namespace) -> Iterator[tuple[Asker, str]]:
    """Open the policy of the flags for coroutines that the runner runs one after the other."""
    opened = open_asker(arguments)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


def ask_all(
    arguments: argparse.Namespace, prompts: Mapping[str, str], journal: Journal
) -> dict[str, str]:
    """Return the policy's reply to each prompt, by the prompt's name.

    The journal's ``seconds asked`` are those of all calls, without loading a model.
    """

    async def ask() -> None:
        async with open_asker(arguments) as (asker, _):

            async def one(name: str) -> None:
                journal.add(f"reply to {name}", await asker.ask("", prompts[name], name))

            start = perf_counter()
            await asyncio.gather(*(one(name) for name in missing))
            journal.add(SECONDS, journal.get(SECONDS, 0.0) + perf_counter() - start)

    if missing := [name for name in prompts if f"reply to {name}" not in journal]:
        asyncio.run(ask())
    return {name: journal[f"reply to {name}"] for name in prompts}

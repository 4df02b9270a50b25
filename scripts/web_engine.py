"""For the benches of the web's tools: an engine on loopback that may fail in every way, and episodes that ask it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from agents import make_agent
from simulated_server import Answer, serve_in_thread

from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.task import Question, Task
from atommem.policy.scripted import ScriptedPolicy
from atommem.session import Agent

WORDS = [f"word{number}" for number in range(400)]


def page_text(name: str, words: int = 60) -> str:
    """What the engine's page of this name says: the same in every run."""
    draw = random.Random(name)
    return f"Here is {name}. " + " ".join(draw.choices(WORDS, k=words)) + "."


class Engine:
    """``/retrieve``, ``/access`` and pages on 127.0.0.1, with a count of what it was asked.

    Args:
        fault: What happens to a request, by what it asks for and how often that was asked before: an HTTP status,
            ``break``, ``nonsense``, ``silent``, or nothing.
        words: Length of its pages.
        seconds: How long an answer takes.
    """

    def __init__(
        self,
        fault: Callable[[str, int], str] = lambda what, before: "",
        words: int = 60,
        seconds: float = 0.0,
    ) -> None:
        self.asked: Counter[str] = Counter()

        async def handle(path: str, body: bytes) -> Answer:
            if path == "/health":
                return 200, {"version": "1"}
            if not body:
                return await page(path.strip("/"))
            asks = json.loads(body)
            (what,) = asks.get("queries") or asks["urls"]
            happens = fault(what, self.asked[what])
            self.asked[what] += 1
            await asyncio.sleep(seconds)
            if happens.isdecimal():
                return int(happens), {"message": "not now"}
            if happens == "break":
                raise ConnectionError
            if happens == "nonsense":
                return 200, {"nonsense": True}
            if happens == "silent":
                await asyncio.Event().wait()
            if path == "/retrieve":
                names = [f"page {(number + len(what)) % 97}" for number in range(3)]
                found = [
                    {"document": {"title": name, "text": page_text(name, 9), "url": name}}
                    for name in names
                ]
                return 200, {"result": [found]}
            read = {"url": what, "title": what, "text": page_text(what, words)}
            return 200, {"result": [None if "missing" in what else read]}

        async def page(name: str) -> Answer:
            self.asked[name] += 1
            await asyncio.sleep(seconds)
            links = "".join(
                f'<a href="/{name}-{number}">{name} {number}</a> ' for number in range(9)
            )
            text = page_text(name, words)
            return (
                200,
                f"<html><title>{name}</title><article><p>{text}</p><p>{links}</p></article></html>",
            )

        self.url, self.close = serve_in_thread(handle)


class Characters:
    """A tokenizer of characters: it keeps nothing, so that all processes agree."""

    eos_token_id = 0
    pad_token_id = 0
    chat_template = None

    def __call__(
        self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool
    ) -> dict[str, Any]:
        """Ids, and the span of each."""
        return {
            "input_ids": self.encode(text),
            "offset_mapping": [(at, at + 1) for at in range(len(text))],
        }

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Text to ids."""
        return [1 + ord(character) for character in text]

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        """Ids to text."""
        return "".join(chr(token - 1) for token in token_ids if token)

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> str:
        """Roles in brackets."""
        return (
            "".join(f"[{turn['role']}] {turn['content']}\n" for turn in conversation)
            + "[assistant]"
        )


def browser(tokenizer: Any, call: Callable[[int, int], tuple[str, str] | str]) -> ScriptedPolicy:
    """A policy that makes the calls that its question's number says, one a step, notes, and answers at the end.

    `call` is number `step` of episode `episode`: the tool and what it is given; or how the call is written.
    """

    def answer(prompt: str) -> str:
        # Of the observation, its question and the calls that are left are enough.
        left = re.search(r"calls left: (\d+)", prompt)
        asked = re.findall(r"episode (\d+) of (\d+) calls", prompt)[-1]
        if left is None or left[1] == "0":
            return "<final_answer>\\boxed{done}</final_answer>"
        made = call(int(asked[0]), int(asked[1]) - int(left[1]))
        if isinstance(made, str):
            return made
        tool, given = made
        argument = {"search": "query", "visit": "page"}.get(tool, "what")
        note = f"<create_memory>{given} at {left[1]}</create_memory>"
        written = json.dumps({"name": tool, "arguments": {argument: given}})
        return f"{note}<read_memory>{given}</read_memory><tool_call>{written}</tool_call>"

    return ScriptedPolicy(tokenizer, answer)


def asking(url: str, call: Callable[[int, int], tuple[str, str] | str], **settings: Any) -> Agent:
    """An agent of the web that makes these calls (see `browser`) of the engine at `url`."""
    tokenizer = Characters()
    asks = {
        "environment": "web",
        "tools": ["retrieve", "access"],
        "search_url": url,
        "max_tokens": 2048,
    }
    return make_agent(
        browser(tokenizer, call), HashingEmbedder(64), tokenizer, stored=asks, **settings
    )


def make_tasks(count: int, calls: int) -> list[Task]:
    """Tasks whose questions say which episode this is."""
    return [
        Task(
            f"task-{number}", (Question(f"This is episode {number} of {calls} calls.", ("done",)),)
        )
        for number in range(count)
    ]


@contextmanager
def engine_elsewhere(words: int, seconds: float) -> Iterator[str]:
    """The URL of an engine with pages of so many words, in a process of its own until the block ends."""
    context = get_context("spawn")
    urls = context.Queue()
    process = context.Process(target=_be_engine, args=(urls, words, seconds), daemon=True)
    process.start()
    try:
        yield urls.get(timeout=600)
    finally:
        process.kill()
        process.join()


def _be_engine(urls: Any, words: int, seconds: float) -> None:
    urls.put(Engine(words=words, seconds=seconds).url)
    threading.Event().wait()

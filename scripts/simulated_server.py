"""A stand-in for a vLLM server of known speed: for measuring everything around the model.

    python scripts/simulated_server.py --tokenizer DIR [--port N] [--latency SECONDS] [--concurrency N] [--log FILE]
        [--prepared]

Speaks what `ServerPolicy` and `ServerPool` need of the OpenAI API. Of the requests at most `concurrency` are worked on
at a time, each for `latency` seconds; the others wait, first come, first served. The completion depends on the prompt
alone: it takes a note from every part of a text, and answers with a name from its notes. With ``--log``, every request
is on record as soon as it has arrived: its seed, one a line. With ``--prepared`` it does not read its prompts, which
takes most of its own time: every completion says the same with another number, in notes and in its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from quick import command_line, flags
from tokenizers import Tokenizer

from atommem.servers.vllm_process import free_port

MODEL = "simulated"
CONTEXT_LENGTH = 32_768
_PART = re.compile(r"Part \d+ of \d+ of the text:\n(.*?)\n\nYour scratchpad:", re.DOTALL)
_QUESTION = re.compile(r"Question:\n(.*)")
_ENTRY = re.compile(r"^Memory \d+: (.*)", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][a-z]{3,}\b")


def completion_of(prompt: str) -> str:
    """What the simulated policy writes after a prompt in the templates ``full``."""
    draw = hashlib.blake2b(prompt.encode(), digest_size=4).digest()
    part = _PART.search(prompt)
    question = _QUESTION.search(prompt)
    asked = question.group(1) if question else ""
    if part is None:
        names = _NAME.findall(" ".join(_ENTRY.findall(prompt))) or ["nobody"]
        return f"The entries say so. <final_answer>\\boxed{{{names[draw[0] % len(names)]}}}</final_answer>"
    sentences = [line for line in re.split(r"(?<=[.])\s+", part.group(1)) if line]
    chosen = [sentences[byte % len(sentences)] for byte in draw]
    actions = [
        f"<create_memory>{chosen[0]} {chosen[1]}</create_memory>",
        f"<update_scratchpad>Asked: {asked} Last seen: {chosen[2]}</update_scratchpad>",
        f"<read_memory>{asked}</read_memory>",
    ]
    if "Memory 1:" in prompt and draw[3] % 4 == 0:
        actions.append(f"<update_memory>Memory 1: {chosen[3]} {chosen[0]}</update_memory>")
    return "I keep what may matter later.\n" + "\n".join(actions)


class Simulation:
    """The model behind the server: token ids in, the body of an answer out, after a while.

    Args:
        tokenizer: Of the prompts.
        latency: Seconds that a completion takes.
        concurrency: Completions that are worked on at the same time.
    """

    def __init__(self, tokenizer: Tokenizer, latency: float, concurrency: int) -> None:
        self._tokenizer = tokenizer
        self._latency = latency
        self._slots = asyncio.Semaphore(concurrency)

    async def complete(self, prompt_ids: list[int]) -> list[int]:
        """The token ids of the completion, once it is its turn and its time has passed."""
        async with self._slots:
            ends = time.perf_counter() + self._latency
            text = completion_of(self._tokenizer.decode(prompt_ids, skip_special_tokens=False))
            token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            # However long the work above takes, the latency is what was asked for.
            await asyncio.sleep(max(0.0, ends - time.perf_counter()))
        return token_ids


PREPARED = (
    "I keep what may matter later.\n<create_memory>Case 000000: the warden of the north gate carries the seal, and "
    "whoever needs it asks her first.</create_memory>\n<update_scratchpad>Case 000000 is the one last seen; the others "
    "come in the order in which the parts of the text tell of them.</update_scratchpad>\n<read_memory>Case 000000 and "
    "who carries the seal</read_memory>\n<final_answer>\\boxed{Case 000000}</final_answer>"
)


class PreparedSimulation(Simulation):
    """As `Simulation`, with a completion that is made once, and differs in its number alone (`PREPARED`).

    Raises:
        ValueError: The tokenizer has no token of its own for every digit.
    """

    def __init__(self, tokenizer: Tokenizer, latency: float, concurrency: int) -> None:
        super().__init__(tokenizer, latency, concurrency)
        self._ids: list[int] = tokenizer.encode(PREPARED, add_special_tokens=False).ids
        self._digits = [
            tokenizer.encode(f"x{digit}", add_special_tokens=False).ids[-1] for digit in range(10)
        ]
        self._places = [place for place, token in enumerate(self._ids) if token == self._digits[0]]
        self._number = 0
        if len(self._places) != PREPARED.count("0"):
            raise ValueError(
                "this tokenizer joins digits: --prepared needs one with a token for each."
            )

    async def complete(self, prompt_ids: list[int]) -> list[int]:
        """The next completion, after its time has passed."""
        async with self._slots:
            self._number += 1
            token_ids, digits = self._ids.copy(), f"{self._number:06d}"
            for i, place in enumerate(self._places):
                token_ids[place] = self._digits[int(digits[i % 6])]
            await asyncio.sleep(self._latency)
        return token_ids


Answer = tuple[int, dict[str, Any] | str]
"""Status, and JSON or the text of a page."""


def handler(
    simulation: Simulation, log: IO[str] | None
) -> Callable[[str, bytes], Awaitable[Answer]]:
    """What answers a request, given its path and body."""

    async def handle(path: str, body: bytes) -> Answer:
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            return 200, {"data": [{"id": MODEL, "max_model_len": CONTEXT_LENGTH}]}
        if path != "/v1/completions":
            return 404, {"error": {"message": f"no such path: {path}"}}
        request = json.loads(body)
        if log is not None:
            log.write(f"{request.get('seed')}\n")
            log.flush()
        token_ids = await simulation.complete(request["prompt"])
        choice = {
            "token_ids": token_ids,
            "logprobs": {"token_logprobs": [-0.25] * len(token_ids)},
            "finish_reason": "stop",
        }
        usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": len(token_ids)}
        return 200, {"choices": [choice], "usage": usage}

    return handle


def embeddings(rows: np.ndarray) -> dict[str, Any]:
    """The body of an answer to ``/v1/embeddings``."""
    return {"data": [{"index": index, "embedding": row} for index, row in enumerate(rows.tolist())]}


async def serve(handle: Callable[[str, bytes], Awaitable[Answer]], port: int) -> asyncio.Server:
    """Listen on `port` of this machine, 0 for any. HTTP/1.1 with connections that are kept."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"^content-length:\s*(\d+)", head, re.IGNORECASE | re.MULTILINE)
                body = await reader.readexactly(int(length.group(1))) if length else b""
                status, answer = await handle(head.split(" ", 2)[1], body)
                kind = "text/html" if isinstance(answer, str) else "application/json"
                content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
                writer.write(head.encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    return await asyncio.start_server(connection, "127.0.0.1", port, limit=2**20, backlog=4096)


def serve_in_thread(
    handle: Callable[[str, bytes], Awaitable[Answer]],
) -> tuple[str, Callable[[], None]]:
    """`serve` beside what this process does: the URL, and what ends it. From then on its address is nobody's."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = asyncio.run_coroutine_threadsafe(serve(handle, 0), loop).result()

    async def close() -> None:
        server.close()

    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    return url, lambda: asyncio.run_coroutine_threadsafe(close(), loop).result()


class SimulatedServer:
    """Runs this file as a process of its own. A context manager; `start` and `kill` may alternate, its URL stays.

    Attributes:
        url: Where it listens.
        log: The file that its requests are written to.
    """

    def __init__(
        self,
        tokenizer: Path,
        latency: float,
        concurrency: int = 256,
        log: Path | None = None,
        prepared: bool = False,
    ) -> None:
        self.log = log
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "tokenizer": tokenizer,
            "port": port,
            "latency": latency,
            "concurrency": concurrency,
        }
        settings |= {} if log is None else {"log": log}
        self._command = [sys.executable, __file__, *flags(settings), *["--prepared"] * prepared]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != self.url:
            raise RuntimeError(f"the simulated server did not start: {' '.join(self._command)}")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> SimulatedServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


async def run(options: argparse.Namespace) -> None:
    """Serve until the process is ended; the first line on standard output is the URL."""
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    log = None if options.log is None else options.log.open("a", encoding="utf-8")
    simulation = (PreparedSimulation if options.prepared else Simulation)(
        tokenizer, options.latency, options.concurrency
    )
    server = await serve(handler(simulation, log), options.port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="model folder with a tokenizer.json"
    )
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument(
        "--latency", type=float, default=1.0, help="seconds that a completion takes"
    )
    parser.add_argument(
        "--concurrency", type=int, default=256, help="completions worked on at the same time"
    )
    parser.add_argument("--log", type=Path, help="file to append the seed of every request to")
    parser.add_argument(
        "--prepared",
        action="store_true",
        help="do not read prompts: completions differ in a number",
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""What does `atommem serve` add to its engine, and are answers ever mixed up?

    python scripts/bench_serve.py [--asks 2000] [--conversations 64] [--latency 1.0]

`atommem serve` runs on SQLite over a chat server of a fixed latency (a double, in a process of its
own). 64 clients ask at once for secrets that their conversations were given. Printed are answers
with another's secret, the time of a request beyond its completions' latency, requests a second, and
the server's processor time of a request and memory. All processes share the cores, and what they
wait for each other is in the figures. tests/serve/test_durability.py shows what a kill loses.

The bar: no answer mixed up, and p95 at most 25 ms beyond the engine.
"""

import asyncio
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from common import ATOMMEM, last_line, percentiles, read_options, started

from atommem.servers.vllm_process import free_port

CLIENTS, BAR_MS = 64, 25.0
CHUNK = re.compile(r"of the text:\n(.*?)\n\nYour scratchpad", re.DOTALL)
QUESTION = re.compile(r"Question:\n(.*)")
QUERY = re.compile(r"Your current query:\n(.*)")
ENTRY = re.compile(r"^Memory \d+: (.*)", re.MULTILINE)


def reply_to(prompt: str) -> str:
    """Keep every chunk, look for the question, answer with the best entry."""
    chunk, question, query = CHUNK.search(prompt), QUESTION.search(prompt), QUERY.search(prompt)
    asked = question[1] if question else ""
    if chunk is not None:
        return f"<create_memory>{chunk[1]}</create_memory>"
    if query is None or query[1] != asked:
        return f"<read_memory>{asked}</read_memory>"
    return f"<final_answer>\\boxed{{{(ENTRY.findall(prompt) or ['nothing'])[0]}}}</final_answer>"


def run_engine(port: int, latency: float) -> None:
    """Serve chat completions that take `latency` seconds, until the process ends."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "double"}]})

    async def complete(request: Request) -> JSONResponse:
        messages = (await request.json())["messages"]
        await asyncio.sleep(latency)
        text = reply_to("\n".join(message["content"] for message in messages))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse({"choices": choices, "usage": usage})

    chat = Route("/v1/chat/completions", complete, methods=["POST"])
    app = Starlette(routes=[Route("/v1/models", models), chat])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


async def give_secrets(url: str, count: int, seed: int) -> dict[str, str]:
    rng, numbers = random.Random(seed), iter(range(count))
    secrets: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:

        async def client() -> None:
            for _ in numbers:
                secret = f"the secret is {rng.randrange(10**12)}"
                items = {"items": [{"role": "user", "content": secret}]}
                made = (await http.post("/v1/conversations", json=items)).raise_for_status()
                secrets[made.json()["id"]] = secret

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return secrets


async def ask(url: str, secrets: dict[str, str], asks: int, latency: float) -> dict[str, Any]:
    numbers = iter(range(asks))
    names, beyond, mixed = list(secrets), [], 0
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def client(number: int) -> None:
            nonlocal mixed
            await asyncio.sleep(number / CLIENTS * latency)  # requests of many users arrive evenly
            for index in numbers:
                name = names[index % len(names)]
                body = {"conversation": name, "input": "What is the secret?"}
                started = time.perf_counter()
                answer = (await http.post("/v1/responses", json=body)).raise_for_status().json()
                seconds = time.perf_counter() - started
                beyond.append(seconds - latency * len(answer["output"][0]["summary"]))
                mixed += answer["output"][1]["content"][0]["text"] != secrets[name]

        started = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        seconds = time.perf_counter() - started
    found = {"asks": asks, "mixed_up": mixed, **percentiles(beyond, 50, 95, 99)}
    return found | {"asks_a_second": round(asks / seconds, 1)}


def main() -> int:
    if sys.argv[1:2] == ["engine"]:
        run_engine(int(sys.argv[2]), float(sys.argv[3]))
        return 0
    sizes = {"asks": (2000, 64), "conversations": (CLIENTS, 4)}
    options = read_options(__doc__, **sizes, latency=(1.0, 0.05))
    ports = free_port(), free_port()
    engine_url, url = (f"http://127.0.0.1:{port}" for port in ports)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log.txt"
        script = str(Path(__file__).resolve())
        engine = [sys.executable, script, "engine", str(ports[0]), str(options.latency)]
        words = f"""serve --policy {engine_url} --api chat --port {ports[1]} --embedder hashing
            --db sqlite:///{name}/log.db --max_reads 2 --active 256 --max_requests 4096"""
        serve = [*ATOMMEM, *words.split()]
        with (
            started(engine, f"{engine_url}/v1/models", log),
            started(serve, f"{url}/ready", log) as process,
        ):
            secrets = asyncio.run(give_secrets(url, options.conversations, 0))
            server = psutil.Process(process.pid)
            before, files = sum(server.cpu_times()[:2]), server.num_fds()
            resident = server.memory_info().rss
            result = asyncio.run(ask(url, secrets, options.asks, options.latency))
            taken = sum(server.cpu_times()[:2]) - before
            result["processor_ms_an_ask"] = round(1000 * taken / options.asks, 2)
            result["resident_mb"] = round(server.memory_info().rss / 1e6)
            result["resident_mb_added"] = round((server.memory_info().rss - resident) / 1e6)
            result["descriptors_added"] = server.num_fds() - files
    fast = options.quick or result["p95_ms"] <= BAR_MS
    result["holds"] = result["mixed_up"] == 0 and fast
    return last_line({"bench": "serve", "latency_s": options.latency, **result})


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    raise SystemExit(main())

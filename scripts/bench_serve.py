"""What the gateway adds to its engine: 64 conversations at once, each with a secret that only it may tell.

    python scripts/bench_serve.py [--asks 2000] [--latency 1.0] [--disk 10000] [--quick]

Conversations are given their secrets, then asked for them by 64 clients at once, against a policy of fixed latency.
Told are wrong answers (another's secret), p50, p95 and p99 of a request's time beyond its completions', throughput and
the resident memory of the gateway. Then the same beside 10,000 conversations on disk with at most 500 held open, the
asks spread over 600 of them by turns, so that each is taken up anew. The policy is a script inside of the gateway's
process: encoding prompts and HTTP to an engine are not in it. The clients are a process of their own on the same cores,
and what they wait for themselves is in the figures; how much processor an ask takes of either is told, too. Pauses of
the clients' garbage collector are not in it: it has no objects of theirs to look through. ``fsync_ms`` (p50, p95) is
what the disk itself took for 4 kB just before: an answer waits for one such.

The last line is JSON; exit status 1 where the bar is missed (0 mixed up, p95 at most 25 ms beyond the engine).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from quick import add_quick, command_line, last_line
from serve_gateways import Gateway

from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import open_database

CLIENTS = 64
BAR_MS = 25.0


async def asked(url: str, secrets: dict[str, str], asks: int, latency: float) -> dict[str, Any]:
    """Ask `asks` times, `CLIENTS` at once; what came of it."""
    waiting = iter(range(asks))
    names, beyond, mixed = list(secrets), [], 0
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def client(number: int) -> None:
            nonlocal mixed
            await asyncio.sleep(
                number / CLIENTS * latency
            )  # requests arrive evenly, as those of many users do
            for ask in waiting:
                name = names[ask % len(names)]
                started = time.perf_counter()
                body = {"conversation": name, "input": "What is the secret?"}
                answer = (await http.post("/v1/responses", json=body)).raise_for_status().json()
                seconds = time.perf_counter() - started
                beyond.append(seconds - latency * len(answer["output"][0]["summary"]))
                mixed += answer["output"][1]["content"][0]["text"] != secrets[name]

        started = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        seconds = time.perf_counter() - started
    p50, p95, p99 = (float(value) * 1000 for value in np.percentile(beyond, (50, 95, 99)))
    told = {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "p99_ms": round(p99, 1)}
    return {"asks": asks, "mixed_up": mixed, **told, "asks_a_second": round(asks / seconds, 1)}


async def given(url: str, count: int, rng: random.Random) -> dict[str, str]:
    """So many conversations, each with its secret."""
    secrets = {}
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        for _ in range(count):
            secret = f"the secret is {rng.randrange(10**12)}"
            made = await http.post("/v1/conversations", json={"items": [{"content": secret}]})
            secrets[made.raise_for_status().json()["id"]] = secret
    return secrets


def fill(url: str, count: int, like: str) -> None:
    """Conversations on disk, each with the log of one that the gateway wrote."""
    log = ConversationLog(open_database(url))
    for _ in range(count):
        log.fork(like, "local", None)
    log.engine.dispose()


def measured(url: str, asks: int, conversations: int, latency: float, seed: int) -> dict[str, Any]:
    """A fresh gateway asked by 64 clients at once."""
    gateway = Gateway(url, latency=latency, max_requests=4096, max_open=500)
    quick = Gateway(url)
    try:
        quick.start()
        secrets = asyncio.run(given(quick.url, conversations, random.Random(seed)))
        quick.kill()
        gateway.start()
        disk = fsync_ms(Path(url.removeprefix("sqlite:///")).parent)
        before = _processor(gateway.pid), time.process_time()
        found = asyncio.run(asked(gateway.url, secrets, asks, latency))
        taken = _processor(gateway.pid) - before[0], time.process_time() - before[1]
        found["processor_ms_an_ask"] = {
            name: round(1000 * seconds / asks, 2)
            for name, seconds in zip(("gateway", "clients"), taken, strict=True)
        }
        text = httpx.get(f"{gateway.url}/metrics").text
        found["fsync_ms"] = disk
        found["resident_mb"] = round(psutil.Process(gateway.pid).memory_info().rss / 1e6)
        found["open"] = int(float(_metric(text, "atommem_open_conversations")))
        commit = (f'atommem_stage_seconds_{end}{{stage="commit"}}' for end in ("count", "sum"))
        count, total = (float(_metric(text, name)) for name in commit)
        found["commit_ms"] = round(1000 * total / count, 2)
    finally:
        quick.kill()
        gateway.kill()
    return found


def fsync_ms(folder: Path) -> list[float]:
    """p50 and p95 of writing 4 kB to a file that is there, to the disk."""
    seconds = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(200):
            file.seek(0)
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return [round(1000 * float(value), 2) for value in np.percentile(seconds, (50, 95))]


def _processor(pid: int) -> float:
    """Seconds of processor that a process has taken."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _metric(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = command_line(__doc__)
    parser.add_argument("--asks", type=int, default=2000)
    parser.add_argument(
        "--latency", type=float, default=1.0, help="seconds that a completion takes"
    )
    parser.add_argument(
        "--disk", type=int, default=10_000, help="conversations on disk in the second part"
    )
    add_quick(parser, asks=128, disk=50, latency=0.2)
    options = parser.parse_args(argv)
    gc.freeze()
    asks, disk, latency = options.asks, options.disk, options.latency
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'log.db'}"
        result: dict[str, Any] = {
            "latency_s": latency,
            "fresh": measured(url, asks, CLIENTS, latency, 0),
        }
        print(json.dumps(result), flush=True)
        log = ConversationLog(open_database(url))
        like = log.create("local", {}).id
        log.engine.dispose()
        gateway = Gateway(url)
        gateway.start()
        body = {"items": [{"content": f"case {number} is closed"} for number in range(20)]}
        httpx.post(
            f"{gateway.url}/v1/conversations/{like}/items", json=body, timeout=60
        ).raise_for_status()
        gateway.kill()
        fill(url, disk, like)
        result["full"] = {
            "on_disk": disk,
            **measured(url, asks, 30 if options.quick else 600, latency, 1),
        }
        result["full"]["disk_mb"] = round(
            sum(path.stat().st_size for path in Path(name).iterdir()) / 1e6
        )
    parts = (result["fresh"], result["full"])
    holds = all(part["mixed_up"] == 0 and part["p95_ms"] <= BAR_MS for part in parts)
    return last_line({**result, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

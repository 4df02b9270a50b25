"""The engine killed and started again under a gateway: 503 with Retry-After, conversations intact, no restart.

    python scripts/bench_serve_outage.py [--kills 5] [--quick]

A gateway asks SmolLM2-135M behind vLLM (its CPU build) by token ids. The engine is killed while an answer is on its
way; what is asked then is 503 with Retry-After until it is back. Told are whether the conversation is what it was
(entries, log, listed items), and whether the same gateway answers afterwards. ``--quick`` has a simulated engine in
vLLM's place: its HTTP is vLLM's, its answers are not.

The last line is JSON; exit status 1 where the bar is missed.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import models
from quick import add_quick, command_line, flags, last_line
from serve_gateways import serving
from simulated_server import SimulatedServer
from vllm_process import VllmServer


def outage(http: httpx.Client, engine: Any, conversation: str) -> list[str]:
    """One kill and one start; what was wrong."""
    wrong: list[str] = []
    path = f"/v1/conversations/{conversation}"
    before = http.get(f"{path}/memory").json()
    held = [
        item["id"]
        for item in http.get(f"{path}/items", params={"order": "asc", "limit": 100}).json()["data"]
    ]
    body = {"conversation": conversation, "input": "Where does Ann live?"}
    threading.Timer(0.15, engine.kill).start()
    for number in range(2):
        answer = http.post("/v1/responses", json=body)
        if number == 0 and answer.status_code == 200:
            continue  # it was answered before the engine was gone
        if answer.status_code != 503 or "retry-after" not in answer.headers:
            wrong.append(f"without its engine: {answer.status_code}")
    log = http.get(f"{path}/operations", params={"limit": 1000}).json()["data"]
    after = http.get(f"{path}/memory", params={"at": before["operations"]}).json()
    if after["entries"] != before["entries"] or [line["seq"] for line in log] != list(
        range(len(log))
    ):
        wrong.append("the conversation is not what it was")
    listed = [
        item["id"]
        for item in http.get(f"{path}/items", params={"order": "asc", "limit": 100}).json()["data"]
    ]
    if listed[: len(held)] != held:
        wrong.append("items are gone")
    engine.start()
    answer = http.post("/v1/responses", json=body)
    if answer.status_code != 200:
        wrong.append(f"with its engine back: {answer.status_code}")
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=5)
    add_quick(parser, kills=1)
    options = parser.parse_args(argv)
    model = models.smollm2()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        engine: Any = (
            SimulatedServer(model, 0.3)
            if options.quick
            else VllmServer(model, Path(name) / "vllm.log")
        )
        settings = {
            "policy": engine.url,
            "tokenizer": model,
            "embedder": "hashing",
            "turn_seconds": 30,
        }
        settings |= {"max_reads": 1, "max_tokens": 64, "chunk_tokens": 500}
        try:
            engine.start()
            with (
                serving(flags(settings), Path(name)) as url,
                httpx.Client(base_url=url, timeout=300) as http,
            ):
                items = {"items": [{"content": "Ann Kerr lives in Rome. Bob Tarn lives in Oslo."}]}
                conversation = (
                    http.post("/v1/conversations", json=items).raise_for_status().json()["id"]
                )
                for _ in range(options.kills):
                    wrong += outage(http, engine, conversation)
        finally:
            engine.kill()
    kind = "simulated" if options.quick else "vllm"
    return last_line({"engine": kind, "kills": options.kills, "wrong": wrong, "holds": not wrong})


if __name__ == "__main__":
    raise SystemExit(main())

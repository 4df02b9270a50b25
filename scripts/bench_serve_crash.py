"""What is acknowledged is there: a gateway killed under load, and two gateways on one PostgreSQL.

    python scripts/bench_serve_crash.py [--kills 50] [--writes 1000] [--quick]

kill -9 of the gateway at random moments while eight clients give texts and ask (streamed and not), one SQLite file
throughout. In the end every text of a 2xx and every step that was streamed is in the log, no step is there by half,
and asks without an answer say so. Then two gateways on one PostgreSQL (Debian's, started here; skipped with the reason
where it is not installed): writes to 20 conversations by turns, one gateway killed half-way; what it did not answer
goes to the other with the same Idempotency-Key, and is there once. The policy is a script in the gateway's process: no
engine is killed here. kill -9 is no power loss: what that takes is up to the disk.

The last line is JSON; exit status 1 where the bar is missed.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from quick import add_quick, command_line, last_line
from serve_gateways import Gateway, postgres, postgres_programs

from atommem.memory.log import replay
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import open_database
from atommem.servers.vllm_admin import parse_metrics

CLIENTS = 8


class Clients:
    """Clients that write and ask until they are told to end, and remember what was acknowledged."""

    def __init__(self, url: str, conversations: list[str], seed: int) -> None:
        self._url, self._names, self._seed = url, conversations, seed
        self.texts: list[tuple[str, str]] = []
        self.steps: list[tuple[str, int]] = []
        self.answers: list[tuple[str, str]] = []
        self._end = threading.Event()

    def run(self, seconds: float, kill: Any) -> None:
        """Load for so long, then `kill`, then wait for all."""
        with ThreadPoolExecutor(CLIENTS) as threads:
            running = [threads.submit(self._client, number) for number in range(CLIENTS)]
            time.sleep(seconds)
            kill()
            self._end.set()
            for client in running:
                client.result()

    def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        with httpx.Client(base_url=self._url, timeout=10) as http:
            while not self._end.is_set():
                try:
                    self._one(http, rng)
                except httpx.HTTPError:
                    return  # the gateway is gone

    def _one(self, http: httpx.Client, rng: random.Random) -> None:
        name = rng.choice(self._names)
        text = f"case {rng.randrange(10**9)} is closed"
        if rng.random() < 0.5:
            body = {"items": [{"content": text}]}
            if http.post(f"/v1/conversations/{name}/items", json=body).status_code == 200:
                self.texts.append((name, text))
            return
        streamed = rng.random() < 0.5
        ask = {"conversation": name, "input": f"Which {text}?", "stream": streamed}
        if not streamed:
            answer = http.post("/v1/responses", json=ask)
            if answer.status_code == 200:
                self.answers.append((answer.json()["id"], answer.json()["status"]))
            return
        with http.stream("POST", "/v1/responses", json=ask) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self._note(name, json.loads(line.removeprefix("data: ")))

    def _note(self, name: str, event: dict[str, Any]) -> None:
        if event["type"] == "response.reasoning_summary_text.done":
            self.steps.append((name, int(event["text"].split(",")[0].removeprefix("step "))))
        elif event["type"] == "response.completed":
            self.answers.append((event["response"]["id"], "completed"))


def faults(url: str, gateway: Gateway, names: list[str], seen: list[Clients]) -> Counter[str]:
    """What is wrong in the log, by kind, after all; the gateway runs again."""
    log = ConversationLog(open_database(url))
    wrong: Counter[str] = Counter()
    texts, steps = {}, {}
    for name in names:
        events = log.events(name)
        operations = log.load(name, "local", "none", True).operations
        rows = log.operations(name, 0)
        texts[name] = Counter(item.after for item in operations if item.kind == "create")
        steps[name] = {event.step or 0 for event in events if event.kind == "step"}
        try:
            replay(operations)
        except Exception:
            wrong["logs that do not replay"] += 1
        written = Counter(row["version"] for row in rows if row.get("actor", "policy") == "policy")
        memory = ("create", "read", "update", "delete", "scratchpad")
        wrong["half steps"] += sum(
            written[event.version]
            != sum(action["kind"] in memory for action in event.body["actions"])
            for event in events
            if event.kind == "step"
        )
        wrong["gaps"] += [row["seq"] for row in rows] != list(range(len(rows)))
        wrong["gaps"] += sorted(steps[name]) != list(range(len(steps[name])))
        answered = {event.of for event in events if event.kind == "answer"}
        for event in events:
            if event.kind == "ask" and event.version not in answered:
                found = httpx.get(f"{gateway.url}/v1/responses/{event.response}").json()
                wrong["unfinished asks that do not say so"] += found["status"] != "incomplete"
    for clients in seen:
        wrong["texts lost"] += sum(not texts[name][text] for name, text in clients.texts)
        wrong["streamed steps lost"] += sum(step not in steps[name] for name, step in clients.steps)
        for response, status in clients.answers:
            found = httpx.get(f"{gateway.url}/v1/responses/{response}").json()
            wrong["answers lost"] += found["status"] != status
    return wrong


def killed(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """The gateway killed `kills` times on one SQLite file."""
    url = f"sqlite:///{folder / 'log.db'}"
    gateway, rng = Gateway(url, latency=0.004), random.Random(seed)
    seen: list[Clients] = []
    names: list[str] = []
    try:
        for number in range(kills):
            gateway.start()
            while len(names) < 6:
                names.append(httpx.post(f"{gateway.url}/v1/conversations", json={}).json()["id"])
            seen.append(Clients(gateway.url, names, number))
            seen[-1].run(rng.uniform(0.1, 1.5), gateway.kill)
        gateway.start()
        wrong = faults(url, gateway, names, seen)
    finally:
        gateway.kill()
    acknowledged = {
        name: sum(len(getattr(clients, name)) for clients in seen)
        for name in ("texts", "steps", "answers")
    }
    return {"kills": kills, "acknowledged": acknowledged, "faults": dict(+wrong)}


def two_gateways(folder: Path, writes: int) -> dict[str, Any]:
    """Two gateways on one PostgreSQL; one is killed half-way."""
    with postgres(folder / "postgres") as url:
        gateways = [Gateway(url, latency=0.002), Gateway(url, latency=0.002)]
        try:
            for gateway in gateways:
                gateway.start()
            names = [
                httpx.post(f"{gateways[0].url}/v1/conversations", json={}).json()["id"]
                for _ in range(20)
            ]
            repeated = failed_twice = 0

            def write(number: int) -> tuple[str, str]:
                nonlocal repeated, failed_twice
                name, text = names[number % 20], f"case {number} is closed"
                path, body = f"/v1/conversations/{name}/items", {"items": [{"content": text}]}
                first = (number + number // 20) % 2  # both write to every conversation
                order = [gateways[first], gateways[1 - first]]
                for attempt, gateway in enumerate(order):
                    try:
                        key = {"Idempotency-Key": str(number)}
                        httpx.post(
                            f"{gateway.url}{path}", json=body, headers=key, timeout=60
                        ).raise_for_status()
                        repeated += attempt
                        return name, text
                    except httpx.HTTPError:
                        continue
                failed_twice += 1
                return name, ""

            with ThreadPoolExecutor(8) as threads:
                written = list(threads.map(write, range(writes // 2)))
                told = [
                    parse_metrics(httpx.get(f"{gateway.url}/metrics").text) for gateway in gateways
                ]
                conflicts = int(sum(metrics["atommem_conflicts_total"] for metrics in told))
                futures = [threads.submit(write, number) for number in range(writes // 2, writes)]
                time.sleep(0.3)
                gateways[0].kill()
                written += [future.result() for future in futures]
            log = ConversationLog(open_database(url))
            held = {
                name: Counter(
                    item.after for item in log.load(name, "local", "none", True).operations
                )
                for name in names
            }
            lost = sum(not held[name][text] for name, text in written if text)
            twice = sum(held[name][text] > 1 for name, text in written if text)
            for name in names:
                log.memory_at(name)
            log.engine.dispose()
        finally:
            for gateway in gateways:
                gateway.kill()
    beside = {"repeated_on_the_other": repeated, "conflicts_before_the_kill": conflicts}
    return {
        "writes": writes,
        "lost": lost,
        "written_twice": twice,
        "failed_on_both": failed_twice,
        **beside,
    }


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--writes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    add_quick(parser, kills=3, writes=60)
    options = parser.parse_args(argv)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        result["sqlite"] = killed(folder, options.kills, options.seed)
        print(json.dumps(result["sqlite"], indent=2), flush=True)
        holds = not result["sqlite"]["faults"]
        if postgres_programs() is None:
            result["postgres"] = (
                "skipped: PostgreSQL is not installed here (apt-get install postgresql)"
            )
        else:
            found = result["postgres"] = two_gateways(folder, options.writes)
            holds = holds and not any(
                found[fault] for fault in ("lost", "written_twice", "failed_on_both")
            )
    return last_line({**result, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())

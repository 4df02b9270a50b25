"""`atommem serve` and mem0 side by side: what adding and searching takes, and how much of the evidence is found again.

    python scripts/bench_serve_peers.py --benchmarks FOLDER --mem0 PYTHON [PYTHON ...]

Each PYTHON is the interpreter of an environment with a release of mem0: ``python -m venv V; V/bin/pip install mem0ai``.
The turns of a LoCoMo conversation are added one by one, each by all sides before the next, so that what else the
machine does falls on all of them; then its questions are searched for. All sides have the same SmolLM2-135M behind one
vLLM, the same MiniLM behind one embedding server, and stores on the same disk: SQLite with an fsync for each step here,
Qdrant's local one there. AtomMem is asked over HTTP, mem0 in its own process.

Arms: *written*, where the model decides what is kept of the first ``--messages`` turns; *raw*, where each turn is kept
as it is (mem0's ``infer=False``; here a writer that copies), also of the whole conversation. What is told of each:

- seconds of an add and of a search (median, p95), model calls, prompt and completion tokens, embedded texts a message;
- recall of evidence at k: of a question's evidence turns, the share that some entry among the k found came from;
- answers in view: questions whose answer's words all stand in the k entries found.

An untrained model of 135M parameters writes little that is of use on either side, so the written arms compare costs,
not memories; in the raw arms both rank by the same vectors. mem0's extraction prompt of release 2.2 alone is 8,530 of
SmolLM2's tokens, of which the model was trained on 8,192: the engine takes more, and the model is beyond its positions
there; release 1.0.11 fits. mem0 ranks by vectors alone here: words and entities need models from a hub.

The last line is one JSON object. It holds if every arm took every turn and every search; the figures are what they are.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import httpx
import models
from bench_serve_locomo import INVENTED, SETTINGS, conversation_of
from quick import add_quick, command_line, flags, last_line
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from serve_gateways import serving
from simulated_server import embeddings, serve_in_thread
from vllm_process import VllmServer

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.envs.scoring.metrics import normalize
from atommem.envs.task import Question

ENGINE = ("--max-model-len", "16384", "--max-num-seqs", "4")
MAX_TOKENS = 128
"""Of a completion, on both sides."""
COUNTED = {
    "calls": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prompt_tokens_cached_total",
    "tokens": "vllm:generation_tokens_total",
}


class Helper:
    """A server in this process: embeddings by `embedder`, counted, and a chat model that copies what it reads."""

    def __init__(self, embedder: Any) -> None:
        self.texts = 0

        async def handle(path: str, body: bytes) -> tuple[int, dict[str, Any]]:
            asked = json.loads(body)
            if path == "/v1/embeddings":
                texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
                self.texts += len(texts)
                return 200, embeddings(await embedder.embed(texts, "entry"))
            said = (
                asked["messages"][-1]["content"]
                .partition("of the text:\n")[2]
                .partition("\n\nScratchpad:")[0]
            )
            message = {"role": "assistant", "content": f"<create_memory>{said}</create_memory>"}
            usage = {"prompt_tokens": 0, "completion_tokens": 0}
            return 200, {
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
            }

        self.url, _ = serve_in_thread(handle)


@dataclass
class Outcome:
    """What one call did: its seconds, what it wrote or found (source turns and texts), or why it failed."""

    seconds: float
    sources: set[int] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    failed: str | None = None


class AtomMem:
    """`atommem serve` at `url`, over HTTP."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=900)
        self._path = (
            f"/v1/conversations/{self._http.post('/v1/conversations', json={}).json()['id']}"
        )

    def _asked(self, method: str, path: str, **request: Any) -> tuple[float, httpx.Response]:
        begun = time.perf_counter()
        done = self._http.request(method, self._path + path, **request)
        return time.perf_counter() - begun, done

    def add(self, number: int, turn: str) -> Outcome:
        """Give a turn to be read."""
        items = [{"content": turn, "name": f"turn {number}"}]
        seconds, done = self._asked("POST", "/items", json={"items": items})
        return Outcome(seconds, failed=None if done.is_success else done.text[:300])

    def search(self, query: str) -> Outcome:
        """What the policy would be shown."""
        seconds, done = self._asked("GET", "/recall", params={"query": query})
        if not done.is_success:
            return Outcome(seconds, failed=done.text[:300])
        found = done.json()["data"]
        sources = {
            int(entry["source"]["piece"].partition(",")[0].removeprefix("turn ")) for entry in found
        }
        return Outcome(seconds, sources, [entry["text"] for entry in found])

    def entries(self) -> int:
        """How many are kept."""
        return len(self._http.get(f"{self._path}/memory").json()["entries"])


class Mem0:
    """mem0's own `Memory`, in a process of its own environment (scripts/mem0_worker.py)."""

    def __init__(self, python: str, config: dict[str, Any], infer: bool, k: int) -> None:
        command = [python, str(Path(__file__).with_name("mem0_worker.py")), json.dumps(config)]
        folder = config["vector_store"]["config"]["path"]
        environment = {
            **os.environ,
            "MEM0_TELEMETRY": "False",
            "MEM0_DIR": folder,
            "PYTHONPATH": "",
        }
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._infer, self._k = infer, k
        self._sources: dict[str, set[int]] = {}
        self._answer()  # it is ready

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def _asked(self, **request: Any) -> dict[str, Any]:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def add(self, number: int, turn: str) -> Outcome:
        """`Memory.add`."""
        answer = self._asked(add=turn, infer=self._infer)
        for made in answer.get("ids", []):
            self._sources.setdefault(made, set()).add(number)
        return Outcome(answer["seconds"], failed=answer.get("failed"))

    def search(self, query: str) -> Outcome:
        """`Memory.search`."""
        answer = self._asked(search=query, k=self._k)
        found = answer.get("found", [])
        sources = {number for item in found for number in self._sources[item["id"]]}
        return Outcome(
            answer["seconds"], sources, [item["text"] for item in found], answer.get("failed")
        )

    def entries(self) -> int:
        """How many are kept."""
        return len(self._sources)


def compared(
    sides: dict[str, AtomMem | Mem0],
    turns: Sequence[str],
    questions: Sequence[Question],
    spent: Callable[[], dict[str, float]],
) -> dict[str, dict[str, Any]]:
    """The figures of each side. They take turns, so that what else the machine does falls on all of them."""
    adds: dict[str, list[Outcome]] = {name: [] for name in sides}
    searches: dict[str, list[Outcome]] = {name: [] for name in sides}
    cost: dict[str, dict[str, float]] = {name: {} for name in sides}
    for number, turn in enumerate(turns):
        for name, side in sides.items():
            before = spent()
            adds[name].append(side.add(number, turn))
            after = spent()
            cost[name] = {key: cost[name].get(key, 0.0) + after[key] - before[key] for key in after}
    for question in questions:
        for name, side in sides.items():
            searches[name].append(side.search(question.text))
    return {
        name: figures(adds[name], searches[name], questions, cost[name], side.entries())
        for name, side in sides.items()
    }


def figures(
    adds: Sequence[Outcome],
    searches: Sequence[Outcome],
    questions: Sequence[Question],
    cost: dict[str, float],
    entries: int,
) -> dict[str, Any]:
    """What is reported of a side."""
    recalls, in_view = [], []
    for question, found in zip(questions, searches, strict=True):
        evidence = set(question.metadata["documents"])
        recalls.append(len(evidence & found.sources) / len(evidence))
        words = set(normalize(question.answers[0]).split())
        in_view.append(words <= set(normalize(" ".join(found.texts)).split()))
    failed = [outcome.failed for outcome in (*adds, *searches) if outcome.failed is not None]
    return {
        "messages": len(adds),
        "questions": len(questions),
        "add_ms": spread([outcome.seconds for outcome in adds]),
        "search_ms": spread([outcome.seconds for outcome in searches]),
        **{f"{name}_a_message": round(value / len(adds), 2) for name, value in cost.items()},
        "entries": entries,
        "evidence_recall": round(fmean(recalls), 3),
        "answers_in_view": round(fmean(in_view), 3),
        "failed": len(failed),
        "first_failure": failed[0] if failed else None,
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and p95 in milliseconds."""
    ordered = sorted(seconds)
    return {
        "median": round(1e3 * median(ordered), 1),
        "p95": round(1e3 * ordered[math.ceil(0.95 * len(ordered)) - 1], 1),
    }


def release(python: str) -> str:
    """The release of mem0 that an interpreter has."""
    code = "import importlib.metadata as m; print(m.version('mem0ai'))"
    return subprocess.run(
        [python, "-c", code], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()


def mem0_config(folder: Path, engine: str, embeddings: str, dim: int) -> dict[str, Any]:
    """What mem0 is told: the same model and embedder, a store in `folder`."""
    model = {
        "model": "policy",
        "openai_base_url": f"{engine}/v1",
        "api_key": "none",
        "max_tokens": MAX_TOKENS,
    }
    embedder = {
        "model": "e",
        "openai_base_url": f"{embeddings}/v1",
        "api_key": "none",
        "embedding_dims": dim,
    }
    store = {"path": str(folder), "on_disk": True, "embedding_model_dims": dim}
    return {
        "llm": {"provider": "openai", "config": {**model, "temperature": 0}},
        "embedder": {"provider": "openai", "config": embedder},
        "vector_store": {"provider": "qdrant", "config": store},
        "history_db_path": str(folder / "history.db"),
    }


def table(arms: dict[str, dict[str, Any]]) -> Table:
    """A line for each arm."""
    shown = Table(box=SIMPLE_HEAD)
    columns = (
        "arm",
        "turns",
        "add ms",
        "search ms",
        "calls",
        "prompt",
        "cached",
        "tokens",
        "entries",
        "recall",
        "in view",
    )
    for column in columns:
        shown.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    for name, arm in arms.items():
        both = (
            f"{arm[key]['median']:.0f}/{arm[key]['p95']:.0f}" for key in ("add_ms", "search_ms")
        )
        spent = (f"{arm[f'{key}_a_message']:.4g}" for key in COUNTED)
        quality = (f"{arm[key]:.3f}" for key in ("evidence_recall", "answers_in_view"))
        shown.add_row(name, str(arm["messages"]), *both, *spent, str(arm["entries"]), *quality)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run all arms; print the table, then the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--benchmarks", type=Path, help="folder with locomo/locomo10.json")
    parser.add_argument(
        "--mem0", nargs="*", default=[], metavar="PYTHON", help="interpreters with mem0"
    )
    parser.add_argument(
        "--conversation", type=int, default=0, help="number in the file (%(default)s)"
    )
    parser.add_argument(
        "--messages", type=int, default=10, help="turns that the model reads (%(default)s)"
    )
    parser.add_argument(
        "--k", type=int, default=6, help="entries that a search finds (%(default)s)"
    )
    add_quick(parser)
    given = parser.parse_args(argv)
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = out / "invented.json"
        file.write_text(json.dumps([INVENTED]), encoding="utf-8")
        if given.benchmarks is not None:
            file = given.benchmarks / "locomo" / "locomo10.json"
        task, _ = conversation_of(file, given.conversation)
        turns = [f"({turn.title}) {turn.text}" for turn in task.documents]
        asked = [question for question in task.questions if question.metadata["documents"]]
        first = [
            question for question in asked if max(question.metadata["documents"]) < given.messages
        ]
        sizes = {"all": (turns, asked), "first": (turns[: given.messages], first)}
        minilm = EmbedderConfig(embedder="hashing")
        if not given.quick:
            minilm = EmbedderConfig(
                embedder="sentence_transformer", embedder_model=str(models.minilm())
            )
        embedder = make_embedder(minilm)
        helper = Helper(embedder)
        engine = None
        if not given.quick:
            env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
            engine = stack.enter_context(
                VllmServer(models.smollm2(), out / "vllm.log", *ENGINE, env=env)
            )
        settings = {
            **SETTINGS,
            "retrieve_k": given.k,
            "max_tokens": MAX_TOKENS,
            "entry_tokens": 400,
        }
        served = {**settings, "embedder": "http", "embedder_url": helper.url, "embedder_model": "e"}

        def spent() -> dict[str, float]:
            told = {} if engine is None else engine.metrics()
            return {
                **{name: told.get(metric, 0.0) for name, metric in COUNTED.items()},
                "embedded": helper.texts,
            }

        def mem0(python: str, infer: bool) -> Mem0:
            store = Path(tempfile.mkdtemp(dir=out))
            config = mem0_config(
                store, engine.url if engine else helper.url, helper.url, embedder.dim
            )
            side = Mem0(python, config, infer, given.k)
            stack.callback(side.process.kill)
            return side

        releases = {f"mem0 {release(python)}": python for python in given.mem0}
        for kind, size in (("raw", "all"), ("raw", "first"), ("written", "first")):
            policy = {"policy": helper.url, "api": "chat", "model": "copies"}
            if kind == "written":
                if engine is None:
                    continue
                policy = {"policy": engine.url, "tokenizer": str(models.smollm2())}
            with serving(flags({**policy, **served}), out) as url:
                sides: dict[str, AtomMem | Mem0] = {"AtomMem": AtomMem(url)}
                sides |= {
                    name: mem0(python, kind == "written") for name, python in releases.items()
                }
                for name, found in compared(sides, *sizes[size], spent).items():
                    results[f"{name}, {kind}, {size}"] = found
                    print(f"{name}, {kind}, {size}: {json.dumps(found)}", flush=True)
    Console(width=120, highlight=False).print(table(results))
    failed = sum(arm["failed"] for arm in results.values())
    result = {
        "bench": "serve_peers",
        "conversation": task.id,
        "k": given.k,
        "arms": results,
        "holds": not failed,
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())

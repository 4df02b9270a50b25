"""Is a served memory slower than mem0 and LangGraph's InMemoryStore?

    MEM0_PYTHON=PYTHON python scripts/bench_stores.py [--texts 250] [--searches 80]

PYTHON is of an environment with mem0ai, langgraph and numpy. All embed at one server, by MiniLM or
word hashing (free), and take turns at each call. `atommem serve` has a policy that keeps every text
(a double), over HTTP with fsync; mem0 (``infer=False``: it calls no model) and InMemoryStore are in
the client's process. Printed are milliseconds of a call; each embeds once.

The bar: AtomMemStore's search takes at most 4 times InMemoryStore's.
"""

import asyncio
import json
import os
import random
import runpy
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import ATOMMEM, ROOT, last_line, percentiles, read_options, started

EMBEDDERS = ("hashing", "minilm")
WORDS = [f"word{number}" for number in range(500)]


@contextmanager
def embedder_server(name: str) -> Iterator[str]:
    import models

    from atommem.config import EmbedderConfig
    from atommem.embedding import make_embedder
    from tests.loopback import answering, routing

    kind, model = "hashing", ""
    if name == "minilm":
        kind, model = "sentence_transformer", str(models.fetch(name))
    embedder = make_embedder(EmbedderConfig(kind, model, embedder_dim=384))

    def embed(handler: Any, sent: bytes) -> None:
        texts = json.loads(sent)["input"]
        new = [texts] if isinstance(texts, str) else texts
        rows = asyncio.run(embedder.embed(new, "query"))
        data = [{"index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
        answer = {"data": data, "model": name, "usage": {"total_tokens": 0}}
        answering(answer, "application/json")(handler, sent)

    with routing({"/v1/embeddings": embed}) as (host, _):
        yield f"http://{host}"


def run_client(url: str, embedder: str, texts: int, searches: int, folder: str) -> None:
    """Take turns between the stores; print the figures as JSON."""
    from langgraph.store.memory import InMemoryStore
    from mem0 import Memory
    from openai import OpenAI

    embedding = OpenAI(base_url=f"{embedder}/v1", api_key="none").embeddings

    def embed(new: Any) -> list[list[float]]:
        found = embedding.create(model="m", input=list(new), encoding_format="float").data
        return [each.embedding for each in found]

    own = OpenAI(base_url=f"{url}/v1", api_key="none")
    conversation = own.conversations.create().id
    example = ROOT / "examples" / "langgraph" / "atommem_store.py"
    store: Any = runpy.run_path(str(example))["AtomMemStore"](url)
    memory_store = InMemoryStore(index={"dims": 384, "embed": embed})
    server = {"model": "m", "api_key": "none", "openai_base_url": f"{embedder}/v1"}
    place = {"path": f"{folder}/qdrant", "embedding_model_dims": 384, "on_disk": True}
    config: dict[str, Any] = {
        "embedder": {"provider": "openai", "config": server},
        "llm": {"provider": "openai", "config": {"api_key": "none"}},
        "vector_store": {"provider": "qdrant", "config": place},
        "history_db_path": f"{folder}/history.db",
    }
    mem0 = Memory.from_config(config)

    def recall(query: str) -> Any:
        options: Any = {"params": {"query": query, "k": 6}}
        path = f"/conversations/{conversation}/recall"
        page: Any = own.get(path, cast_to=object, options=options)
        return page["data"]

    def add(text: str) -> Any:
        item: Any = {"role": "user", "content": text}
        return own.conversations.items.create(conversation, items=[item])

    adding: dict[str, Callable[[int, str], Any]] = {
        "atommem add": lambda _, text: add(text),
        "mem0 add": lambda _, text: mem0.add(text, user_id="ann", infer=False),
        "AtomMemStore.put": lambda key, text: store.put(("ann",), str(key), {"text": text}),
        "InMemoryStore.put": lambda key, text: memory_store.put(("ann",), str(key), {"text": text}),
    }
    searching: dict[str, Callable[[int, str], Any]] = {
        "atommem recall": lambda _, query: recall(query),
        "mem0 search": lambda _, query: mem0.search(query, filters={"user_id": "ann"}, top_k=6),
        "AtomMemStore.search": lambda _, query: store.search(("ann",), query=query, limit=6),
        "InMemoryStore.search": lambda _, query: memory_store.search(
            ("ann",), query=query, limit=6
        ),
    }
    rng, seconds = random.Random(0), defaultdict[str, list[float]](list)
    for calls, count, words in ((adding, texts, 25), (searching, searches, 5)):
        for number in range(count):
            for name, call in calls.items():
                text = " ".join(rng.choices(WORDS, k=words))  # no cache has it
                started = time.perf_counter()
                found = call(number, text)
                seconds[name].append(time.perf_counter() - started)
                assert found or calls is adding, f"{name} found nothing"
    print(json.dumps({name: percentiles(taken, 50, 95) for name, taken in seconds.items()}))


def main() -> int:
    if sys.argv[1:2] == ["client"]:
        url, embedder, texts, searches, folder = sys.argv[2:]
        run_client(url, embedder, int(texts), int(searches), folder)
        return 0
    from bench_serve import reply_to

    from atommem.servers.vllm_process import free_port
    from tests.loopback import serving

    options = read_options(__doc__, texts=(250, 20), searches=(80, 10))
    result: dict[str, Any] = {"bench": "stores", "holds": True}
    for name in EMBEDDERS:
        with (
            TemporaryDirectory() as folder,
            serving(reply_to) as policy,
            embedder_server(name) as embedder,
        ):
            port = free_port()
            server = f"http://127.0.0.1:{port}"
            words = f"""serve --policy {policy} --api chat --port {port}
                --embedder http --embedder_url {embedder}/v1 --embedder_model m
                --db sqlite:///{folder}/log.db"""
            client = [os.environ["MEM0_PYTHON"], __file__, "client", server, embedder]
            client += [str(options.texts), str(options.searches), folder]
            environment = {**os.environ, "MEM0_TELEMETRY": "False", "MEM0_DIR": folder}
            with started([*ATOMMEM, *words.split()], f"{server}/ready", Path(folder, "log.txt")):
                found = subprocess.run(client, env=environment, check=True, stdout=subprocess.PIPE)
        result[name] = json.loads(found.stdout.splitlines()[-1])
        ours, theirs = (result[name][f"{kind}Store.search"] for kind in ("AtomMem", "InMemory"))
        result["holds"] &= options.quick or ours["p50_ms"] <= 4 * theirs["p50_ms"]
        for call, figures in result[name].items():
            print(name, call, figures, flush=True)
    return last_line(result)


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    raise SystemExit(main())

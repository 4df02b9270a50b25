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

from atommem.arguments import Parser, field_names, given_flags
from atommem.config import setting
from atommem.errors import ConfigError
from atommem.run import Checkpoint, add_run_settings

if TYPE_CHECKING:
    from atommem.serve.served_model import ServedModel

DATABASE = "sqlite:///runs/serve/conversations.db"


@dataclass
class ServeConfig:
    """The server, beside the policy that it serves."""

    host: str = setting("127.0.0.1", "Address to listen on; another machine's access needs a key.")
    port: int = setting(8765, "Port to listen on.")
    db: str = setting(
        DATABASE,
        "Database of conversations: sqlite:///FILE or postgresql://USER@HOST/NAME. "
        "ATOMMEM_DATABASE sets the default.",
    )
    name: str = setting("", "Name of the model for clients (default: the folder's name).")
    keys: str | None = setting(
        None,
        "File of bearer keys, one OWNER=KEY a line (default: ATOMMEM_SERVE_KEYS, with commas). "
        "Each "
        "owner has its own conversations. Without keys only this machine has access.",
    )
    hosts: list[str] = setting([], "Names that clients use for this server; * is any.")
    move: bool = setting(
        False,
        "First move the conversations of other checkpoints or embedders to this one; entries are "
        "embedded again.",
    )
    stdio: bool = setting(False, "Speak MCP on standard input and output, instead of HTTP.")
    active: int = setting(64, "Most turns at the same time.")
    max_requests: int = setting(320, "Most requests in work or waiting; more are refused (429).")
    open_conversations: int = setting(500, "Most idle conversations in memory.")
    turn_seconds: float = setting(300.0, "Longest time of a turn (503).")
    drain_seconds: int = setting(30, "Time for open requests after SIGTERM.")


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem serve``; returns 0 after SIGTERM or Ctrl-C.

    Raises:
        AtomMemError: A setting is wrong, or the policy or database cannot be opened.
    """
    return _serve(*_arguments(sys.argv[1:] if argv is None else argv))


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the command's own arguments, and the settings of the policy that were given."""
    parser = Parser(
        "atommem serve",
        "Serve a policy as a memory: conversations, responses and chat completions of OpenAI's "
        "API, and the memory's own log (docs/serve.md). --policy is a model folder, a run with "
        "one in it (runs/demo), or servers.",
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
    add_run_settings(parser, Checkpoint.find(argv, {}).environment)
    parsed = parser.read(argv, {"db": _database()})
    if not parsed.policy:
        raise ConfigError("--policy is missing. Give a model folder or a server's URL.")
    own = {*field_names(ServeConfig), "policy", "vllm"}
    given = given_flags(argv, parsed)
    return parsed, {name: value for name, value in given.items() if name not in own}


def _serve(arguments: argparse.Namespace, settings: dict[str, Any]) -> int:
    from atommem.serve.middleware import KEYS_VARIABLE, LOOPBACK, load_keys
    from atommem.serve.served_model import ServedModel
    from atommem.servers.vllm_process import free_port

    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    keys = load_keys(arguments.keys)
    if host not in LOOPBACK and not keys:
        raise ConfigError(
            f"host={arguments.host}: a server without keys listens on this machine only. Give "
            "--keys FILE or set "
            f"{KEYS_VARIABLE} (OWNER=KEY), or use --host 127.0.0.1."
        )
    if not arguments.stdio:
        free_port(arguments.host, arguments.port)
    with contextlib.ExitStack() as stack:
        if arguments.vllm is None:
            policy = ServedModel.open(arguments.policy, name=arguments.name, **settings)
        else:
            policy, server = ServedModel.open_with_vllm(
                arguments.policy,
                Path(f"runs/serve/vllm_{arguments.port}.log"),
                shlex.split(arguments.vllm),
                name=arguments.name,
                **settings,
            )
            print(
                f"atommem serve: starting vLLM at {server.url} (log: {server.log})",
                file=sys.stderr,
                flush=True,
            )
            stack.enter_context(server)
        return _listen(arguments, policy, host, keys)


def _listen(
    arguments: argparse.Namespace, model: ServedModel, host: str, keys: dict[str, str]
) -> int:
    """Serve until told to end."""
    from atommem.serve.app import make_app, run
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.conversations import Conversations
    from atommem.serve.middleware import LOGGER, JsonFormatter
    from atommem.serve.resources import Resources
    from atommem.serve.schema import open_database

    # Opened after the model, so that no file is left behind if that fails.
    log = ConversationLog(open_database(arguments.db))
    conversations = Conversations(
        Resources(model, log, arguments.active, arguments.turn_seconds),
        max_requests=arguments.max_requests,
        max_open=arguments.open_conversations,
    )
    if arguments.move:
        count = asyncio.run(conversations.switch_checkpoints())
        print(
            f"atommem serve: {count} conversations moved to checkpoint {model.checkpoint}",
            file=sys.stderr,
        )
    if arguments.stdio:
        from atommem.serve.mcp_server import serve_stdio

        print(f"atommem serve: {model.notice()}", file=sys.stderr, flush=True)
        serve_stdio(conversations)
        return 0
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    print(
        f"atommem serve: {model.name} ({model.checkpoint}) at http://{host}:{arguments.port}/v1",
        file=sys.stderr,
    )
    print(f"atommem serve: {model.notice()}", file=sys.stderr, flush=True)
    # uvicorn raises the signal again after it has drained.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run(
        make_app(conversations, keys, (*arguments.hosts, host)),
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=arguments.drain_seconds,
    )
    return 0


def _database() -> str:
    return os.environ.get("ATOMMEM_DATABASE", DATABASE)

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.command_line import CommandParser
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.errors import ConfigError
from atommem.face.flags import add_settings, given_settings
from atommem.policy.opening import API_HELP

if TYPE_CHECKING:
    from atommem.serve.served_model import ServedModel

DATABASE = "sqlite:///runs/serve/conversations.db"
_DATABASE_HELP = (
    f"Where conversations are kept: sqlite:///FILE, or postgresql://USER@HOST/NAME (default: {DATABASE}, or "
    "ATOMMEM_DATABASE)."
)
_OWN = (
    ("--host", str, "127.0.0.1", "Address to listen on; another than this machine's needs a key."),
    ("--port", int, 8765, "Port to listen on."),
    ("--active", int, 64, "Most turns at the same time."),
    ("--max_requests", int, 320, "Most requests in work or waiting; more are refused (429)."),
    ("--open_conversations", int, 500, "Most idle conversations in memory."),
    ("--turn_seconds", float, 300.0, "How long a turn may take (503)."),
    ("--drain_seconds", int, 30, "How long requests may go on after SIGTERM."),
)


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem serve``; returns 0 after SIGTERM or Ctrl-C.

    Raises:
        AtomMemError: A setting is wrong, or the policy or database cannot be opened.
    """
    return _serve(_arguments(sys.argv[1:] if argv is None else argv))


def _arguments(argv: list[str]) -> argparse.Namespace:
    ahead = CommandParser(add_help=False)
    ahead.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
    parser = CommandParser(
        prog="atommem serve",
        usage="atommem serve --policy POLICY [--db URL] [--port N] [settings]",
        description="Serve a policy as a memory: conversations, responses and chat completions of OpenAI's API, and "
        "the memory's own log (docs/serve.md).",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        required=True,
        help="A model folder, or a run with one in it (runs/demo); or the URLs of vLLM servers of one model, or of a "
        "chat server (--api chat).",
    )
    parser.add_argument("--api", default=argparse.SUPPRESS, help=API_HELP)
    parser.add_argument(
        "--model",
        default=argparse.SUPPRESS,
        help="Name of the model (or LoRA adapter) on the server.",
    )
    parser.add_argument(
        "--tokenizer",
        default=argparse.SUPPRESS,
        help="Folder of the checkpoint that a server serves.",
    )
    parser.add_argument(
        "--vllm",
        nargs="?",
        const="",
        metavar="FLAGS",
        help="Start a vLLM server for the folder (an adapter on its base model), and end it with this one. FLAGS are "
        'vLLM\'s, as one word: --vllm="--max-model-len 8192". VLLM_PYTHON names the interpreter of an environment with '
        "vLLM (default: this one).",
    )
    parser.add_argument(
        "--name", default="", help="What clients call the model (default: the folder's name)."
    )
    parser.add_argument("--db", default=_database(), help=_DATABASE_HELP)
    parser.add_argument(
        "--keys",
        help="File of bearer keys, one OWNER=KEY a line (default: ATOMMEM_SERVE_KEYS, the same with commas). Each "
        "owner has conversations of its own. Without keys, the server listens on this machine only.",
    )
    parser.add_argument(
        "--hosts", nargs="*", default=[], help="Names that clients call this server by; * is any."
    )
    parser.add_argument(
        "--move",
        action="store_true",
        help="First move all conversations of other checkpoints or embedders to this one; entries are embedded anew.",
    )
    for flag, kind, default, text in _OWN:
        parser.add_argument(flag, type=kind, default=default, help=f"{text} (default: {default})")
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="Speak MCP on standard input and output, in the place of HTTP.",
    )
    add_settings(parser, ahead.parse_known_args(argv)[0].environment)
    return parser.parse_args(argv)


def _serve(arguments: argparse.Namespace) -> int:
    from atommem.serve.middleware import KEYS_VARIABLE, LOOPBACK, load_keys
    from atommem.serve.served_model import ServedModel
    from atommem.servers.vllm_process import free_port

    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    keys = load_keys(arguments.keys)
    if host not in LOOPBACK and not keys:
        raise ConfigError(
            f"host={arguments.host}: a server without keys listens on this machine only. Give --keys FILE or set "
            f"{KEYS_VARIABLE} (OWNER=KEY), or use --host 127.0.0.1."
        )
    if not arguments.stdio:
        free_port(arguments.host, arguments.port)
    own = {name.removeprefix("--") for name, *_ in _OWN} | {
        "policy",
        "vllm",
        "name",
        "db",
        "keys",
        "hosts",
        "move",
        "stdio",
    }
    settings: dict[str, Any] = given_settings(arguments, tuple(own))
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

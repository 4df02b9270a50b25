"""``atommem serve``: a policy as a memory behind OpenAI's API; ``atommem serve keys``: who may use it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.command_line import CommandParser
from atommem.environment import DEFAULT_ENVIRONMENT
from atommem.errors import ConfigError
from atommem.face.flags import add_settings, given_settings
from atommem.policy.opening import API_HELP

if TYPE_CHECKING:
    from atommem.serve.served_policy import ServedPolicy

DATABASE = "sqlite:///runs/serve/conversations.db"
_DATABASE_HELP = (
    f"Where conversations are kept: sqlite:///FILE, or postgresql://USER@HOST/NAME (default: {DATABASE}, or "
    "ATOMMEM_DATABASE)."
)
_OWN = (
    ("--host", str, "127.0.0.1", "Address to listen on; another than this machine's needs a key."),
    ("--port", int, 8765, "Port to listen on."),
    ("--active", int, 64, "Most turns at the same time."),
    ("--waiting", int, 256, "Most turns that wait; more are refused (429)."),
    ("--open_conversations", int, 500, "Most conversations held open."),
    ("--open_mb", int, 1000, "Most megabytes that they take, roughly."),
    ("--turn_seconds", float, 300.0, "How long a turn may take (503)."),
    ("--requests_per_minute", int, 600, "Of a key without a rate of its own; 0 is unlimited."),
    ("--max_body_bytes", int, 8_000_000, "Of a request."),
    ("--drain_seconds", int, 30, "How long requests may go on after SIGTERM."),
)


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem serve``; returns 0 after SIGTERM or Ctrl-C.

    Raises:
        AtomMemError: A setting is wrong, or the policy or database cannot be opened.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["keys"]:
        return _keys(argv[1:])
    return _serve(_arguments(argv))


def _arguments(argv: list[str]) -> argparse.Namespace:
    ahead = CommandParser(add_help=False)
    ahead.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
    parser = CommandParser(
        prog="atommem serve",
        usage="atommem serve --policy POLICY [--db URL] [--port N] [settings]; atommem serve keys add|list|revoke",
        description="Serve a policy as a memory: conversations, responses and chat completions of OpenAI's API, and "
        "the memory's own log (docs/serving.md).",
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
    from atommem.serve.api_keys import Keys
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.guard import LOOPBACK
    from atommem.serve.schema import open_database
    from atommem.serve.served_policy import ServedPolicy
    from atommem.servers.vllm_process import free_port

    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    if host not in LOOPBACK and not Keys(ConversationLog(open_database(arguments.db))).exist():
        raise ConfigError(
            f"host is {arguments.host} and there is no key: anybody on the network could read all memories. Make one "
            f"with atommem serve keys add OWNER --db {arguments.db}, or listen on 127.0.0.1."
        )
    if not arguments.stdio:
        free_port(arguments.host, arguments.port)
    own = {name.removeprefix("--") for name, *_ in _OWN} | {
        "policy",
        "vllm",
        "name",
        "db",
        "hosts",
        "move",
        "stdio",
    }
    settings: dict[str, Any] = given_settings(arguments, tuple(own))
    with contextlib.ExitStack() as stack:
        if arguments.vllm is None:
            policy = ServedPolicy.open(arguments.policy, name=arguments.name, **settings)
        else:
            policy, server = ServedPolicy.on_vllm(
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
        return _listen(arguments, policy, host)


def _listen(arguments: argparse.Namespace, policy: ServedPolicy, host: str) -> int:
    """Serve until told to end."""
    from atommem.serve.app import make_app, run
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.conversations import Conversations
    from atommem.serve.guard import LOGGER, JsonLines, Limits
    from atommem.serve.schema import open_database
    from atommem.serve.serve_metrics import Metrics

    log = ConversationLog(
        open_database(arguments.db)
    )  # not before: no file is left where the policy cannot be opened
    conversations = Conversations(
        policy,
        log,
        Metrics(),
        active=arguments.active,
        waiting=arguments.waiting,
        open_count=arguments.open_conversations,
        open_bytes=arguments.open_mb * 1_000_000,
        turn_seconds=arguments.turn_seconds,
    )
    if arguments.move:
        moved = asyncio.run(conversations.move_all())
        print(
            f"atommem serve: {moved} conversations moved to checkpoint {policy.checkpoint}",
            file=sys.stderr,
        )
    if arguments.stdio:
        from atommem.serve.mcp_server import serve_stdio

        print(f"atommem serve: {policy.notice()}", file=sys.stderr, flush=True)
        serve_stdio(conversations)
        return 0
    limits = Limits(
        (*arguments.hosts, host), arguments.requests_per_minute or None, arguments.max_body_bytes
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    print(
        f"atommem serve: {policy.name} ({policy.checkpoint}) at http://{host}:{arguments.port}/v1",
        file=sys.stderr,
    )
    print(f"atommem serve: {policy.notice()}", file=sys.stderr, flush=True)
    # When it has drained, uvicorn raises the signal again: it has had its effect.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run(
        make_app(conversations, limits),
        host=arguments.host,
        port=arguments.port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=arguments.drain_seconds,
    )
    return 0


def _database() -> str:
    return os.environ.get("ATOMMEM_DATABASE", DATABASE)


def _keys(argv: list[str]) -> int:
    """``atommem serve keys``."""
    parser = CommandParser(prog="atommem serve keys")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="Make a key for an owner, and print it this once.")
    add.add_argument("owner")
    add.add_argument("--requests_per_minute", type=int)
    add.add_argument("--max_body_bytes", type=int)
    listed = commands.add_parser("list", help="All keys, without what they are made of.")
    revoke = commands.add_parser("revoke", help="End a key, within a second.")
    revoke.add_argument("id")
    for command in (add, listed, revoke):
        command.add_argument("--db", default=_database(), help=_DATABASE_HELP)
    arguments = parser.parse_args(argv)

    from atommem.serve.api_keys import Keys
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.schema import open_database

    keys = Keys(ConversationLog(open_database(arguments.db, make=arguments.command == "add")))
    if arguments.command == "add":
        number, token = keys.add(
            arguments.owner, arguments.requests_per_minute, arguments.max_body_bytes
        )
        print(token)
        print(f"key {number} of {arguments.owner}: it is not shown again.", file=sys.stderr)
    elif arguments.command == "revoke":
        keys.revoke(arguments.id)
    else:
        for key in keys.listed():
            made = time.strftime("%Y-%m-%d", time.gmtime(key["created_at"]))
            print(
                f"{key['id']}  {key['owner']:<20} {made}  {'revoked' if key['revoked_at'] else 'valid'}"
            )
    return 0

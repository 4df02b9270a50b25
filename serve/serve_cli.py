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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atommem.arguments import Command, Parser, field_names, given_flags, run_command
from atommem.config import setting
from atommem.errors import ConfigError
from atommem.run import Checkpoint, add_run_settings

if TYPE_CHECKING:
    from atommem.serve.api_keys import Keys
    from atommem.serve.served_policy import ServedPolicy

DATABASE = "sqlite:///runs/serve/conversations.db"
_DATABASE_HELP = "Database of conversations: sqlite:///FILE or postgresql://USER@HOST/NAME."


@dataclass
class ServeConfig:
    """The server, beside the policy that it serves."""

    host: str = setting("127.0.0.1", "Address to listen on; another machine's access needs a key.")
    port: int = setting(8765, "Port to listen on.")
    db: str = setting(DATABASE, f"{_DATABASE_HELP} ATOMMEM_DATABASE sets the default.")
    name: str = setting("", "Name of the model for clients (default: the folder's name).")
    hosts: list[str] = setting([], "Names that clients use for this server; * is any.")
    move: bool = setting(
        False,
        "First move the conversations of other checkpoints or embedders to this one; entries are "
        "embedded again.",
    )
    stdio: bool = setting(False, "Speak MCP on standard input and output, instead of HTTP.")
    active: int = setting(64, "Most turns at the same time.")
    waiting: int = setting(256, "Most waiting turns; more are refused (429).")
    open_conversations: int = setting(500, "Most conversations held open.")
    open_mb: int = setting(1000, "Most megabytes that they take, roughly.")
    turn_seconds: float = setting(300.0, "Longest time of a turn (503).")
    requests_per_minute: int = setting(600, "Of a key without its own rate; 0 is unlimited.")
    max_body_bytes: int = setting(8_000_000, "Largest request.")
    drain_seconds: int = setting(30, "Time for open requests after SIGTERM.")


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem serve``; returns 0 after SIGTERM or Ctrl-C.

    Raises:
        AtomMemError: A setting is wrong, or the policy or database cannot be opened.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["keys"]:
        return _keys(argv[1:])
    return _serve(*_arguments(argv))


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the command's own arguments, and the settings of the policy that were given."""
    parser = Parser(
        "atommem serve",
        "Serve a policy as a memory: conversations, responses and chat completions of OpenAI's "
        "API, and the memory's own log (docs/serving.md). --policy is a model folder, a run with "
        "one in it (runs/demo), or servers.",
        usage="atommem serve --policy POLICY [--db URL] [--port N] [--SETTING VALUE ...]\n"
        "       atommem serve keys add|list|revoke",
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
    """Run ``atommem serve keys``."""
    commands = {
        "add": Command(_add_key, "make a key for an owner, and print it this once"),
        "list": Command(_list_keys, "list all keys, without their secrets"),
        "revoke": Command(_revoke_key, "end a key, within a second"),
    }
    return run_command("atommem serve keys", commands, argv)


def _key_parser(command: str) -> Parser:
    parser = Parser(f"atommem serve keys {command}")
    parser.add_argument("--db", default=_database(), help=_DATABASE_HELP)
    return parser


def _open_keys(database: str, *, make: bool = False) -> Keys:
    from atommem.serve.api_keys import Keys
    from atommem.serve.conversation_log import ConversationLog
    from atommem.serve.schema import open_database

    return Keys(ConversationLog(open_database(database, make=make)))


def _add_key(argv: list[str]) -> int:
    parser = _key_parser("add")
    parser.add_argument("owner")
    parser.add_argument("--requests_per_minute", type=int, help="Its own rate.")
    parser.add_argument("--max_body_bytes", type=int, help="Its own largest request.")
    given = parser.parse_args(argv)
    keys = _open_keys(given.db, make=True)
    number, token = keys.add(given.owner, given.requests_per_minute, given.max_body_bytes)
    print(token)
    print(f"key {number} of {given.owner}: it is not shown again.", file=sys.stderr)
    return 0


def _list_keys(argv: list[str]) -> int:
    for key in _open_keys(_key_parser("list").parse_args(argv).db).listed():
        made = time.strftime("%Y-%m-%d", time.gmtime(key["created_at"]))
        state = "revoked" if key["revoked_at"] else "valid"
        print(f"{key['id']}  {key['owner']:<20} {made}  {state}")
    return 0


def _revoke_key(argv: list[str]) -> int:
    parser = _key_parser("revoke")
    parser.add_argument("id")
    given = parser.parse_args(argv)
    _open_keys(given.db).revoke(given.id)
    return 0

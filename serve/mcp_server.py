"""The memory over MCP: `remember`, `recall`, `forget` and `ask`, and what it holds as a resource.

The protocol has no session that a memory could hang on (specification of 2026-07-28): the conversation's id is an
argument of every tool, and `remember` makes one where none is given.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from atommem.episode import Step
from atommem.errors import AtomMemError
from atommem.serve.api_keys import LOCAL
from atommem.serve.conversations import Conversations
from atommem.serve.guard import LOGGER, told
from atommem.serve.log_rows import NotFoundError
from atommem.serve.wire import ConversationId, Message, Name, Text, Words, entry_object, new_item

PATH = "/mcp"
_INSTRUCTIONS = (
    "A memory that a trained policy writes. Give it texts with remember, however long, and keep the conversation's id "
    "that it returns: every other tool needs it. ask answers from memory; recall shows entries without an answer; "
    "forget deletes an entry, or all that came from one text."
)
_Conversation = Annotated[
    ConversationId, Field(description="The conversation's id, as remember returned it.")
]


class Remembered(BaseModel):
    """What `remember` did."""

    conversation: str
    steps: int
    entries: int


class Recalled(BaseModel):
    """An entry that fits a query."""

    id: int
    text: str
    score: float
    source: str | None


class Forgotten(BaseModel):
    """The entries that `forget` deleted."""

    entries: list[int]


class Answer(BaseModel):
    """What `ask` found; null is no answer."""

    answer: str | None
    entries: list[str]
    response: str


def make_mcp(served: Conversations, owner: str | None = None) -> MCPServer[Any]:
    """An MCP server of `served`.

    Args:
        served: The conversations.
        owner: Of all that is asked (stdio); unset, the owner of the request's key, as the guard found it.
    """
    with _without_its_log():
        server: MCPServer[Any] = MCPServer(
            "atommem", instructions=_INSTRUCTIONS, version=version("atommem")
        )

    def owner_of(context: Context[Any, Any]) -> str:
        if owner is not None:
            return owner
        request: Any = context.request_context.request
        return str(request.state.owner)

    @server.tool()
    async def remember(
        text: Annotated[
            Text, Field(description="What to read: a message, a page, a whole document.")
        ],
        context: Context[Any, Any],
        conversation: Annotated[
            ConversationId, Field(description="Where; empty begins a new conversation.")
        ] = "",
        goal: Annotated[
            Text,
            Field(
                max_length=4096,
                description="For a new one: what will be asked, as far as it is known.",
            ),
        ] = "",
        name: Annotated[
            Name, Field(description="What sources call the text, and forget may be told.")
        ] = "",
    ) -> Remembered:
        """Read a text into a memory: a policy decides what is kept. Returns when it has been read."""
        item = new_item(Message(content=text, name=name))
        if not item["parts"]:
            raise ToolError("the text is blank: there is nothing to read.")
        async with _told():
            whose = owner_of(context)
            if not conversation:
                about = await served.in_thread(
                    served.log.create, whose, {"goal": goal} if goal else {}
                )
                conversation = about.id
            steps = 0
            async with served.use(conversation, whose) as memory:
                (event,) = await memory.add([item])

                async def on_step(step: Step) -> None:
                    nonlocal steps
                    steps += 1
                    await context.report_progress(steps, event.chunks)

                await memory.read(on_step)
                held = len(memory.session.memory.contents.entries)
            return Remembered(conversation=conversation, steps=steps, entries=held)

    @server.tool()
    async def recall(
        conversation: _Conversation,
        query: Annotated[
            Text, Field(min_length=1, description="What the entries should be about.")
        ],
        context: Context[Any, Any],
    ) -> list[Recalled]:
        """The entries that fit a query best, as the policy would be shown them. No model is asked, nothing changes."""
        async with _told(), served.use(conversation, owner_of(context)) as memory:
            return [
                Recalled(
                    id=entry.id,
                    text=entry.text,
                    score=score,
                    source=entry.source.piece if entry.source else None,
                )
                for entry, score in await memory.recall(query)
            ]

    @server.tool()
    async def forget(
        conversation: _Conversation,
        context: Context[Any, Any],
        entry: Annotated[int | None, Field(description="The id of an entry.")] = None,
        source: Annotated[
            Name, Field(description="Or the name of a text: all that came from it goes.")
        ] = "",
    ) -> Forgotten:
        """Delete an entry, or all that was written while a text was read. The log keeps that it was there."""
        if (entry is None) == (not source):
            raise ToolError("give an entry's id or a source's name, and not both.")
        async with (
            _told(),
            served.use(conversation, owner_of(context), whole=bool(source)) as memory,
        ):
            done = await memory.forget(source) if entry is None else await memory.edit(entry, None)
            return Forgotten(
                entries=[item["entry_id"] for item in done if item["kind"] == "delete"]
            )

    @server.tool()
    async def ask(
        conversation: _Conversation,
        question: Words,
        context: Context[Any, Any],
    ) -> Answer:
        """Ask the memory. The policy looks things up in it before it answers."""
        async with _told(), served.use(conversation, owner_of(context)) as memory:
            response = f"resp_{secrets.token_hex(16)}"
            answered = await memory.ask(question, response)
            return Answer(
                answer=answered.text,
                entries=[entry.text for entry in answered.entries],
                response=response,
            )

    @server.resource("memory://{conversation}", mime_type="application/json")
    async def memory(conversation: str, context: Context[Any, Any]) -> str:
        """What a memory holds: its scratchpad and entries, with their sources."""
        try:
            about = await served.in_thread(served.log.about, conversation, owner_of(context))
        except NotFoundError as error:
            raise ResourceNotFoundError(str(error)) from error
        contents = await served.in_thread(served.log.memory_at, about.id)
        entries = [entry_object(entry) for entry in contents.entries.values()]
        return json.dumps(
            {"conversation": about.id, "scratchpad": contents.scratchpad, "entries": entries}
        )

    return server


def mcp_routes(server: MCPServer[Any]) -> list[BaseRoute]:
    """Its route in an application: `PATH`. Its ``session_manager`` has to run while requests come in.

    No request hangs on another, so that any gateway may take each; hosts and origins are the guard's.
    """
    trusted = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, transport_security=trusted
    )
    return list(app.routes)


def serve_stdio(served: Conversations) -> None:
    """Answer one client on standard input and output, until it leaves; it is who started this process."""

    async def run() -> None:
        try:
            await make_mcp(served, LOCAL).run_stdio_async()
        finally:
            await served.close()

    anyio.run(run)


@contextmanager
def _without_its_log() -> Iterator[None]:
    """The package gives the process's root logger a handler, and writes what users say: crashes are logged here."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


@asynccontextmanager
async def _told() -> AsyncIterator[None]:
    """Errors of ours in words for the model that called; others are crashes, of which the log has the place."""
    try:
        yield
    except AtomMemError as error:
        raise ToolError(str(error)) from error
    except Exception as error:
        LOGGER.error({"event": "mcp", **told(error)})
        raise

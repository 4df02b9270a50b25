"""MCP server: tools `remember`, `recall`, `forget` and `ask`, and the memory as a resource.

The protocol has no session (specification of 2026-07-28): every tool takes the conversation's id,
which `remember` returns.
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
from atommem.serve.conversations import Conversations
from atommem.serve.events import NotFoundError
from atommem.serve.middleware import LOCAL, LOGGER, error_location
from atommem.serve.wire import (
    SERVE_ERRORS,
    ConversationId,
    Message,
    Name,
    NonBlank,
    Text,
    entry_object,
    item_body,
    public_error,
)

PATH = "/mcp"
_INSTRUCTIONS = (
    "A memory that a trained policy writes. Give it texts of any length with remember, and keep "
    "the conversation id that it returns: all other tools need it. ask answers from memory; recall "
    "returns entries without an answer; forget deletes an entry, or all that came from one text."
)
_Conversation = Annotated[
    ConversationId, Field(description="The conversation id that remember returned.")
]
_Context = Context[Any, Any]


class Remembered(BaseModel):
    """Result of `remember`."""

    conversation: str
    steps: int
    entries: int


class Recalled(BaseModel):
    """An entry of `recall`."""

    id: int
    text: str
    score: float
    source: str | None


class Forgotten(BaseModel):
    """Entries that `forget` deleted."""

    entries: list[int]


class Answered(BaseModel):
    """Result of `ask`; the answer is null if there is none."""

    answer: str | None
    entries: list[str]
    response: str


def make_mcp(server: Conversations, owner: str | None = None) -> MCPServer[Any]:
    """Make an MCP server.

    Args:
        server: The conversations.
        owner: Owner of all requests; default: the owner of each request's key.
    """
    with _without_log_setup():
        mcp: MCPServer[Any] = MCPServer(
            "atommem", instructions=_INSTRUCTIONS, version=version("atommem")
        )

    def owner_of(context: _Context) -> str:
        request: Any = context.request_context.request
        return str(request.state.owner) if owner is None else owner

    @mcp.tool()
    async def remember(
        text: Annotated[
            Text, Field(description="The text to read: a message, a page, a whole document.")
        ],
        context: _Context,
        conversation: Annotated[
            ConversationId, Field(description="Where; empty starts a new conversation.")
        ] = "",
        goal: Annotated[
            Text,
            Field(
                max_length=4096,
                description="For a new conversation: what will be asked, as far as it is known.",
            ),
        ] = "",
        name: Annotated[
            Name, Field(description="Name of the text in sources, and for forget.")
        ] = "",
    ) -> Remembered:
        """Read a text into a memory; a policy decides what to keep. Returns when it is read."""
        item = item_body(Message(content=text, name=name))
        if not item["parts"]:
            raise ToolError("the text is blank: there is nothing to read.")
        steps = 0
        async with _tool_errors():
            user = owner_of(context)
            if not conversation:
                metadata = {"goal": goal} if goal else {}
                conversation = (await server.in_thread(server.log.create, user, metadata)).id
            async with server.use(conversation, user) as memory:
                (event,) = await memory.add([item])

                async def on_step(step: Step) -> None:
                    nonlocal steps
                    steps += 1
                    await context.report_progress(steps, event.chunks)

                await memory.read(on_step)
                entries = len(memory.session.memory.contents.entries)
        return Remembered(conversation=conversation, steps=steps, entries=entries)

    @mcp.tool()
    async def recall(
        conversation: _Conversation,
        query: Annotated[
            Text, Field(min_length=1, description="What the entries should be about.")
        ],
        context: _Context,
    ) -> list[Recalled]:
        """Return the entries that the policy would be shown for a query; calls no model."""
        async with _tool_errors(), server.use(conversation, owner_of(context)) as memory:
            found = await memory.recall(query)
        return [
            Recalled(
                id=entry.id,
                text=entry.text,
                score=score,
                source=entry.source.piece if entry.source else None,
            )
            for entry, score in found
        ]

    @mcp.tool()
    async def forget(
        conversation: _Conversation,
        context: _Context,
        entry: Annotated[int | None, Field(description="The id of an entry.")] = None,
        source: Annotated[
            Name, Field(description="Or the name of a text, to delete all that came from it.")
        ] = "",
    ) -> Forgotten:
        """Delete an entry, or all that was written while a text was read. The log keeps both."""
        if (entry is None) == (not source):
            raise ToolError("give an entry's id or a source's name, and not both.")
        user, log = owner_of(context), server.log
        async with _tool_errors(), server.use(conversation, user, full=entry is None) as memory:
            if entry is None:
                items = await server.in_thread(log.items_of_source, conversation, user, source)
                done = await memory.delete(items, source)
            else:
                done = await memory.edit(entry, None)
        return Forgotten(entries=[item["entry_id"] for item in done if item["kind"] == "delete"])

    @mcp.tool()
    async def ask(conversation: _Conversation, question: NonBlank, context: _Context) -> Answered:
        """Ask the memory. The policy searches it before it answers."""
        response = f"resp_{secrets.token_hex(16)}"
        async with _tool_errors(), server.use(conversation, owner_of(context)) as memory:
            answer = await memory.ask(question, response)
        entries = [entry.text for entry in answer.entries]
        return Answered(answer=answer.text, entries=entries, response=response)

    @mcp.resource("memory://{conversation}", mime_type="application/json")
    async def memory(conversation: str, context: _Context) -> str:
        """Return the scratchpad and entries of a memory."""
        try:
            await server.in_thread(server.log.info, conversation, owner_of(context))
        except NotFoundError as error:
            raise ResourceNotFoundError(str(error)) from error
        contents = await server.in_thread(server.log.memory_at, conversation)
        entries = [entry_object(entry) for entry in contents.entries.values()]
        found = {"conversation": conversation, "scratchpad": contents.scratchpad}
        return json.dumps({**found, "entries": entries})

    return mcp


def mcp_routes(mcp: MCPServer[Any]) -> list[BaseRoute]:
    """Return the route `PATH`, stateless so that any gateway can take each request.

    The server's ``session_manager`` must run.
    """
    # Hosts and origins are checked by RequestMiddleware.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = mcp.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, transport_security=security
    )
    return list(app.routes)


def serve_stdio(server: Conversations) -> None:
    """Serve the client on standard input and output until it disconnects."""

    async def run() -> None:
        try:
            await make_mcp(server, LOCAL).run_stdio_async()
        finally:
            await server.close()

    anyio.run(run)


@contextmanager
def _without_log_setup() -> Iterator[None]:
    """Undo the package's handler on the root logger, which would log text of clients."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


@asynccontextmanager
async def _tool_errors() -> AsyncIterator[None]:
    """Turn errors of ours into messages for the caller, and log the place of others."""
    try:
        yield
    except SERVE_ERRORS as error:
        raise ToolError(public_error(error)[2]) from error
    except Exception as error:
        LOGGER.error({"event": "mcp", **error_location(error)})
        raise

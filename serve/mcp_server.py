"""MCP server with the tools `remember`, `recall`, `ask`, `correct` and `forget`.

The protocol (2026-07-28) has no session: every tool takes the conversation's id from `remember`.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Route

from atommem.answering import Answer
from atommem.errors import DataError
from atommem.saved_memory import SCOPE
from atommem.serve import wire
from atommem.serve.conversation import Conversation
from atommem.serve.conversations import Conversations
from atommem.serve.items import text_item
from atommem.serve.middleware import LOCAL, LOGGER, error_location
from atommem.serve.openai_routes import response_id
from atommem.serve.schema import ConversationInfo, Event, NotFoundError, RequestKey

PATH = "/mcp"
_INSTRUCTIONS = (
    "A memory that a trained policy writes. Give it texts of any length with remember, and keep "
    "the conversation id that it returns, or use one scope (user, agent, session): all other tools "
    "need it. ask answers from memory; recall returns entries without an answer; correct replaces "
    "an entry; forget deletes an entry, or all that came from one text."
)
_Id = Annotated[wire.ConversationId, Field(description="As remember returned it; or give a scope.")]
_Scope = Annotated[wire.Value, Field(description="Scope in place of an id: the same in all calls.")]
_Text = Annotated[wire.Text, Field(description="The text: a message, a page, a whole document.")]
_NewId = Annotated[wire.ConversationId, Field(description="Conversation; empty starts a new one.")]
_Goal = Annotated[
    str,
    Field(
        max_length=4096,
        description="The questions that matter, one a line; for later texts, too. "
        "A policy that was trained with the questions in view needs it.",
    ),
    wire.CLEAN,
]
_AsIs = Annotated[bool, Field(description="Store the text as an entry as it is.")]
_SourceName = Annotated[wire.Name, Field(description="Name of the text in sources and for forget.")]
_Query = Annotated[str, Field(min_length=1, description="What the entries are about."), wire.CLEAN]
_Entry = Annotated[int, Field(description="The id of an entry.")]
_Reason = Annotated[wire.Name, Field(description="Why; the log keeps it.")]
_Source = Annotated[wire.Name, Field(description="Or a text's name, with all that came from it.")]
_EMPTY = "nothing was remembered in exactly this scope."
_Context = Context[Any, Any]


def exact(scope: Mapping[str, str]) -> dict[str, str | None]:
    """Return the metadata of the conversations of exactly this scope; none without a scope."""
    return {name: scope.get(name) for name in SCOPE} if scope else {}


class _Server(MCPServer[Any]):
    """Reads null as absent, and names wrong arguments in a line without the library's words."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        given = {key: value for key, value in arguments.items() if value is not None}
        for tool in await self.list_tools():
            unknown = given.keys() - tool.input_schema["properties"].keys()
            if tool.name == name and unknown:
                raise ToolError(f"{name}: it has no argument {min(unknown)}.")
        try:
            return await super().call_tool(name, given, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            faults = error.__cause__.errors()
            lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in faults]
            raise ToolError(f"{name}: {'; '.join(lines)}.") from error


def make_mcp(server: Conversations, owner: str | None = None) -> MCPServer[Any]:
    """Make an MCP server; without an `owner`, each request's key has one."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    mcp = _Server("atommem", instructions=_INSTRUCTIONS, version=version("atommem"))
    # The package logs texts of clients, by a handler on the root logger.
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)

    def owner_of(context: _Context) -> str:
        request: Any = context.request_context.request
        return str(request.state.owner) if owner is None else owner

    async def request_key(*parts: Any) -> RequestKey:
        """Return the key of a call: one after an equal call that failed continues it."""
        encoded = [repr(part).encode() for part in ("mcp", *parts)]
        return await run_in_threadpool(server.log.request_key, encoded, False)

    async def place(
        context: _Context, conversation: str, scope: Mapping[str, str]
    ) -> ConversationInfo | None:
        """Return the conversation, or else the newest of exactly this scope."""
        owner = owner_of(context)
        if conversation:
            info = await run_in_threadpool(server.log.info, conversation, owner)
            if not scope.items() <= info.metadata.items():
                raise DataError("the conversation is not of this scope. Give one of the two.")
            return info
        infos = partial(server.log.conversations, owner, where=exact(scope), limit=1)
        return next(iter(await run_in_threadpool(infos)), None) if scope else None

    @asynccontextmanager
    async def use(
        context: _Context, conversation: str, scope: Mapping[str, str] = {}
    ) -> AsyncIterator[Conversation]:
        async with _tool_errors():
            info = await place(context, conversation, scope)
            if info is None:
                raise NotFoundError("there is no such conversation. Give its id, or a used scope.")
        async with _tool_errors(info.id), server.use(info.id, info.owner) as held:
            yield held

    @mcp.tool()
    async def remember(
        text: _Text,
        context: _Context,
        conversation: _NewId = "",
        goal: _Goal = "",
        name: _SourceName = "",
        user: _Scope = "",
        agent: _Scope = "",
        session: _Scope = "",
        verbatim: _AsIs = False,
    ) -> dict[str, Any]:
        """Read a text into a memory; a policy decides what to keep. Returns when it is read.

        `written` counts the entries that it created, updated and deleted, `cut` is the share of
        what it wrote that limits of the memory cut. With `verbatim`, no policy decides.
        """
        async with _tool_errors():
            if not text.strip():
                raise DataError("text: it is blank. Give the text to read.")
            owner, scope = owner_of(context), wire.scope_of(user, agent, session)
            key = await request_key(
                "remember", owner, conversation, goal, name, text, verbatim, *scope.items()
            )
            once, exactly = key.derive("conversation"), exact(scope)
            create = partial(server.log.create, owner, scope, once, scope=exactly)
            if (info := await place(context, conversation, scope)) is None:
                info = await run_in_threadpool(create)
            if goal and info.metadata.get("goal") != goal:
                metadata = {**info.metadata, "goal": goal}
                await run_in_threadpool(server.log.update, info.id, owner, metadata)
        async with use(context, info.id) as memory, server.settled(key):
            if verbatim:
                operations = await memory.keep(text_item(text, name), key)
                found = {"written": {"create": 1}, "entry": operations[0]["entry_id"]}
            else:
                (event,) = await memory.add([text_item(text, name)], key)
                tell = partial(context.report_progress, total=event.chunks)
                found = await memory.read_all(tell)
            entries = len(memory.session.memory.contents.entries)
        return {"conversation": info.id, "entries": entries, **found}

    @mcp.tool()
    async def recall(
        query: _Query,
        context: _Context,
        conversation: _Id = "",
        user: _Scope = "",
        agent: _Scope = "",
        session: _Scope = "",
    ) -> list[dict[str, Any]]:
        """Return the entries for a query; calls no model. A scope has those of all that match."""
        scope = wire.scope_of(user, agent, session)
        if scope and not conversation:
            async with _tool_errors():
                found = await server.recall(owner_of(context), scope, query)
        else:
            async with use(context, conversation, scope) as memory:
                found = [(memory.id, *hit) for hit in await memory.recall(query)]
        return [
            {
                "id": entry.id,
                "text": entry.text,
                "score": score,
                "source": entry.source.piece if entry.source else None,
                **({"conversation": name} if scope else {}),
            }
            for name, entry, score in found
        ]

    @mcp.tool()
    async def correct(
        entry: _Entry,
        text: wire.NonBlank,
        context: _Context,
        conversation: _Id = "",
        user: _Scope = "",
        agent: _Scope = "",
        session: _Scope = "",
        reason: _Reason = "",
    ) -> dict[str, Any]:
        """Replace the text of an entry. The log keeps what it was, and the reason."""
        async with use(context, conversation, wire.scope_of(user, agent, session)) as memory:
            await memory.edit(entry, text, reason)
            return {"id": entry, "text": memory.session.memory.contents.entries[entry].text}

    @mcp.tool()
    async def forget(
        context: _Context,
        conversation: _Id = "",
        entry: _Entry | None = None,
        source: _Source = "",
        user: _Scope = "",
        agent: _Scope = "",
        session: _Scope = "",
        reason: _Reason = "",
    ) -> dict[str, list[int]]:
        """Delete an entry, or all that was written while a text was read. The log keeps both."""
        if (entry is None) == (not source):
            raise ToolError("give an entry's id or a source's name, and not both.")
        async with use(context, conversation, wire.scope_of(user, agent, session)) as memory:
            deletes = memory.forget(source) if entry is None else memory.edit(entry, None, reason)
            done = await deletes
        return {"entries": [item["entry_id"] for item in done if item["kind"] == "delete"]}

    @mcp.tool()
    async def ask(
        question: wire.NonBlank,
        context: _Context,
        conversation: _Id = "",
        user: _Scope = "",
        agent: _Scope = "",
        session: _Scope = "",
    ) -> dict[str, Any]:
        """Ask the memory. The policy searches it before it answers, or answers null.

        A `note` says why an answer may not be one from memory.
        """
        scope = wire.scope_of(user, agent, session)
        async with _tool_errors():
            if scope and not await place(context, conversation, scope):
                return {"answer": None, "note": _EMPTY, "entries": []}
        async with use(context, conversation, scope) as memory:
            key = await request_key("ask", memory.owner, memory.id, question)
            response = await response_id(server.log, key)
            async with server.settled(key):
                asked = memory.ask(text_item(question), response, key)
                ask, *_, answer = [event async for event in asked]
        assert isinstance(answer, Answer)
        assert isinstance(ask, Event)
        entries = [entry.text for entry in answer.entries]
        note = {"note": answer.note} if answer.note else {}
        return {"answer": answer.text, **note, "entries": entries, "response": ask.response}

    return mcp


def mcp_routes(mcp: MCPServer[Any]) -> list[BaseRoute]:
    """Return the route `PATH`, stateless so that any gateway can take each request."""
    # Hosts and origins are checked by RequestMiddleware.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    options: Any = {"streamable_http_path": PATH, "stateless_http": True}
    app = mcp.streamable_http_app(**options, transport_security=security)
    # Without sessions, the stream that a GET opens would stay empty and never end: 405.
    routes = [route for route in app.routes if isinstance(route, Route)]
    return [Route(route.path, route.endpoint, methods=["POST"]) for route in routes]


def serve_stdio(server: Conversations) -> None:
    """Serve the client on standard input and output until it disconnects."""

    async def run() -> None:
        try:
            await make_mcp(server, LOCAL).run_stdio_async()
        finally:
            await server.model.runtime.close()

    anyio.run(run)


@asynccontextmanager
async def _tool_errors(conversation: str = "") -> AsyncIterator[None]:
    """Turn errors of ours into messages for the caller, and log the place of others."""
    try:
        yield
    except wire.SERVE_ERRORS as error:
        place = f" (conversation {conversation})" if conversation else ""
        raise ToolError(wire.public_error(error)[2] + place) from error
    except Exception as error:
        LOGGER.error({"event": "mcp", **error_location(error)})
        raise

"""Conversations in use: sessions whose every step is committed to the log before it counts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

from prometheus_client import Counter
from starlette.concurrency import run_in_threadpool

from atommem.actions import CREATE, STOP_ACTION, first
from atommem.answering import Answer, answer_steps
from atommem.episode import Observation, Step
from atommem.errors import DataError, PromptTooLongError
from atommem.memory.log import Found, Operation, is_part, to_json
from atommem.rollout import Session
from atommem.serve import schema
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.items import (
    Item,
    ask_event,
    item_event,
    item_of,
    lines_of,
    only_asks,
    repeats,
    signature,
    texts_of,
    with_id,
)
from atommem.serve.schema import ConflictError, Event, NotFoundError, RequestKey
from atommem.serve.served_model import NO_GOAL, STAGES, ServedModel, Written
from atommem.trace import step_record

CONFLICTS = Counter("atommem_conflicts", "Commits that lost to another gateway")
Operations = Sequence[Mapping[str, Any]]
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def _repeated(method: _Method) -> _Method:
    """Repeat a method on top of each commit of another gateway that was faster."""

    @wraps(method)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return await method(self, *args, **kwargs)
            except ConflictError:
                await self.reload_after_conflict()

    return cast(_Method, run)


class Conversation:
    """A conversation in use, by one task at a time (`Conversations.use`).

    Every method commits before it returns; a step that raises or is cancelled leaves nothing.
    """

    session: Session
    state: schema.LogState

    def __init__(self, model: ServedModel, log: ConversationLog, name: str, owner: str) -> None:
        self.id, self.owner = name, owner
        self.lock = asyncio.Lock()
        self.is_open = False
        self._model, self._log = model, log
        self._observations: dict[int, Sequence[Observation]] = {}

    async def refresh(self) -> None:
        """Load the session again if another gateway has changed it; commits notice it anyway."""
        newest = await run_in_threadpool(self._log.version, self.id, self.owner)
        if newest != self.state.version:
            await self.reload()

    async def recall(self, query: str, k: int | None = None, source: str = "") -> list[Found]:
        """Return the entries that the policy would be shown for a query, best first."""
        await self.refresh()
        return await self.session.memory.search(query, k, source)

    async def reload(self) -> None:
        """Load the session from the log; entries of another embedder are embedded again."""
        self.is_open = False
        agent, embedder = self._model.agent, self._model.agent.embedder.id
        state, saved = await run_in_threadpool(self._log.load, self.id, self.owner, embedder)
        self.session, self.state = await Session.restore(agent, saved), state
        self.is_open = True

    async def reload_after_conflict(self) -> None:
        CONFLICTS.inc()
        await self.reload()

    @_repeated
    async def add(
        self,
        items: Sequence[Item],
        request: RequestKey | None = None,
        replaced: Collection[str] = (),
        *,
        history: bool = False,
    ) -> list[Event]:
        """Commit items, which `read` reads, and delete those with the names `replaced`.

        Items that it has already are not added again; texts that repeat entries and bare questions
        of a `history` are kept and not read.
        """
        if not items and not replaced:
            return []
        if before := await self._written_before(request, len(items)):
            return before
        ids = [item["id"] for item in items if "id" in item]
        held = await run_in_threadpool(self._log.items, self.id, ids=ids) if ids else []
        known = {event.item: event for event in held}
        goal, found = await self._goal(), list[Event]()
        for given in items:
            event = known.get(given.get("id"))
            if event is not None and signature(item_of(event)) == signature(given):
                found.append(event)
                continue
            if event is not None:  # another item has its id
                given = {name: value for name, value in given.items() if name != "id"}
            new = item_event(with_id(given), goal)
            held_texts = (entry.text for entry in self.session.memory.entries())
            is_new = not (history and only_asks(given)) and not repeats(given, held_texts)
            found.append(await self._with_chunks(new) if is_new else new)
            known[new.item] = found[-1]
        added: list[Event] = [event for event in found if not event.version]
        added += await self._replaced(replaced)
        done = iter(await self._commit(added, request) if added else ())
        return [event if event.version else next(done) for event in found]

    @_repeated
    async def keep(
        self, text: Item, request: RequestKey | None = None, replaced: Collection[str] = ()
    ) -> Operations:
        """Make a text an entry as it is, without the policy, and delete those named `replaced`.

        Raises DataError if a rule of the memory refuses it.
        """
        if before := await self._written_before(request):
            return before[0].operations
        await self.refresh()
        gone = await self._replaced(replaced)
        new, (given,) = item_event(with_id(text), ""), texts_of(text)
        piece = f"{new.source}, as given"
        written = await self.session.memory.keep(given, self._last_step, piece)
        if written[0].entry_id is None:
            raise DataError(f"the memory does not take this text: {written[0].reason}.")
        # All operations go with the first event, in the order in which they apply.
        done = [*(item for event in gone for item in event.operations), *map(to_json, written)]
        events = [replace(new, operations=done), *(replace(each, operations=()) for each in gone)]
        return (await self._commit(events, request))[0].operations

    async def _replaced(self, names: Collection[str]) -> list[Event]:
        """Delete the texts with these names; return the events of it."""
        if not names:
            return []
        await self.refresh()
        find = partial(self._log.items, self.id, ("item",), sources=names)
        earlier, events = await run_in_threadpool(find), list[Event]()
        for name in dict.fromkeys(names):
            if gone := [item for item in earlier if item.source == name]:
                events += await self._deleted(gone, name)
        return events

    async def _goal(self) -> str:
        # Another gateway may have changed the goal since this one loaded it.
        info = await run_in_threadpool(self._log.info, self.id, self.owner)
        return info.metadata.get("goal", "")

    async def _with_chunks(self, event: Event) -> Event:
        return replace(event, chunks=len(await self._model.observations(event)))

    async def read(self) -> AsyncIterator[Step]:
        """Read the unread items, one step a chunk; yield each committed step.

        After PromptTooLongError the rest of its item is skipped; after OutageError it continues.
        """
        while self.state.unread:
            item, (read, _) = next(iter(self.state.unread.items()))
            observations = await self._observations_in(item)
            # The number of chunks may differ from the log's under another checkpoint.
            self.state.unread[item] = read, len(observations)
            if read >= len(observations):
                await self._stop(item, "read under another checkpoint")
                continue
            try:
                step = await self._model.step(self.session, observations[read])
                await self._commit([_step_event(step, item)])
                if first(step.actions, STOP_ACTION.name) and item in self.state.unread:
                    await self._stop(item, "the policy ended the reading")
            except ConflictError:
                await self.reload_after_conflict()
            except PromptTooLongError as error:
                await self.reload()
                await self._stop(item, str(error), unread=True)
                raise
            else:
                yield step

    async def read_all(self, told: Callable[[int], Any] | None = None) -> dict[str, Any]:
        """Read what is unread; return what that wrote, with a note if it lacked a goal."""
        written = Written()
        async for step in self.read():
            written.add(step)
            if told is not None:
                await told(written.steps)
        found = written.report()
        blind = self._model.needs_goal and written.steps and not any(found["written"].values())
        return found | ({"note": NO_GOAL} if blind and not await self._goal() else {})

    async def ask(
        self,
        question: Item,
        response: str,
        request: RequestKey | None = None,
        streams: bool = False,
        echo: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Event | Step | Answer]:
        """Ask a question after reading what is unread; raises like `read`.

        Unless it only asks, the question is a text to be read after its answer, with the next call.

        Yields the committed question, each committed step, and last the answer. An error leaves the
        question in the log without an answer. A `request` that asked before continues, or gets its
        committed answer. With `streams` the question is committed at once, not with its first step.
        """
        ask = ask_event(question, response, echo or {})
        if self._model.reads_questions and not only_asks(ask.body["item"]):
            body = {**ask.body, "questions": lines_of(await self._goal())}
            ask = await self._with_chunks(replace(ask, body=body))
        renews = request is None or request.renews
        if streams or not renews or self.state.unread:
            (ask,) = await self._append([ask], request)
            yield ask
        async for step in self.read():
            yield step
        while (answer := await self._committed_answer(ask, request)) is None:
            try:
                async for done in self._answer(ask, request):
                    ask = done if isinstance(done, Event) else ask
                    yield done
                return
            except ConflictError:
                await self.reload_after_conflict()
            except (Exception, asyncio.CancelledError):
                if not ask.version:
                    await self._append([ask], request)
                raise
        yield answer

    async def _answer(
        self, ask: Event, request: RequestKey | None
    ) -> AsyncIterator[Event | Step | Answer]:
        def take_step(observation: Observation) -> Awaitable[Step]:
            return self._model.step(self.session, replace(observation, origin=ask.source))

        async for step, answer in answer_steps(self.session, ask.body["question"], take_step):
            new = [] if ask.version else [ask]
            version = ask.version or self.state.version + 1
            events = [*new, _step_event(step, version)]
            if answer is not None:
                held = [entry.id for entry in answer.entries]
                body = {"text": answer.text, "note": answer.note, "entries": held}
                name, given = schema.answer_id(str(ask.response)), ask.response
                events.append(Event("answer", body, parent=version, response=given, item=name))
            done = await self._commit(events, request if new else None)
            if new:
                ask = done[0]
                yield ask
            yield step
            if answer is not None:
                yield answer

    async def _committed_answer(self, ask: Event, request: RequestKey | None) -> Answer | None:
        """Return the answer that a repeated request got before, without its steps."""
        if request is None or request.renews:
            return None
        _, _, answer = await run_in_threadpool(self._log.response, str(ask.response), self.owner)
        if answer is None:
            return None
        held = self.session.memory.contents.entries
        entries = tuple(held[entry] for entry in answer.body["entries"] if entry in held)
        text, note = answer.body["text"], answer.body.get("note", "")
        return Answer(ask.body["question"], text, entries, "", (), note)

    @_repeated
    async def edit(
        self, entry: int, text: str | None, reason: str = "", request: RequestKey | None = None
    ) -> Operations:
        """Replace the text of an entry, or delete it (None); return the operations."""
        if before := await self._written_before(request):
            return before[0].operations
        await self.refresh()
        if entry not in self.session.memory.contents.entries:
            raise NotFoundError(f"there is no entry {entry} in this conversation.")
        written = await self.session.memory.edit(entry, text, self._last_step, reason)
        return (await self._commit([_edit({}, written)], request))[0].operations

    @_repeated
    async def forget(self, source: str = "", item: str = "") -> Operations:
        """Delete the texts of a source, or one item, with what was written at their steps.

        Raises NotFoundError if nothing came from it.
        """
        kinds, ids = (schema.ITEMS, [item]) if item else (("item", "ask"), [])
        items = await run_in_threadpool(self._log.items, self.id, kinds, ids=ids)
        if found := [each for each in items if item or is_part(each.source, source)]:
            new = await self._deleted(found, source or found[0].source)
        else:
            written = await self.session.memory.forget(source, self._last_step) if source else ()
            if not written:
                raise NotFoundError(f"nothing in this conversation came from {source or item!r}.")
            new = [_edit({"forget": source}, written)]
        return (await self._commit(new))[0].operations

    async def _deleted(self, items: Sequence[Event], source: str) -> list[Event]:
        """Forget what was written while items were read; return the events of their deletion."""
        find = partial(self._log.events, self.id, ("step",), parents=[e.version for e in items])
        read = [step.step or 0 for step in await run_in_threadpool(find)]
        done = [each for item in items for each in item.operations]
        made = [each["entry_id"] for each in done if each["kind"] == CREATE]  # by `keep`
        shown = {"steps_shown": read, "entries": made}
        written = await self.session.memory.forget(source, self._last_step, **shown)
        new = [Event("deleted", {"item": item.item}, parent=item.version) for item in items]
        return [replace(new[0], operations=[to_json(each) for each in written]), *new[1:]]

    @property
    def _last_step(self) -> int:
        return max(0, self.session.steps - 1)

    async def _observations_in(self, item: int) -> Sequence[Observation]:
        """Return the observations of an item in the log; those of the last one are cached."""
        if item not in self._observations:
            (event,) = await run_in_threadpool(self._log.events, self.id, after=item - 1, limit=1)
            self._observations = {item: await self._model.observations(event)}
        return self._observations[item]

    async def _stop(self, item: int, reason: str, *, unread: bool = False) -> None:
        body = {"reason": reason, "unread": unread}
        await self._append([Event("stopped", body, parent=item)])

    @_repeated
    async def _append(self, new: Sequence[Event], request: RequestKey | None = None) -> list[Event]:
        """Commit events, or return those that this request committed before."""
        before = await self._written_before(request, len(new))
        return before or await self._commit(new, request)

    async def _written_before(self, request: RequestKey | None, count: int = 1) -> list[Event]:
        return await run_in_threadpool(self._log.written_by, request, self.id, count)

    async def _commit(self, new: Sequence[Event], request: RequestKey | None = None) -> list[Event]:
        memory, embedder = self.session.memory, self._model.agent.embedder.id
        made = partial(replace, created_at=int(time.time()), checkpoint=self._model.checkpoint)
        done = [
            made(event, version=version, embedder=embedder)
            for version, event in enumerate(new, self.state.version + 1)
        ]
        written = [item for event in new for item in event.operations if item.get("after")]
        cached = None
        if self.state.embedder not in (None, embedder):
            cached = memory.vectors()
        elif written:
            changed = {item.get("entry_id") for item in written}
            cached = memory.vectors(memory.contents.entries.keys() & changed)
        with STAGES.labels("commit").time():
            await asyncio.wrap_future(self._log.commit(self.id, done, cached, request))
        for event in done:
            self.state.advance(event)
        return done


def _edit(body: Mapping[str, Any], written: Sequence[Operation]) -> Event:
    return Event("edit", body, operations=[to_json(operation) for operation in written])


def _step_event(step: Step, parent: int) -> Event:
    return Event(
        "step",
        step_record(replace(step, operations=()), tokens=True),
        step=step.index,
        parent=parent,
        tokens=step.completion_tokens,
        operations=[to_json(operation) for operation in step.operations],
    )

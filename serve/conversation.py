"""One conversation in use: what is added, read, asked and changed, each committed before it counts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atommem.episode import Step
from atommem.errors import PromptTooLongError
from atommem.face.asking import asked
from atommem.memory.log import Entry, Operation
from atommem.memory.memory import WorkingMemory
from atommem.observation import Observation
from atommem.serve.log_rows import (
    About,
    ConflictError,
    Event,
    Loaded,
    RequestKey,
    called,
    is_called,
)
from atommem.serve.logged_session import LoggedSession
from atommem.serve.shared import Shared
from atommem.session import Session
from atommem.trace import step_record

OnStep = Callable[[Step], Awaitable[None]]
OnTaken = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Answered:
    """An answer, as it was committed.

    Attributes:
        text: None where the policy gave none.
        entries: What was shown of the memory at the step that answered.
        steps: All steps of answering.
    """

    text: str | None
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]


class Conversation(LoggedSession):
    """One conversation while it is in use. Its methods are for one task at a time (`Conversations.use`).

    Every method commits what it did before it returns. What is raised, or cancelled, in the middle of a step leaves the
    log without that step; the session is then taken up from the log again.
    """

    async def add(
        self, items: Sequence[dict[str, Any]], request: RequestKey | None = None
    ) -> list[Event]:
        """Take items to be read; `read` reads them. They stay, whatever becomes of this process."""
        policy = self._shared.policy
        goal = (await self._about()).metadata.get("goal", "")
        questions = [line for line in goal.splitlines() if line.strip()]
        new = []
        for item in items:
            observations = await asyncio.to_thread(policy.reading, item["parts"], questions)
            new.append(Event("item", {**item, "questions": questions}, chunks=len(observations)))
        return await self._once(new, request)

    async def read(self, on_step: OnStep | None = None) -> None:
        """Read what has been taken and not been read, one turn a chunk.

        Raises:
            PromptTooLongError: A chunk does not fit the policy's context; the rest of its item is not read.
            OutageError: What was read before stays read, and reading goes on there.
        """
        while self.log.unread:
            of, (done, _) = next(iter(self.log.unread.items()))
            observations = await self._observations(of)
            self.log.unread[of] = done, len(observations)  # cut otherwise, under another checkpoint
            if done >= len(observations):
                await self.note(
                    Event("stopped", {"reason": "read under another checkpoint"}, of=of)
                )
                continue
            try:
                step = await self._turn(observations[done])
                await self._commit([_step_event(step, of)], step.operations)
            except ConflictError:
                await self._reload()
                continue
            except PromptTooLongError as error:
                await self._reload()
                await self.note(Event("stopped", {"reason": str(error)}, of=of))
                raise
            if on_step is not None:
                await on_step(step)

    async def ask(
        self,
        question: str,
        response: str,
        on_step: OnStep | None = None,
        on_taken: OnTaken | None = None,
        request: RequestKey | None = None,
    ) -> Answered:
        """Ask, after what is unread has been read.

        Args:
            question: As asked.
            response: The answer's id.
            on_step: Called after every step, reading and answering, once it is committed.
            on_taken: Called once the question is.
            request: Where it asked before, that question is answered, or its answer told again, without the steps.

        Raises:
            ...: As of `read`. The question is in the log then, without an answer.
        """
        event = Event("ask", {"question": question}, response=response)
        ask: Event | None = None
        if on_taken is not None or self.log.unread:
            ask = await self.note(event, request)
        if on_taken is not None:
            await on_taken()
        await self.read(on_step)
        steps: list[Step] = []
        entries: tuple[Entry, ...] = ()

        async def turn(observation: Observation) -> Step:
            nonlocal entries
            held = self.session.memory.contents.entries
            entries = tuple(held[item.entry_id] for item in self.session.memory.view().retrieved)
            return await self._turn(observation)

        async def keep(step: Step, ended: bool, answer: str | None) -> None:
            # One commit: the question where nobody was told of it, its step, and the answer where it gave one.
            nonlocal ask
            first, of = ([event], self.log.version + 1) if ask is None else ([], ask.version)
            body = {"text": answer, "entries": [entry.id for entry in entries]}
            last = [Event("answer", body, of=of, response=response)] if ended else []
            done = await self._commit(
                [*first, _step_event(step, of), *last],
                step.operations,
                request=request if first else None,
            )
            ask = done[0] if ask is None else ask
            steps.append(step)
            if on_step is not None:
                await on_step(step)

        async def once() -> Answered:
            nonlocal ask
            if ask is None:
                ask = next(iter(await self._before(request)), None)
            if (
                request is not None
                and ask is not None
                and (told := await self._answer_to(ask)) is not None
            ):
                return told
            try:
                text, _ = await asked(self._shared.policy.environments, question, turn, keep)
            except ConflictError:
                raise
            except BaseException:
                if ask is None:  # it stays, without an answer
                    await self.note(event, request)
                raise
            return Answered(text, entries, tuple(steps))

        # Where another gateway was faster it is asked again on top of that; the steps that were kept stay.
        return await self._again(once)

    async def change(
        self,
        event: Event,
        work: Callable[[WorkingMemory, int], Awaitable[Sequence[Operation]]],
        request: RequestKey | None = None,
        *,
        stop: str | None = None,
    ) -> list[Mapping[str, Any]]:
        """What the owner does to the memory: an event with its operations, which are returned as the log has them.

        Args:
            event: What was done.
            work: Does it, given the memory and the step that it counts to.
            request: See `ask`.
            stop: Texts of this name are not read any further.
        """

        async def once() -> list[Event]:
            if before := await self._before(request):
                return before
            stopped = [
                Event("stopped", {"reason": "taken out by its owner"}, of=of)
                for of in self.log.unread
                if stop is not None and is_called(await self._item(of), stop)
            ]
            written = await work(self.session.memory, max(0, self.session.turns - 1))
            return await self._commit([event, *stopped], written, request=request)

        done = (await self._again(once))[0]
        log = self._shared.log
        return await self._shared.in_thread(
            lambda: log.operations(self.id, 0, version=done.version)
        )

    async def forget(self, name: str) -> list[Mapping[str, Any]]:
        """Take out what was written while texts of this name were read, and read no more of them; see `change`."""
        return await self.change(
            Event("edit", {"forget": name}),
            lambda memory, step: memory.forget(name, step),
            stop=name,
        )

    async def edit(
        self, entry: int, text: str | None, request: RequestKey | None = None
    ) -> list[Mapping[str, Any]]:
        """Replace the text of an entry, or delete it (None); see `change`."""
        return await self.change(
            Event("edit"), lambda memory, step: memory.edit(entry, text, step), request
        )

    async def recall(self, query: str) -> list[tuple[Entry, float]]:
        """The entries that the policy would be shown for a query, best first, with their scores.

        No model is asked, and it leaves no trace in the log.
        """
        return await self.session.memory.search(query)

    async def move(self) -> bool:
        """Go on under this server's checkpoint and embedder; whether they are others. The session was opened so."""
        shared, log = self._shared, self.log
        if log.checkpoint == shared.policy.checkpoint and log.embedder in (
            None,
            shared.policy.agent.embedder.id,
        ):
            return False
        if log.checkpoint is None:
            return False
        cached = self.session.memory.vectors()
        before = {"checkpoint": log.checkpoint, "embedder": log.embedder}
        await self._commit([Event("moved", before)], cached=cached, snapshot=True)
        self._shown = None
        log.checkpoint, log.embedder = shared.policy.checkpoint, shared.policy.agent.embedder.id
        return True

    async def note(self, event: Event, request: RequestKey | None = None) -> Event:
        """An event that changes nothing."""
        return (await self._once([event], request))[0]

    async def _answer_to(self, ask: Event) -> Answered | None:
        """The answer that the log has; its entries as they are now."""
        log = self._shared.log
        found = await self._shared.in_thread(
            lambda: log.events(self.id, ("answer",), after=ask.version)
        )
        answer = next((event for event in found if event.of == ask.version), None)
        if answer is None:
            return None
        held = self.session.memory.contents.entries
        entries = tuple(held[entry_id] for entry_id in answer.body["entries"] if entry_id in held)
        return Answered(answer.body["text"], entries, ())

    async def _observations(self, of: int) -> Sequence[Observation]:
        """An item as it is shown."""
        if self._shown is None or self._shown[0] != of:
            shared = self._shared
            item = await self._item(of)
            observations = await asyncio.to_thread(
                shared.policy.reading, item.body["parts"], item.body["questions"]
            )
            self._shown = (
                of,
                [
                    replace(shown, origin=f"{called(item)}, {shown.origin}")
                    for shown in observations
                ],
            )
        return self._shown[1]

    async def _about(self) -> About:
        """What it is now: another gateway may have changed it."""
        return await self._shared.in_thread(self._shared.log.about, self.id, self.owner)

    async def _item(self, of: int) -> Event:
        (item,) = await self._shared.in_thread(
            lambda: self._shared.log.events(self.id, ("item",), after=of - 1, limit=1)
        )
        return item

    async def _turn(self, observation: Observation) -> Step:
        """A turn, not committed yet."""
        shared = self._shared
        async with shared.turn():
            with shared.metrics.stage("turn"):
                deadline = asyncio.get_running_loop().time() + shared.turn_seconds
                step = await self.session.turn(observation, affinity=self.id, deadline=deadline)
        shared.metrics.sampled(step.prompt_tokens, step.completion_tokens)
        return step


def _step_event(step: Step, of: int) -> Event:
    body = step_record(replace(step, operations=()), tokens=True)
    return Event("step", body, step=step.index, of=of, tokens=step.completion_tokens)


class PassingConversation(Conversation):
    """One that lives for a single call: in this process's memory, in no log."""

    def __init__(self, shared: Shared, metadata: dict[str, str]) -> None:
        super().__init__(shared, f"call_{secrets.token_hex(16)}", "")
        self._session = Session(shared.policy.agent, self.id)
        self._loaded = Loaded(
            About(self.id, "", 0, metadata), 0, 0, 0, 0, None, None, None, [], None, {}
        )
        self._items: dict[int, Event] = {}

    def drop(self) -> None:
        """There is no log to take it up from."""

    async def _about(self) -> About:
        return self.log.about

    async def _item(self, of: int) -> Event:
        return self._items[of]

    async def _commit(
        self, new: Sequence[Event], written: Sequence[Operation] = (), **_: Any
    ) -> list[Event]:
        done = [
            replace(event, version=number) for number, event in enumerate(new, self.log.version + 1)
        ]
        self._items |= {event.version: event for event in done if event.kind == "item"}
        self._take(done, self.log.seq + len(written))
        return done

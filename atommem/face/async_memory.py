"""A memory to use: read texts into it, ask it questions, look at it, keep it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from atommem.embedding.embedder import Embedder
from atommem.episode import Step
from atommem.errors import ConfigError, DataError, TraceError
from atommem.face import saved
from atommem.face.answers import Answer, Reading
from atommem.face.asking import asked
from atommem.face.engine import Engine
from atommem.face.texts import text_of
from atommem.memory.log import Entry, Operation
from atommem.observation import Observation
from atommem.policy.contract import Policy
from atommem.session import Session

Progress = Callable[[int, int], None]
"""Called with how many chunks have been read, and how many there are."""


class AsyncMemory:
    """A memory that a policy fills by reading and answers from; `atommem.Memory` is the same without ``await``.

    Every step is a turn of one `Session`, with the observations of the environment that the policy was trained in:
    prompts are those of training, token for token. One reading or asking runs at a time, others wait.

    Args:
        policy: A folder of ours, whose settings come with it; any other model folder or hub name; the URL of a vLLM
            server, or several of one model; the URL of a chat server (``api="chat"``); or a `Policy`.
        api: How a server is asked: ``completions`` (token ids) or ``chat`` (messages).
        model: The model's name on the server, where it has several.
        tokenizer: Of a server: the folder or hub name of its model. If it is a folder of ours, the settings come from
            there. For a `Policy` that has none, the tokenizer.
        max_in_flight: Most requests at the same time, of all forks together.
        embedder: The name of a kind of embedder, as a setting; or an `Embedder`.
        settings: Fields of `MemoryConfig`, `EmbedderConfig`, `Sampling` and of the environment's configuration by name
            (``chunk_tokens=2000``, ``temperature=0``), and ``chat_template_kwargs``.

    The constructor loads models, and blocks while it does: `open` does so in a thread.

    Raises:
        ConfigError: A setting is unknown or out of range, or something is missing.
        PolicyError: The model or tokenizer cannot be loaded.
        OutageError: The embedding server is out of reach.
    """

    def __init__(
        self,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        api: str = "completions",
        model: str | None = None,
        tokenizer: Any = None,
        max_in_flight: int = 64,
        embedder: str | Embedder | None = None,
        **settings: Any,
    ) -> None:
        engine = Engine.open(
            policy,
            api=api,
            model=model,
            tokenizer=tokenizer,
            max_in_flight=max_in_flight,
            embedder=embedder,
            **settings,
        )
        self._start(engine, Session(engine.agent))

    def _start(self, engine: Engine, session: Session, readings: Iterable[Reading] = ()) -> None:
        self._engine = engine
        self._session = session
        self._readings = list(readings)
        self._lock = asyncio.Lock()

    @classmethod
    def _of(cls, engine: Engine, session: Session, readings: Iterable[Reading]) -> Self:
        memory = cls.__new__(cls)
        memory._start(engine, session, readings)
        return memory

    @classmethod
    async def open(cls, *arguments: Any, **settings: Any) -> Self:
        """The constructor in a thread: the event loop stays free while models are loaded."""
        return await asyncio.to_thread(cls, *arguments, **settings)

    @classmethod
    async def load(
        cls,
        folder: str | os.PathLike[str],
        policy: Any = None,
        *,
        reembed: bool = False,
        **settings: Any,
    ) -> Self:
        """A memory that was saved.

        Args:
            folder: What `save` wrote.
            policy: As of the constructor; unset is the one that the memory was saved with.
            reembed: Take another embedder than the memory's, and embed all of its entries anew.
            settings: As of the constructor. What was given by name when the memory was made still holds.

        Raises:
            DataError: The folder holds no memory, or a log that contradicts itself.
            ConfigError: It was saved under another embedder, or with a policy that has no name.
            ...: And as of the constructor.
        """
        stored = await asyncio.to_thread(saved.read, folder)
        engine = await asyncio.to_thread(saved.open_engine, stored, policy, settings, reembed)
        return await cls.taken_up(stored, engine, reembed)

    @classmethod
    async def taken_up(cls, stored: saved.Saved, engine: Engine, reembed: bool = False) -> Self:
        """A memory that was saved, over an engine that is open; which is closed where that fails. Raises as `load`."""
        try:
            session = await Session.take_up(engine.agent, stored.session, reembed=reembed)
        except BaseException as error:
            await engine.close()
            if isinstance(error, TraceError):
                raise DataError(f"the memory is damaged: {error}") from error
            raise
        return cls._of(engine, session, stored.readings)

    async def read(
        self,
        source: str | Path | Iterable[str],
        *,
        questions: str | Sequence[str] = (),
        goal: str | None = None,
        name: str | None = None,
        again: bool = True,
        progress: Progress | None = None,
    ) -> Reading:
        """Read a text, chunk by chunk; each is one step.

        A reading that was interrupted goes on where it stopped when the same text is given again.

        Args:
            source: A text, which is cut as in training; the pieces of one, each a chunk if it is not too long; or
                the `pathlib.Path` of a file.
            questions: Those that will be asked, as far as they are known: the policy sees them while it reads. Without
                any it reads blind, for which it should have been trained (`questions_shown`).
            goal: In their place, what to look for, in words.
            name: What to call it where the source of an entry is named; a file's name by default.
            again: If not, a text that was read to its end is not read a second time.
            progress: Called after every chunk.

        Raises:
            DataError: There is no such file, it is no text, or empty.
            OutageError, PolicyError: Of the policy or embedder; what was read before is kept.
        """
        self._engine.check_open()
        asked = [questions] if isinstance(questions, str) else list(questions)
        if goal is not None and asked:
            raise ConfigError(
                "read() was given questions and a goal: the goal takes the place of questions."
            )
        async with self._lock:
            text, own = await asyncio.to_thread(text_of, source)
            shown = asked if goal is None else [goal]
            observations = await asyncio.to_thread(self._engine.environments.reading, text, shown)
            reading = self._reading(observations, own if name is None else name, again)
            for observation in observations[len(reading.steps) :]:
                origin = ", ".join(part for part in (reading.name, observation.origin) if part)
                step = await self._session.turn(replace(observation, origin=origin or None))
                reading = self._readings[-1] = replace(reading, steps=(*reading.steps, step.index))
                if progress is not None:
                    progress(len(reading.steps), reading.chunks)
        return reading

    def _reading(self, observations: Sequence[Observation], name: str, again: bool) -> Reading:
        """The one that goes on: the last one, if it was interrupted in this text; else a new one."""
        new = Reading(name, len(observations), _digest(observations))
        if (
            self._readings
            and not self._readings[-1].complete
            and self._readings[-1].sha256 == new.sha256
        ):
            return self._readings[-1]
        done = [
            reading
            for reading in self._readings
            if reading.complete and reading.sha256 == new.sha256
        ]
        if done and not again:
            return done[-1]
        self._readings.append(new)
        return new

    async def ask(self, question: str, *, keep: bool = True) -> Answer:
        """Ask the memory. The policy may look up several things before it answers (``max_reads``).

        Args:
            question: One question.
            keep: These steps are the memory's too, as in training: its query changes, maybe its entries, and the log
                has it all. If not, a fork is asked: the memory stays as it is, and several can be asked at a time.

        Raises:
            ConfigError: There is no question, or the memory was closed.
            OutageError, PolicyError: Of the policy or embedder.
        """
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"the question is {question!r}: there is nothing to ask.")
        self._engine.check_open()
        async with self._lock:
            if keep:
                return await self._answer(self._session, question)
            session = self._session.fork()
        return await self._answer(session, question)

    async def _answer(self, session: Session, question: str) -> Answer:
        entries: tuple[Entry, ...] = ()

        async def turn(observation: Observation) -> Step:
            nonlocal entries
            held = session.memory.contents.entries
            entries = tuple(held[item.entry_id] for item in session.memory.view().retrieved)
            return await session.turn(observation)

        text, steps = await asked(self._engine.environments, question, turn)
        return Answer(question, text, entries, steps[-1].view.scratchpad, tuple(steps))

    @property
    def steps(self) -> int:
        """How many turns it has had."""
        return self._session.turns

    @property
    def scratchpad(self) -> str:
        """What the policy is shown at every step."""
        return self._session.memory.view().scratchpad

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The texts that were read, in order."""
        return tuple(self._readings)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as they apply, by name."""
        return self._engine.settings.to_json()

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return self._session.memory.entries()

    def history(self) -> tuple[Operation, ...]:
        """All operations in order: what was written, by which step, from which chunk, and what was retrieved."""
        return self._session.memory.log

    async def forget(self, source: str) -> tuple[Operation, ...]:
        """Take out what was written while the text called `source` (or one chunk of it) was read.

        Entries with any text from there are deleted, and scratchpad and query emptied where some of theirs is. The log
        keeps it; `at` a step before brings it back.

        Returns:
            The operations; none where nothing came from there.
        """
        async with self._lock:
            self._readings = [reading for reading in self._readings if reading.name != source]
            return await self._session.memory.forget(source, max(0, self.steps - 1))

    async def fork(self) -> Self:
        """A second memory that is this one now and goes its own way. They share the policy; close only the first."""
        async with self._lock:
            return self._of(self._engine, self._session.fork(), self._readings)

    async def at(self, step: int) -> Self:
        """A fork that is as this one was when step number `step` began; ``at(0)`` is empty.

        Raises:
            ConfigError: There was no such step.
            OutageError: The embedder, which entries deleted or changed since need, is out of reach.
        """
        if not 0 <= step <= self.steps:
            raise ConfigError(
                f"step is {step}: this memory has had {self.steps} steps, give 0 to {self.steps}."
            )
        twin = await self.fork()
        await twin._session.memory.undo(step)
        twin._session.turns = step
        before = (
            replace(reading, steps=tuple(number for number in reading.steps if number < step))
            for reading in self._readings
        )
        twin._readings = [reading for reading in before if reading.steps]
        return twin

    async def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it to a folder, whole or not at all; what was saved there before is replaced.

        Raises:
            DataError: The folder cannot be written.
        """
        async with self._lock:
            kept = saved.Saved.of(self._engine, self._session, self._readings)
        return await asyncio.to_thread(saved.write, folder, kept)

    async def close(self) -> None:
        """Free the policy and the embedder, for forks too."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.entries())} entries after {self.steps} steps)"


def _digest(observations: Sequence[Observation]) -> str:
    digest = hashlib.sha256()
    for observation in observations:
        digest.update(repr(observation.stream).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()

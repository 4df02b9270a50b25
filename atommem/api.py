"""`atommem.Memory` and `atommem.AsyncMemory`: read texts into a memory and ask it questions."""

import asyncio
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import quote

from atommem.actions import STOP_ACTION, first
from atommem.answering import Answer, answer_steps
from atommem.config import SHIPPED, shipped_policy
from atommem.embedding.embedder import Embedder
from atommem.episode import Observation, Step, written_and_cut
from atommem.errors import ConfigError, DataError, TraceError
from atommem.memory.log import Entry, Found, Operation
from atommem.policy.contract import Policy
from atommem.process import wait_for
from atommem.rollout import Session
from atommem.run import Runtime
from atommem.saved_memory import MEMORY_FILE, Reading, SavedMemory, scope_files, scope_key, text_of
from atommem.session_state import SessionState
from atommem.text_safety import clean
from atommem.tokens import unknown_share

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
Progress = Callable[[int, int], None]  # called with the number of chunks that were read, and of all
_UNKNOWN = 0.1  # share of unknown words above which reading warns
_SILENT = 3  # chunks in a row with text but without an action, after which reading warns


class _Contents:
    """The members of both kinds of memory that do not wait."""

    def __init__(self, runtime: Runtime, session: Session, read: Iterable[Reading] = ()) -> None:
        self._runtime, self._session, self._readings = runtime, session, list(read)
        self._lock = asyncio.Lock()
        self._scopes: dict[tuple[str, ...], Any] | None = {}  # by the names of `SCOPE`

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._session.steps

    @property
    def scratchpad(self) -> str:
        """The scratchpad, shown to the policy at every step."""
        return self._session.memory.view().scratchpad

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The texts that were read, in order."""
        return tuple(self._readings)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings in effect, by name."""
        return self._runtime.run.to_flat()

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return self._session.memory.entries()

    def history(self) -> tuple[Operation, ...]:
        """Return the operation log: every change with its step and source, and every retrieval."""
        return self._session.memory.log

    def prompt(self, step: Step) -> str:
        """Return the whole prompt of a step as text, with the markup of the chat template."""
        return self._runtime.agent.prompts.text(step.observation, step.view)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.entries())} entries after {self.steps} steps)"


class AsyncMemory(_Contents, AbstractAsyncContextManager["AsyncMemory"]):
    """The asynchronous twin of `Memory`, with the same methods; `open` and `load` make one.

    Every step is one of a `Session`, with the prompts of the policy's training, token for token.
    Reading and asking run one at a time.
    """

    @classmethod
    async def open(
        cls,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        tokenizer: Any = None,
        embedder: str | Embedder | None = None,
        **settings: Any,
    ) -> Self:
        """Open a policy and give it an empty memory.

        Args:
            policy: A model folder (one trained here brings its settings) or hub name; the URLs of
                vLLM servers of one model, or of a chat server (``api="chat"``); or a `Policy`.
            tokenizer: Of a server: folder or hub name of its model. Of a `Policy` without one: its
                tokenizer.
            embedder: A kind of embedder, as in the settings, or an `Embedder`.
            settings: Fields of `PolicyConfig`, `MemoryConfig`, `EmbedderConfig`, `Sampling` and the
                environment's configuration by name, and ``chat_template_kwargs``.

        Raises ConfigError for a setting, PolicyError for the model or tokenizer, and OutageError
        for an embedding server out of reach.
        """
        runtime = await asyncio.to_thread(
            Runtime.open, policy, tokenizer=tokenizer, embedder=embedder, **settings
        )
        return cls(runtime, Session(runtime.agent))

    @classmethod
    async def load(
        cls,
        folder: str | os.PathLike[str],
        policy: Any = None,
        *,
        reembed: bool = False,
        **settings: Any,
    ) -> Self:
        """Load a memory that `save` wrote.

        Args:
            policy: As of `open`; unset: the one that the memory was saved with.
            reembed: Use another embedder than the memory's, and embed all entries again.
            settings: As of `open`, on top of those that the memory was made with.

        Raises DataError for a folder without a whole memory, ConfigError if the embedder differs or
        the memory was saved with a `Policy` object.
        """
        opening = SavedMemory.read(folder).open
        runtime = await asyncio.to_thread(opening, policy, settings, reembed)

        async def restored(path: Path) -> Self:
            state = SessionState.load(path)
            session = await Session.restore(runtime.agent, state, reembed=reembed)
            return cls(runtime, session, SavedMemory.read(path.parent).readings)

        try:
            memory: Self = await restored(Path(folder) / MEMORY_FILE)
            scopes = scope_files(folder).items()
            memory._scopes = {key: _as_scope(await restored(path)) for key, path in scopes}
        except BaseException as error:
            await runtime.close()
            if isinstance(error, TraceError):
                raise DataError(f"{folder}: the memory is damaged: {error}") from error
            raise
        return memory

    async def read(
        self,
        source: str | Path | Iterable[str],
        *,
        questions: str | Sequence[str] = (),
        name: str | None = None,
        again: bool = True,
        progress: Progress | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> Reading:
        """Read a text, chunk by chunk, one step each; an interrupted reading continues.

        Args:
            source: A text, cut as in training; pieces of one, each a chunk unless it is too long;
                or the `pathlib.Path` of a text, HTML, PDF or docx file, or of a folder of these.
                A warning tells what of them is left out.
            questions: Questions that will be asked, or what to look for, shown to the policy while
                it reads. Without any it reads blind, which it should be trained for
                (`questions_shown`).
            name: Name in the source of entries; a file's name by default.
            again: If false, a text that was read to its end before is not read a second time.
            progress: Called before the first chunk and after every one.
            on_step: Called with the step of every chunk.

        Returns the `Reading`; ``written`` is 0 if the policy kept nothing. Raises DataError for the
        file, OutageError or PolicyError for the policy or embedder; earlier chunks are kept.
        """
        self._runtime.check_open()
        shown = [questions] if isinstance(questions, str) else list(questions or ())
        if wrong := [text for text in (*shown, name or "") if not isinstance(text, str)]:
            raise ConfigError(f"{wrong[0]!r}: questions and name are texts. Give strings.")
        opened = self._runtime.run.policy
        if len(shown) > 1 and opened and opened.policy == [shipped_policy(SHIPPED)]:
            problem = "was trained on one question at a time, and keeps little with several in view"
            warnings.warn(f"{SHIPPED} {problem}: ask each alone.", stacklevel=2)
        async with self._lock:
            text, file_name = await asyncio.to_thread(text_of, source)
            agent = self._runtime.agent
            joined = text if isinstance(text, str) else "\n".join(text)
            if (share := unknown_share(agent.tokenizer, clean(joined[:10_000]))) > _UNKNOWN:
                known = "not in the policy's vocabulary, which has the words of its training tasks"
                warnings.warn(f"{share:.0%} of the text's words are {known}.", stacklevel=2)
            observations = await asyncio.to_thread(agent.factory.reading, text, shown)
            reading = self._reading(observations, file_name if name is None else name, again)
            silent, progress = 0, progress or (lambda done, chunks: None)
            progress(len(reading.steps), reading.chunks)
            for observation in observations[len(reading.steps) :]:
                origin = ", ".join(part for part in (reading.name, observation.origin) if part)
                step = await self._session.step(replace(observation, origin=origin or None))
                written, cut = written_and_cut(step)
                reading = self._readings[-1] = replace(
                    reading,
                    steps=(*reading.steps, step.index),
                    written=reading.written + written,
                    cut=reading.cut + cut,
                )
                silent = silent + 1 if step.text.strip() and not step.actions else 0
                if silent == _SILENT:
                    warnings.warn(_silence(step), stacklevel=2)
                if on_step is not None:
                    on_step(step)
                progress(len(reading.steps), reading.chunks)
                if first(step.actions, STOP_ACTION.name) is not None:
                    reading = self._readings[-1] = replace(reading, stopped=True)
                    break
        return reading

    def _reading(self, observations: Sequence[Observation], name: str, again: bool) -> Reading:
        """Return the last reading if it was interrupted in this text, else a new one."""
        shown = "".join(repr(observation.stream) for observation in observations)
        digest = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()
        new = Reading(name, len(observations), digest)
        same = [reading for reading in self._readings if reading.sha256 == digest]
        if same and same[-1] is self._readings[-1] and not same[-1].complete:
            return same[-1]
        complete = [reading for reading in same if reading.complete and not again]
        if not complete:
            self._readings.append(new)
        return [new, *complete][-1]

    async def ask(self, question: str, *, keep: bool = True) -> Answer:
        """Ask a question; the policy may look up several things before it answers (``max_reads``).

        Without `keep`, a fork answers: this memory stays as it is, and questions can be concurrent.
        """
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"question={question!r}: nothing to ask. Give a text.")
        self._runtime.check_open()
        async with self._lock:
            if keep:
                return await _answer(self._session, question)
            session = self._session.fork()
        return await _answer(session, question)

    async def edit(self, entry: Entry | int, text: str | None) -> tuple[Operation, ...]:
        """Replace the text of an entry (or of its id), as the user; None deletes the entry."""
        async with self._lock:
            number = entry.id if isinstance(entry, Entry) else entry
            return await self._session.memory.edit(number, text, max(0, self.steps - 1))

    async def forget(self, source: str) -> tuple[Operation, ...]:
        """Delete everything that came from the text called `source`, or from one chunk of it.

        Scratchpad and query are emptied if they hold some of it. The log keeps it; `at` an earlier
        step brings it back. Raises DataError if nothing came from there.
        """
        async with self._lock:
            left = [item for item in self._readings if item.name != source or not source]
            done = await self._session.memory.forget(source, max(0, self.steps - 1))
            if not done and left == self._readings:
                raise DataError(f"source={source!r}: nothing in this memory came from it.")
            self._readings[:] = left
            return done

    def scope(self, **names: str) -> Self:
        """Return the memory of a ``user``, ``agent`` or ``session``, with entries of its own.

        It is empty at first, and saved with the original, which alone is closed.
        """
        key, scopes = scope_key(names), self._own_scopes
        if key not in scopes:
            scopes[key] = _as_scope(type(self)(self._runtime, Session(self._runtime.agent)))
        return scopes[key]

    @property
    def _own_scopes(self) -> dict[tuple[str, ...], Any]:
        if self._scopes is None:
            raise ConfigError("this is a scope. Save, and give all names at once, in its original.")
        return self._scopes

    async def search(self, query: str, k: int | None = None, **scope: str) -> list[Found]:
        """Return the best entries for a query, without those of scopes.

        With names: the best of all scopes that have them.
        """
        if not scope:
            return await self._session.memory.search(query, k)
        wanted, found = scope_key(scope), list[Found]()
        for key, memory in self._own_scopes.items():
            if all(name in ("", held) for name, held in zip(wanted, key, strict=True)):
                found += await memory._session.memory.search(query, k)
        k = k or self._runtime.run.memory.retrieve_k
        return sorted(found, key=lambda hit: -hit[1])[:k]

    async def fork(self) -> Self:
        """Return a copy, scopes too, that shares the policy; close only the original."""
        async with self._lock:
            twin = type(self)(self._runtime, self._session.fork(), self._readings)
        scopes = [*(self._scopes or {}).items()]
        twin._scopes = {key: _as_scope(await one.fork()) for key, one in scopes}
        return twin

    async def at(self, step: int) -> Self:
        """Return a fork as it was when step number `step` began (scopes stay); 0 is empty."""
        if step not in range(self.steps + 1):
            raise ConfigError(f"step={step}: must be between 0 and {self.steps}. Correct it.")
        twin = await self.fork()
        await twin._session.memory.undo(step)
        twin._session.steps = step
        kept = ((one, tuple(n for n in one.steps if n < step)) for one in self._readings)
        cut = (replace(one, steps=n, stopped=one.stopped and n == one.steps) for one, n in kept)
        twin._readings = [reading for reading in cut if reading.steps]
        return twin

    async def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it with its scopes to a folder, each whole or not at all; replaces what was saved.

        A scope alone: ``scope(...).fork()``.
        """
        scopes = self._own_scopes
        path = await self._write(folder)
        for key in scope_files(path).keys() - scopes.keys():  # saved there before
            shutil.rmtree(scope_files(path)[key].parent)
        for key, memory in scopes.items():
            name = ",".join(quote(part, safe="") for part in key)
            await memory._write(path / "scopes" / name)
        return path

    async def _write(self, folder: str | os.PathLike[str]) -> Path:
        async with self._lock:
            run = self._runtime.run
            policy = None if run.policy is None else asdict(run.policy)
            saved = SavedMemory(policy, self._runtime.given, asdict(run.embedder), self.readings)
            return await asyncio.to_thread(saved.write, folder, self._session.state(vectors=True))

    async def close(self) -> None:
        """Free the policy and the embedder, for forks too."""
        await self._runtime.close()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _as_scope(memory: Any) -> Any:
    memory._scopes = None
    return memory


async def _answer(session: Session, question: str) -> Answer:
    answers = [answer async for _, answer in answer_steps(session, question, session.step)]
    assert answers[-1] is not None
    return answers[-1]


def _silence(step: Step) -> str:
    problems = ", ".join(sorted({problem.reason for problem in step.problems})) or "no tags"
    return (
        f"{_SILENT} chunks in a row led to no action ({problems}); the last completion begins "
        f"{' '.join(step.text.split())[:80]!r}. The policy may not know these prompts: check "
        "dialect and templates, or take one that was trained for them."
    )


def _waiting(
    method: Callable[Concatenate[AsyncMemory, _Arguments], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate["Memory", _Arguments], _Result]:
    @wraps(method)
    def wait(self: "Memory", *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return wait_for(method(self._memory, *args, **kwargs))

    return wait


class Memory(_Contents, AbstractContextManager["Memory"]):
    """A memory that a policy fills by reading and answers from.

    It is made of what `AsyncMemory.open` takes, or of an `AsyncMemory`, whose methods it has; each
    waits until it is done. Ctrl-C ends one and keeps finished steps.
    """

    def __init__(self, policy: Any, **settings: Any) -> None:
        is_open = isinstance(policy, AsyncMemory)
        self._memory = policy if is_open else wait_for(AsyncMemory.open(policy, **settings))
        super().__init__(self._memory._runtime, self._memory._session)
        self._readings = self._memory._readings

    @classmethod
    def load(cls, folder: str | os.PathLike[str], policy: Any = None, **settings: Any) -> Self:
        """Load a saved memory; see `AsyncMemory.load`."""
        return cls(wait_for(AsyncMemory.load(folder, policy, **settings)))

    read = _waiting(AsyncMemory.read)
    ask = _waiting(AsyncMemory.ask)
    search = _waiting(AsyncMemory.search)
    edit = _waiting(AsyncMemory.edit)
    forget = _waiting(AsyncMemory.forget)
    save = _waiting(AsyncMemory.save)
    close = _waiting(AsyncMemory.close)

    def scope(self, **names: str) -> Self:
        return type(self)(self._memory.scope(**names))

    def fork(self) -> Self:
        return type(self)(wait_for(self._memory.fork()))

    def at(self, step: int) -> Self:
        return type(self)(wait_for(self._memory.at(step)))

    def __exit__(self, *exception: object) -> None:
        self.close()

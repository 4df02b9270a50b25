"""`atommem.Memory` and `atommem.AsyncMemory`: read texts into a memory and ask it questions."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from atommem.arguments import field_names
from atommem.config import EmbedderConfig, PolicyConfig, fields_of, is_loopback, without_addresses
from atommem.embedding.embedder import Embedder
from atommem.environment import EnvironmentFactory, Turn
from atommem.episode import Observation, Step
from atommem.errors import ConfigError, DataError, TraceError
from atommem.memory.log import Entry, Operation
from atommem.policy.contract import Policy
from atommem.policy.opening import load_tokenizer, open_policy
from atommem.rollout import Agent, Session
from atommem.run import Checkpoint, RunConfig, build_agent, make_run
from atommem.session_state import SessionState

FORMAT = 1
MEMORY_FILE = "memory.json"
SESSION_FILE = "session.jsonl"

Progress = Callable[[int, int], None]
"""Called with the number of chunks that were read, and of all."""
OnStep = Callable[[Step, bool, str | None], Awaitable[None]]
"""Called with a step of answering, whether it was the last, and the answer then."""
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Reading:
    """A text that was read, or is being read.

    Attributes:
        name: Name of the text, also in the entries' source.
        chunks: Number of its chunks.
        sha256: Digest of the chunks as shown.
        steps: Numbers of the steps that read them; fewer than `chunks` after an interruption.
    """

    name: str
    chunks: int
    sha256: str
    steps: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the text was read to its end."""
        return len(self.steps) == self.chunks


@dataclass(frozen=True)
class Answer:
    """The answer to a question, and its evidence.

    Attributes:
        question: The question.
        text: The answer; None if the policy gave none.
        entries: Entries shown at the step that answered, best match first; each has its `source`.
        scratchpad: As shown there.
        steps: All steps of answering.
    """

    question: str
    text: str | None
    entries: tuple[Entry, ...]
    scratchpad: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.text or ""


@dataclass
class Runtime:
    """An open policy with its embedder, environment and settings, shared by memories and forks.

    Attributes:
        agent: Shared by sessions.
        run: The settings in effect.
        given: Settings that the user named; a saved memory keeps them.
        closed: Whether one of the memories that share it closed it.
    """

    agent: Agent
    run: RunConfig
    given: dict[str, Any]
    closed: bool = False

    @classmethod
    def open(
        cls,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        tokenizer: Any = None,
        embedder: str | Embedder | None = None,
        stored: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> Runtime:
        """Open a policy and its embedder; arguments as of `AsyncMemory`.

        Args:
            stored: Replaces settings stored with the policy, name by name.
        """
        opening = {name: given.pop(name) for name in field_names(PolicyConfig) if name in given}
        choice = None
        opened: Any = policy
        if isinstance(policy, (str, os.PathLike, list, tuple)):
            names = [policy] if isinstance(policy, (str, os.PathLike)) else policy
            if tokenizer is not None:
                opening["tokenizer"], tokenizer = _absolute(tokenizer), None
            choice = PolicyConfig([_absolute(name) for name in names], **opening)
        if isinstance(embedder, str):
            given["embedder"], embedder = embedder, None
        folder = choice.settings_folder if choice else None
        checkpoint = Checkpoint.load(folder, given.get("environment"), stored)
        run = replace(make_run(given, checkpoint), policy=choice)
        if choice is not None:
            opened = open_policy(choice)
        elif isinstance(tokenizer, (str, Path)):
            tokenizer = load_tokenizer(os.fspath(tokenizer))
        agent = build_agent(run, opened, tokenizer=tokenizer, embedder=embedder)
        settings = run.to_flat()
        return cls(agent, run, {name: settings[name] for name in given})

    def check_open(self) -> None:
        """Raise ConfigError if it is closed."""
        if self.closed:
            raise ConfigError("this memory is closed. Memory.load opens a saved one.")

    async def close(self) -> None:
        """Free models and connections."""
        self.closed = True
        await self.agent.environments.close()
        await self.agent.policy.close()
        await self.agent.embedder.close()


def _absolute(name: str | os.PathLike[str]) -> str:
    """Return a folder as an absolute path, so that a saved memory finds it."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else os.fspath(name)


async def answer_question(
    environments: EnvironmentFactory,
    question: str,
    turn: Callable[[Observation], Awaitable[Step]],
    on_step: OnStep | None = None,
) -> tuple[str | None, list[Step]]:
    """Ask until there is an answer or the environment ends; return the answer and all steps.

    Args:
        turn: Takes a turn of the session (`Session.turn`).
        on_step: See `OnStep`.

    Raises:
        ConfigError: The environment asks no questions.
    """
    task = environments.asking(question)
    await environments.prepare(task)
    environment = environments()
    observation: Observation | None = await environment.reset(task)
    steps: list[Step] = []
    answer = None
    while observation is not None:
        step = await turn(observation)
        taken = Turn(step.text, step.actions, step.problems, step.operations)
        observation = (await environment.step(taken)).observation
        if observation is None:
            answer = next(iter((await environment.score()).answers), None)
        if on_step is not None:
            await on_step(step, observation is None, answer)
        steps.append(step)
    return answer, steps


class _Contents:
    """What both kinds of memory show without waiting."""

    _runtime: Runtime
    _session: Session
    _readings: list[Reading]

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._session.turns

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.entries())} entries after {self.steps} steps)"


class AsyncMemory(_Contents):
    """A memory that a policy fills by reading and answers from; `Memory` is its synchronous twin.

    Every step is a turn of one `Session` with the prompts of the policy's training, token for
    token. Reading and asking run one at a time.

    Args:
        policy: A model folder (one trained here brings its settings) or hub name; the URLs of vLLM
            servers of one model, or of a chat server (``api="chat"``); or a `Policy`.
        tokenizer: Of a server: folder or hub name of its model. Of a `Policy` without one: its
            tokenizer.
        embedder: A kind of embedder, as in the settings, or an `Embedder`.
        settings: Fields of `PolicyConfig`, `MemoryConfig`, `EmbedderConfig`, `Sampling` and the
            environment's configuration by name, and ``chat_template_kwargs``.

    Raises:
        ConfigError: A setting is unknown or out of range, or a package is missing.
        PolicyError: The model or tokenizer cannot be loaded.
        OutageError: The embedding server is out of reach.
    """

    def __init__(
        self,
        policy: str | os.PathLike[str] | Sequence[str] | Policy,
        *,
        tokenizer: Any = None,
        embedder: str | Embedder | None = None,
        **settings: Any,
    ) -> None:
        runtime = Runtime.open(policy, tokenizer=tokenizer, embedder=embedder, **settings)
        self._start(runtime, Session(runtime.agent))

    def _start(self, runtime: Runtime, session: Session, readings: Iterable[Reading] = ()) -> None:
        self._runtime = runtime
        self._session = session
        self._readings = list(readings)
        self._lock = asyncio.Lock()

    @classmethod
    def _of(cls, runtime: Runtime, session: Session, readings: Iterable[Reading]) -> Self:
        memory = cls.__new__(cls)
        memory._start(runtime, session, readings)
        return memory

    @classmethod
    async def open(cls, *arguments: Any, **settings: Any) -> Self:
        """Call the constructor in a thread, so that loading does not block the event loop."""
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
        """Load a saved memory.

        Args:
            folder: As written by `save`.
            policy: As of the constructor; unset: the one that the memory was saved with.
            reembed: Use another embedder than the memory's, and embed all entries again.
            settings: As of the constructor, on top of those that the memory was made with.

        Raises:
            DataError: The folder holds no memory, or a damaged one.
            ConfigError: The embedder differs, or the memory was saved with a `Policy` object.
        """
        saved = await asyncio.to_thread(SavedMemory.read, folder)
        runtime = await asyncio.to_thread(saved.open, policy, settings, reembed)
        return await cls.on(runtime, saved, folder, reembed)

    @classmethod
    async def on(
        cls,
        runtime: Runtime,
        saved: SavedMemory | None = None,
        folder: str | os.PathLike[str] = ".",
        reembed: bool = False,
    ) -> Self:
        """Return a new or saved memory on an open runtime, which is closed if that fails."""
        if saved is None:
            return cls._of(runtime, Session(runtime.agent), ())
        try:
            state = await asyncio.to_thread(SessionState.load, Path(folder) / SESSION_FILE)
            session = await Session.restore(runtime.agent, state, reembed=reembed)
        except BaseException as error:
            await runtime.close()
            if isinstance(error, TraceError):
                raise DataError(f"{folder}: the memory is damaged: {error}") from error
            raise
        return cls._of(runtime, session, saved.readings)

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
        """Read a text, chunk by chunk, one step each; an interrupted reading continues.

        Args:
            source: A text, cut as in training; pieces of one, each a chunk unless it is too long;
                or the `pathlib.Path` of a file.
            questions: Questions that will be asked, shown to the policy while it reads. Without
                any it reads blind, which it should be trained for (`questions_shown`).
            goal: Replaces questions: what to look for, in words.
            name: Name in the source of entries; a file's name by default.
            again: If false, a text that was read to its end is not read again.
            progress: Called after every chunk.

        Raises:
            DataError: The file is missing, not text, or empty.
            OutageError, PolicyError: Of the policy or embedder; earlier chunks are kept.
        """
        self._runtime.check_open()
        known = [questions] if isinstance(questions, str) else list(questions)
        if goal is not None and known:
            raise ConfigError("read() was called with questions and a goal. Give one of them.")
        async with self._lock:
            text, file_name = await asyncio.to_thread(text_of, source)
            shown = known if goal is None else [goal]
            environments = self._runtime.agent.environments
            observations = await asyncio.to_thread(environments.reading, text, shown)
            reading = self._reading(observations, file_name if name is None else name, again)
            for observation in observations[len(reading.steps) :]:
                origin = ", ".join(part for part in (reading.name, observation.origin) if part)
                step = await self._session.turn(replace(observation, origin=origin or None))
                reading = self._readings[-1] = replace(reading, steps=(*reading.steps, step.index))
                if progress is not None:
                    progress(len(reading.steps), reading.chunks)
        return reading

    def _reading(self, observations: Sequence[Observation], name: str, again: bool) -> Reading:
        """Return the last reading if it was interrupted in this text, else a new one."""
        digest = hashlib.sha256()
        for observation in observations:
            digest.update(repr(observation.stream).encode("utf-8", "surrogatepass"))
        new = Reading(name, len(observations), digest.hexdigest())
        same = [reading for reading in self._readings if reading.sha256 == new.sha256]
        if same and same[-1] is self._readings[-1] and not same[-1].complete:
            return same[-1]
        complete = [reading for reading in same if reading.complete]
        if complete and not again:
            return complete[-1]
        self._readings.append(new)
        return new

    async def ask(self, question: str, *, keep: bool = True) -> Answer:
        """Ask a question; the policy may look up several things before it answers (``max_reads``).

        Args:
            question: The question.
            keep: Keep the steps of answering, as in training. If false, a fork answers and this
                memory stays as it is; several questions can then be asked at the same time.

        Raises:
            ConfigError: The question is empty, or the memory closed.
            OutageError, PolicyError: Of the policy or embedder.
        """
        if not question.strip():
            raise ConfigError(f"question={question!r}: nothing to ask. Give a text.")
        self._runtime.check_open()
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

        text, steps = await answer_question(self._runtime.agent.environments, question, turn)
        return Answer(question, text, entries, steps[-1].view.scratchpad, tuple(steps))

    async def forget(self, source: str) -> tuple[Operation, ...]:
        """Delete everything that came from the text called `source`, or from one chunk of it.

        Scratchpad and query are emptied if they hold some of it. The log keeps it; `at` an earlier
        step brings it back.
        """
        async with self._lock:
            self._readings[:] = [item for item in self._readings if item.name != source]
            return await self._session.memory.forget(source, max(0, self.steps - 1))

    async def fork(self) -> Self:
        """Return an independent copy that shares the policy; close only the original."""
        async with self._lock:
            return self._of(self._runtime, self._session.fork(), self._readings)

    async def at(self, step: int) -> Self:
        """Return a fork as it was when step number `step` began; ``at(0)`` is empty.

        Raises:
            ConfigError: There was no such step.
            OutageError: The embedder is out of reach; entries changed since need it.
        """
        if not 0 <= step <= self.steps:
            raise ConfigError(f"step={step}: must be between 0 and {self.steps}. Correct it.")
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
        """Write it to a folder, whole or not at all; a memory saved there before is replaced.

        Raises:
            DataError: The folder holds something else.
            OSError: It cannot be written.
        """
        async with self._lock:
            run = self._runtime.run
            policy = None if run.policy is None else asdict(run.policy)
            saved = SavedMemory(policy, self._runtime.given, asdict(run.embedder), self.readings)
            state = self._session.state(vectors=True)
        return await asyncio.to_thread(saved.write, folder, state)

    async def close(self) -> None:
        """Free the policy and the embedder, for forks too."""
        await self._runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


@cache
def _background() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Start an event loop in a daemon thread, for callers without one or inside one (Jupyter)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="atommem-loop", daemon=True)
    thread.start()
    return loop, thread


os.register_at_fork(after_in_child=_background.cache_clear)  # a fork has no such thread


def _wait(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in the background and wait; Ctrl-C cancels it and is raised at its end."""
    loop, thread = _background()
    if threading.current_thread() is thread:
        coroutine.close()
        raise ConfigError("a Memory was used from its own progress callback. Use an AsyncMemory.")
    ended = threading.Event()

    async def run() -> _Result:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        if future.cancel():
            ended.wait()
        raise


def _blocking(
    method: Callable[Concatenate[AsyncMemory, _Parameters], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Memory, _Parameters], _Result]:
    """Return a method of `Memory` that waits for one of `AsyncMemory`."""

    @wraps(method)
    def wait(self: Memory, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return _wait(method(self._memory, *args, **kwargs))

    return wait


class Memory(_Contents):
    """A memory that a policy fills by reading and answers from; see `AsyncMemory`.

    Every method waits until it is done. Ctrl-C ends it and keeps finished steps.
    """

    def __init__(self, policy: Any, **settings: Any) -> None:
        self._start(AsyncMemory(policy, **settings))

    def _start(self, memory: AsyncMemory) -> None:
        self._memory = memory
        self._runtime = memory._runtime
        self._session = memory._session
        self._readings = memory._readings

    @classmethod
    def _of(cls, memory: AsyncMemory) -> Self:
        blocking = cls.__new__(cls)
        blocking._start(memory)
        return blocking

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        policy: Any = None,
        *,
        reembed: bool = False,
        **settings: Any,
    ) -> Self:
        """Load a saved memory; see `AsyncMemory.load`."""
        return cls._of(_wait(AsyncMemory.load(folder, policy, reembed=reembed, **settings)))

    read = _blocking(AsyncMemory.read)
    ask = _blocking(AsyncMemory.ask)
    forget = _blocking(AsyncMemory.forget)
    save = _blocking(AsyncMemory.save)
    close = _blocking(AsyncMemory.close)

    def fork(self) -> Self:
        """Return an independent copy that shares the policy; close only the original."""
        return self._of(_wait(self._memory.fork()))

    def at(self, step: int) -> Self:
        """Return a fork as it was when step number `step` began; ``at(0)`` is empty."""
        return self._of(_wait(self._memory.at(step)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True)
class SavedMemory:
    """The file ``memory.json`` of a saved memory.

    Beside it lie ``session.jsonl``, the operation log, and ``session.jsonl.vectors``, a cache of
    embeddings.

    Attributes:
        policy: Fields of `PolicyConfig`; None for a `Policy` object.
        given: Settings that the user named.
        embedder: Fields of `EmbedderConfig`: vectors of another one do not compare.
    """

    policy: dict[str, Any] | None
    given: dict[str, Any]
    embedder: dict[str, Any]
    readings: tuple[Reading, ...]
    format: int = FORMAT

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Return whether a memory was saved in a folder."""
        return (Path(folder) / MEMORY_FILE).is_file()

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> SavedMemory:
        """Read a folder; raise DataError if it holds no memory or a damaged one."""
        path = Path(folder) / MEMORY_FILE
        if not path.is_file():
            raise DataError(f"{folder}: holds no memory. Memory.save writes one.")
        try:
            saved: SavedMemory = msgspec.json.decode(path.read_bytes(), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a memory, or damaged ({error}).") from error
        if saved.format != FORMAT:
            raise DataError(f"{path}: has format {saved.format}; this version reads {FORMAT}.")
        return saved

    def write(self, folder: str | os.PathLike[str], session: SessionState) -> Path:
        """Write a folder; each file is replaced as a whole."""
        path, ours = Path(folder), (SESSION_FILE, MEMORY_FILE)
        others = path.is_dir() and any(not item.name.startswith(ours) for item in path.iterdir())
        if others and not self.exists(path):
            raise DataError(f"{path}: holds other files and no memory. Give an empty folder.")
        path.mkdir(parents=True, exist_ok=True)
        session.save(path / SESSION_FILE)
        draft = path / f"{MEMORY_FILE}.part"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        os.replace(draft, path / MEMORY_FILE)
        return path

    def open(self, policy: Any, settings: Mapping[str, Any], reembed: bool = False) -> Runtime:
        """Open the memory's policy, unless another is given, under its settings and new ones.

        Raises:
            ConfigError: The policy is unknown, or on a machine that the user must name.
        """
        opening: dict[str, Any] = {}
        if policy is None:
            if self.policy is None:
                raise ConfigError("the memory was made with a Policy object. Give it as policy.")
            opening = dict(self.policy)
            policy = opening.pop("policy")
            remote = [name for name in policy if name.startswith("http") and not is_loopback(name)]
            if remote:
                raise ConfigError(
                    f"the memory was made with the policy at {remote[0]}. Give policy={remote[0]!r} "
                    "if its texts may go there."
                )
        stored = {} if reembed else fields_of(EmbedderConfig, without_addresses(self.embedder))
        given = {**without_addresses(self.given), **opening, **settings}
        return Runtime.open(policy, stored=stored, **given)


def text_of(source: str | Path | Iterable[str]) -> tuple[str | list[str], str]:
    """Return a text, or its pieces, and the name of its file, else an empty name.

    Raises:
        DataError: The file is missing or not text, or there is no text.
    """
    if isinstance(source, Path):
        return read_file(source), source.name
    if isinstance(source, str):
        if "\n" not in source and len(source) < 4096 and os.path.isfile(source):
            raise DataError(f"{source!r} is the path of a file. Give Path({source!r}) to read it.")
        return _check_text(source, "the text"), ""
    pieces = list(source)
    for number, piece in enumerate(pieces, 1):
        if not isinstance(piece, str):
            raise DataError(f"piece {number} is a {type(piece).__name__}. Give strings.")
    pieces = [piece for piece in pieces if piece.strip()]
    if not pieces:
        raise DataError("there is nothing to read: every piece is empty.")
    return pieces, ""


def read_file(path: Path) -> str:
    """Return the text of a UTF-8 file, or in the encoding of its byte order mark."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error


def decode(raw: bytes, name: str) -> str:
    """Return bytes as text; raise DataError with `name` if they are not text."""
    is_utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = raw.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: not {error.encoding} text (byte {raw[error.start]:#04x} at {error.start}). "
            "Convert it to UTF-8; extract the text of a PDF or an office file first."
        ) from error
    if "\0" in text:
        raise DataError(f"{name}: a binary file (NUL at {text.index(chr(0))}). Give plain text.")
    return _check_text(text, name)


def _check_text(text: str, name: str) -> str:
    if not text.strip():
        raise DataError(f"{name} is empty: there is nothing to read.")
    return text

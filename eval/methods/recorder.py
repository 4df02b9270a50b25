"""Shared by baselines: the parts of a comparison, and the recording of an episode."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any

from atommem import actions
from atommem.embedding.embedder import Embedder, Vectors
from atommem.environment import EnvironmentFactory
from atommem.envs.longdoc.environment import MOST_AT_ONCE, questions_label
from atommem.envs.question_answering import batches
from atommem.envs.task import Task
from atommem.episode import Episode, Observation, Piece, Step
from atommem.grammar import parse_whole
from atommem.memory.log import Contents, MemoryView, Operation, Retrieved
from atommem.memory.store import VectorStore
from atommem.policy.contract import MessagePolicy, Policy
from atommem.prompts import PromptBuilder
from atommem.rollout import begins_in_thinking, sampled_step
from atommem.run import RunConfig
from atommem.text_safety import clean
from atommem.tokens import Tokenizer

Found = Sequence[tuple[int, float]]  # ids of entries and their scores, best first
_JSON_REPLY = actions.ActionSpec("reply", actions.Body.TEXT)


@dataclass(frozen=True)
class Setup:
    """Everything that the methods of a comparison share."""

    run: RunConfig
    policy: Policy
    embedder: Embedder
    factory: EnvironmentFactory
    max_in_flight: int | asyncio.Semaphore | None = None  # a number, or a bound that is shared
    context_tokens: int = 32_768  # longest prompt and completion together
    max_calls: int = 40  # calls of tools in an episode
    yarn_factor: float | None = None  # arXiv 2309.00071, of the server or config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.policy.tokenizer  # type: ignore[attr-defined]

    @property
    def retrieve_k(self) -> int:
        return self.run.memory.retrieve_k

    @property
    def prompt_room(self) -> int:
        return self.context_tokens - self.run.sampling.max_completion_length


@dataclass(eq=False)
class Recorder:
    """One episode of a baseline: asks the policy, and records every call and change of memory.

    `answers` has one per question, None until given; `metrics` are added to the episode's; `texts`
    and `index` are the entries and their vectors, by id.
    """

    setup: Setup
    plain: PromptBuilder
    remembering: PromptBuilder
    episode: Episode
    task: Task

    def __post_init__(self) -> None:
        self.answers: list[str | None] = [None] * len(self.task.questions)
        self.metrics: dict[str, float] = {}
        self.texts: dict[int, str] = {}
        self.embed = partial(self.setup.embedder.embed, kind="entry")
        self.index = VectorStore(self.setup.embedder.dim)
        self.thinking = False
        self._contents = Contents()

    def count_tokens(self, shown: Observation) -> int:
        """Return the number of tokens that `ask` sends without memory."""
        return len(self.plain.build(shown, MemoryView()))

    async def ask(self, shown: Observation, view: MemoryView | None = None) -> Step:
        """Sample a completion and record it as a step; raises like `Policy.complete`."""
        setup, episode = self.setup, self.episode
        prompts = self.plain if view is None else self.remembering
        size = len(self._contents.entries)
        view = view or MemoryView(size=size)
        index = len(episode.steps)
        started = time.perf_counter()
        key = f"{episode.task_id}/{episode.sample}"
        sampling = setup.run.sampling.for_request(key, index, episode.task_id)
        prompt_ids: list[int] = []
        if isinstance(setup.policy, MessagePolicy):
            completion = await setup.policy.complete_chat(prompts.messages(shown, view), sampling)
        else:
            prompt_ids = prompts.build(shown, view)
            completion = await setup.policy.complete(prompt_ids, sampling)
        self.thinking = begins_in_thinking(setup.policy, prompts, completion)
        observation = replace(shown, stream=())  # the stream's text stands in the prompt
        step = sampled_step(index, observation, view, len(prompt_ids), completion)
        step.store_size, step.prompt = size, prompts.text(shown, view)
        step.seconds = time.perf_counter() - started
        episode.steps.append(step)
        return step

    def parse(self, step: Step, spec: actions.ActionSpec) -> tuple[actions.Action, ...]:
        """Parse the latest completion, without its thinking, as one action, and note problems."""
        parsed = parse_whole(step.text, spec, self.thinking)
        step.problems = parsed.problems
        return parsed.actions

    async def ask_json(
        self, label: str, *pieces: Piece, view: MemoryView | None = None
    ) -> tuple[Step, dict[str, Any]]:
        """Show `pieces` of the stream, of which the last is the instruction.

        Returns the step, and the JSON object in its reply; {} and a problem of the step without.
        """
        shown = Observation("reading", stream=pieces[:-1], closing=pieces[-1:], label=label)
        step = await self.ask(shown, view)
        text = "".join(action.text for action in self.parse(step, _JSON_REPLY))
        try:
            value = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return step, value
        problem = actions.Problem(actions.ProblemReason.NOT_JSON, "json", 0, len(step.text))
        step.problems += (problem,)
        return step, {}

    async def hold(self, texts: Sequence[str]) -> None:
        """Store texts from the start, numbered from 1, without an action (RAG)."""
        self.texts = dict(enumerate(texts, start=1))
        self.index = VectorStore(self.setup.embedder.dim)
        if texts:
            self.index.add(list(self.texts), await self.embed(texts))

    def create(self, step: Step, text: str, vector: Vectors) -> int:
        """Create an entry as a result of `step`; returns its id."""
        entry_id = self._contents.newest_id + 1
        self.index.update({entry_id: vector})
        self.texts[entry_id] = text
        self._log(step, "create", entry_id=entry_id, after=text)
        return entry_id

    def update(self, step: Step, entry_id: int, text: str, vector: Vectors | None = None) -> None:
        """Update an entry as a result of `step`; without a vector it keeps the old one."""
        if vector is not None:
            self.index.update({entry_id: vector})
        before, self.texts[entry_id] = self.texts[entry_id], text
        self._log(step, "update", entry_id=entry_id, before=before, after=text)

    def delete(self, step: Step, entry_id: int) -> None:
        self.index.update({entry_id: None})
        self._log(step, "delete", entry_id=entry_id, before=self.texts.pop(entry_id))

    def log_query(self, step: Step, query: str) -> None:
        """Record that the entries in the prompt of `step` were retrieved for `query`."""
        step.searches += 1
        self._log(step, "read", before=self._contents.query, after=query)

    def _log(self, step: Step, kind: str, **values: Any) -> None:
        operation = Operation(step.index, kind, **values)
        step.operations += (operation,)
        self._contents.apply(operation)
        step.store_size = len(self._contents.entries)

    def view(self, query: str, found: Found, handles: Iterable[int] | None = None) -> MemoryView:
        """Show entries under the numbers `handles`; by default from 1."""
        retrieved = tuple(
            Retrieved(handle, entry_id, self.texts[entry_id], score)
            for handle, (entry_id, score) in zip(handles or count(1), found, strict=False)
        )
        return MemoryView(query=query, retrieved=retrieved, size=len(self.texts))

    @property
    def together(self) -> list[range]:
        """Ranges of questions that are asked at one step, like MemAgent's."""
        return batches(len(self.task.questions), MOST_AT_ONCE)

    async def answer(
        self, asked: range, text: str | None = None, view: MemoryView | None = None
    ) -> Step:
        """Ask questions from `text`, `view` or nothing, and store the boxed answers."""
        step = await self.ask(self.asking(asked, text), view)
        step.actions = self.parse(step, actions.ANSWERS_ACTION)
        self.answers[asked.start : asked.stop] = actions.answers_in(step.actions, len(asked))
        return step

    def asking(self, asked: range, text: str | None = None) -> Observation:
        lines = tuple(
            Piece("question_line", {"number": number, "question": self.task.questions[index].text})
            for number, index in enumerate(asked, start=1)
        )
        return Observation(
            "answering",
            stream=() if text is None else (Piece("document", {"document": text}),),
            closing=(Piece("questions", {"questions": lines}), Piece("answer")),
            label=questions_label(asked, len(self.task.questions)),
            question=asked.start,
            questions=len(asked),
        )

    async def answer_from(self, find: Callable[[Vectors], Found]) -> None:
        """Ask all questions together, with the entries that `find` returns for their vectors."""
        for asked in self.together:
            texts = [self.task.questions[index].text for index in asked]
            found = merged(map(find, await self.embed(texts, kind="query")))
            step = await self.answer(asked, view=self.view("\n".join(texts), found))
            for text in texts:
                self.log_query(step, text)


def merged(results: Iterable[Found]) -> Found:
    """Join results of several searches: each entry once, with its first score."""
    scores: dict[int, float] = {}
    for entry_id, score in chain.from_iterable(results):
        scores.setdefault(entry_id, score)
    return list(scores.items())


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list in a reply, or [] for other values."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Return a string of a reply, cleaned, or "" for other values."""
    return clean(value) if isinstance(value, str) else ""


def texts_in(value: Any) -> list[str]:
    """Return the non-empty strings of a list in a reply, or [] for other values."""
    return [text for text in map(text_of, value if isinstance(value, list) else []) if text]

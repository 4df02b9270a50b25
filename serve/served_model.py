"""The model behind a server, checked against its training and identified by a fingerprint."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter as Counts
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.concurrency import run_in_threadpool

from atommem.actions import CREATE, DELETE, STOP_ACTION, UPDATE, first
from atommem.answering import Answer, answer_steps
from atommem.config import EmbedderConfig, MemoryConfig, is_server, load_config, shipped_policy
from atommem.environment import find_environment
from atommem.episode import Observation, Step, written_and_cut
from atommem.errors import ConfigError
from atommem.memory.log import Outcome
from atommem.policy.opening import fingerprint
from atommem.process import time_limit
from atommem.rollout import Session
from atommem.run import Runtime
from atommem.serve.items import Item, ask_event, item_event, only_asks, texts_of, with_id
from atommem.serve.schema import Event

STAGES = Histogram(
    "atommem_stage_seconds",
    "Duration of a stage: queue, turn, open, commit, request",
    ["stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
TOKENS = Counter("atommem_tokens", "Model tokens", ["kind"])
NO_GOAL = (
    "Without a goal it keeps little or nothing: give the questions that matter, one a line, as "
    "`goal` of the conversation (in its metadata)."
)


@dataclass(eq=False)
class ServedModel:
    """The model that all conversations of a server share, under its `name` in the API.

    Every event stores `checkpoint`, a fingerprint. `trained` is its ``atommem_config.json``, empty
    for a model that was not trained here. `active` bounds the steps at a time. With
    `reads_questions` conversations also read the messages that ask, unless they only ask.
    """

    runtime: Runtime
    name: str
    checkpoint: str
    trained: Mapping[str, Any] = field(default_factory=dict)
    active: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(64))
    turn_seconds: float = 300.0
    reads_questions: bool = True

    def __post_init__(self) -> None:
        self.agent = self.runtime.agent
        self.agent.keep_prompts = True  # the steps can be trained on

    @classmethod
    def open(cls, policy: str | Sequence[str], *, name: str = "", **settings: Any) -> ServedModel:
        """Open a model; `settings` are those of `atommem.api.AsyncMemory`, as in the training."""
        names = [policy] if isinstance(policy, str) else list(policy)
        model, tokenizer = (str(settings.get(name) or "") for name in ("model", "tokenizer"))
        folder = tokenizer if is_server(names) else shipped_policy(names[0])
        trained = load_config(folder) if folder else {}
        check_settings(trained, settings, folder)
        runtime = Runtime.open(names, **settings)
        name = name or model or Path(names[0]).absolute().name
        return cls(runtime, name, fingerprint(folder, model), trained)

    async def step(self, session: Session, observation: Observation) -> Step:
        """Take a step of a session, which is not committed yet; raises as `Session.step`."""
        with STAGES.labels("queue").time():
            await self.active.acquire()
        try:
            with STAGES.labels("turn").time():
                async with time_limit(self.turn_seconds):
                    step = await session.step(observation, session.key)
        finally:
            self.active.release()
        TOKENS.labels("prompt").inc(step.prompt_tokens)
        TOKENS.labels("completion").inc(step.completion_tokens)
        return step

    async def observations(self, item: Event) -> Sequence[Observation]:
        """Return the observations in which an item of the log is read."""
        texts, questions = texts_of(item.body["item"]), item.body["questions"]
        if not texts:
            return []
        text = texts[0] if len(texts) == 1 else texts
        shown = await run_in_threadpool(self.agent.factory.reading, text, questions)
        return [replace(each, origin=f"{item.source}, {each.origin}") for each in shown]

    @property
    def needs_goal(self) -> bool:
        """Whether its training always showed the questions while it read."""
        return {*self.trained.get("questions_shown", ())} == {"reading"}

    def notice(self) -> str:
        """Return what to print at start: what its training showed while it read."""
        if not self.trained:
            return "not trained here: it reads and answers as an untrained instruct model"
        if "questions_shown" not in self.trained:
            return f"trained in the environment {self.trained.get('environment')}"
        if self.needs_goal:
            return f"this policy was trained to read with the questions in view. {NO_GOAL}"
        return "this policy was also trained to read without knowing the questions"


class Written:
    """Counts what steps wrote: entries created, updated and deleted, and what limits cut of it."""

    def __init__(self) -> None:
        self.steps, self._texts, self._kinds = 0, Counts[str](), Counts[str]()

    def add(self, step: Step) -> None:
        self.steps += 1
        written, cut = written_and_cut(step)
        self._texts.update(written=written, cut=cut)
        done = [each.kind for each in step.operations if each.outcome is Outcome.APPLIED]
        self._kinds.update(done)

    def report(self) -> dict[str, Any]:
        """Return the counts, of steps too, and the share of texts that limits cut."""
        written = {kind: self._kinds[kind] for kind in (CREATE, UPDATE, DELETE)}
        cut = self._texts["cut"] / max(1, self._texts["written"])
        return {"steps": self.steps, "written": written, "cut": cut}


async def ask_once(
    model: ServedModel, items: Sequence[Item], question: Item, response: str
) -> AsyncIterator[Event | Step | Answer]:
    """Read items and answer a question as `Conversation.ask` does, and store nothing."""
    ask = ask_event(question, response, {})
    yield ask
    session = Session(model.agent, f"call_{secrets.token_hex(16)}")
    for item in map(with_id, (item for item in items if not only_asks(item))):
        for observation in await model.observations(item_event(item, ask.body["question"])):
            step = await model.step(session, observation)
            yield step
            if first(step.actions, STOP_ACTION.name):
                break
    take_step = partial(model.step, session)
    async for step, answer in answer_steps(session, ask.body["question"], take_step):
        yield step
        if answer is not None:
            yield answer


def check_settings(trained: Mapping[str, Any], given: Mapping[str, Any], folder: str) -> None:
    """Refuse settings of memory, environment or embedder that differ from the training's."""
    environment = find_environment(str(trained.get("environment") or "longdoc")).config_class
    kinds = (MemoryConfig, EmbedderConfig, environment)
    fixed = {item.name for kind in kinds for item in fields(kind)} - environment.operational
    for name in sorted(fixed & {*given} & {*trained}):
        if given[name] not in (None, trained[name]) and not name.endswith("_url"):
            raise ConfigError(
                f"{name}={given[name]!r}: trained with {trained[name]!r} "
                f"({folder}/atommem_config.json). Leave out --{name}, or train a checkpoint so."
            )

"""The model behind a server, checked against its training and identified by a fingerprint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.concurrency import run_in_threadpool

from atommem.config import EmbedderConfig, MemoryConfig, is_server, load_config, shipped_policy
from atommem.environment import find_environment
from atommem.episode import Observation, Step
from atommem.errors import ConfigError
from atommem.policy.opening import fingerprint
from atommem.process import time_limit
from atommem.rollout import Session
from atommem.run import Runtime
from atommem.serve.items import texts_of
from atommem.serve.schema import Event

STAGES = Histogram(
    "atommem_stage_seconds",
    "Duration of a stage: queue, turn, open, commit, request",
    ["stage"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
TOKENS = Counter("atommem_tokens", "Model tokens", ["kind"])


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

    def notice(self) -> str:
        """Return what to print at start: which questions its training showed."""
        if not self.trained:
            return "not trained here: it reads and answers as an untrained instruct model"
        modes = self.trained.get("questions_shown", ["reading"])
        needs_goal = ": give a goal, or expect it to keep little" * ({*modes} == {"reading"})
        return f"trained with the questions shown: {', '.join(modes)}{needs_goal}"


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

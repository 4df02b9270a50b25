"""Plays episodes of scripted policies in an environment, and notes what is wrong with every step."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
import time
import types
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from atommem.description import TaskDescription
from atommem.embedding.hashing import HashingEmbedder
from atommem.env_check.contents import check_observation, check_score
from atommem.env_check.declarations import Declared
from atommem.env_check.findings import Findings, told
from atommem.env_check.probes import Probe, Writer
from atommem.environment import Environment, Score, StepResult, Turn
from atommem.episode import Step
from atommem.errors import OutageError
from atommem.observation import Observation, StopReason
from atommem.policy.contract import Sampling
from atommem.policy.scripted import ScriptedPolicy
from atommem.session import Agent, Session

STALL_SECONDS = 0.5


class AbandonedError(Exception):
    """The episode cannot go on; what was wrong has been noted."""


@dataclass
class Played:
    """An episode as far as it was played."""

    observations: list[Observation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reason: StopReason | None = None
    score: Score | None = None

    @property
    def seen(self) -> tuple[Any, ...]:
        """What is the same when it is played again in the same way."""
        return self.observations, self.reason, self.score


class Player:
    """Plays episodes and notes what is wrong with them.

    Args:
        findings: Gets it.
        declared: The environment.
        seed: Of what the policies write.
        most_steps: A longer episode is one that does not end.
    """

    def __init__(self, findings: Findings, declared: Declared, seed: int, most_steps: int) -> None:
        self.findings = findings
        self.declared = declared
        self.seed = seed
        self.most_steps = most_steps
        factory, memory = declared.factory, declared.memory
        self.text = ""
        """What the policy of all episodes writes next."""
        self.agent = Agent(
            policy=ScriptedPolicy(factory.tokenizer, lambda prompt: self.text),
            embedder=HashingEmbedder(64),
            tokenizer=factory.tokenizer,
            environments=factory,
            memory=memory,
            sampling=Sampling(max_tokens=sys.maxsize),
        )
        self.writer = Writer(self.agent.dialect, factory.actions)

    async def play(
        self, task: Any, description: TaskDescription, probe: Probe, most: int | None = None
    ) -> Played:
        """An episode to its end, or for so many steps; then its score."""
        played = Played()
        async for _ in self.turns(task, description, probe, played, most):
            pass
        return played

    async def turns(
        self,
        task: Any,
        description: TaskDescription,
        probe: Probe,
        played: Played,
        most: int | None = None,
    ) -> AsyncIterator[None]:
        """Play step by step: gives way after every observation."""
        questions = len(description.questions)
        try:
            environment = await self.start(task, played, questions)
            session = Session(self.agent, description.id)
            while played.reason is None:
                yield
                if len(played.steps) == (self.most_steps if most is None else most):
                    break
                await self.step(environment, session, probe, played, questions)
            if most is None:
                detail = f"{description.id} goes on after {len(played.steps)} steps of the policy `{probe.__name__}`"
                remedy = "Bound every episode: what asks for no more steps than its stream has ends whatever is written."
                self.findings.expect(played.reason is not None, "end", detail, remedy)
            played.score = await self.call("score", environment.score)
            check_score(
                self.findings, played.score, description, f"after {len(played.steps)} steps"
            )
        except AbandonedError:
            return

    async def call(self, check: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of an asynchronous function of the environment.

        Raises:
            AbandonedError: It raised, or is not asynchronous.
        """
        slices: list[float] = []
        try:
            work = function(*arguments)
            if not self.findings.expect(
                inspect.isawaitable(work),
                check,
                f"{check}() is not async",
                f"Write `async def {check}`.",
            ):
                raise AbandonedError
            result = await _measured(work, slices)
        except (AbandonedError, asyncio.CancelledError):
            raise
        except OutageError as error:
            self.findings.warn(
                check, f"an outage: {error}", "Check again when the service answers."
            )
            raise AbandonedError from error
        except Exception as error:
            remedy = "Nothing that a policy writes may raise: tell the policy, as an observation, and go on."
            self.findings.fail(check, told(error), remedy if check == "step" else "Mend it.")
            raise AbandonedError from error
        if max(slices) > STALL_SECONDS:
            remedy = "Give long work to a thread (asyncio.to_thread), or do it in `prepare`; await what waits."
            self.findings.warn(
                "event loop", f"{check}() held everything up for {max(slices):.1f} s", remedy
            )
        return result

    async def start(self, task: Any, played: Played, questions: int) -> Environment:
        await self.call("reset", self.declared.factory.prepare, task)
        environment = self.declared.factory()
        observation = await self.call("reset", environment.reset, task)
        self._observe(played, observation, questions)
        return environment

    async def step(
        self,
        environment: Environment,
        session: Session,
        probe: Probe,
        played: Played,
        questions: int,
    ) -> None:
        turn = await self.turn(session, probe, played)
        result = await self.call("step", environment.step, turn)
        if not self.findings.expect(
            isinstance(result, StepResult), "step", f"step() gave {result!r}", "Give a StepResult."
        ):
            raise AbandonedError
        if result.observation is not None:
            detail = f"step() gave an observation and the reason {result.reason}"
            self.findings.expect(
                result.reason is None, "step", detail, "Give a reason where the episode is over."
            )
            self._observe(played, result.observation, questions)
            return
        own = (None, StopReason.ANSWERED, StopReason.UNANSWERED)
        detail = f"step() ended the episode for the reason {result.reason!r}"
        self.findings.expect(
            result.reason in own,
            "step",
            detail,
            "Give ANSWERED or UNANSWERED; raise an OutageError.",
        )
        played.reason = result.reason or StopReason.ANSWERED

    async def turn(self, session: Session, probe: Probe, played: Played) -> Turn:
        observation = played.observations[-1]
        rng = random.Random(f"{self.seed}/{probe.__name__}/{session.key}/{len(played.steps)}")
        self.text = probe(self.writer, observation, rng)
        try:
            step = await session.turn(observation)
        except Exception as error:
            remedy = "Its prompt cannot be built: mend the piece or its wording."
            self.findings.fail("observations", f"{observation.phase}: {told(error)}", remedy)
            raise AbandonedError from error
        played.steps.append(step)
        deadline = asyncio.get_running_loop().time() + 60
        return Turn(step.text, step.actions, step.problems, step.operations, deadline)

    def _observe(self, played: Played, observation: Any, questions: int) -> None:
        if not check_observation(self.findings, self.declared, observation, questions):
            raise AbandonedError
        played.observations.append(observation)


@types.coroutine
def _measured(work: Any, slices: list[float]) -> Generator[Any, Any, Any]:
    """The result of an awaitable; `slices` gets the seconds of each stretch in which it let nothing else run."""
    inner = work.__await__()
    proceed, value = inner.send, None
    while True:
        started = time.perf_counter()
        try:
            waited = proceed(value)
        except StopIteration as end:
            return end.value
        finally:
            slices.append(time.perf_counter() - started)
        try:
            value, proceed = (yield waited), inner.send
        except BaseException as error:
            value, proceed = error, inner.throw

"""One question, asked as the environment asks it, whoever takes the turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from atommem.environment import EnvironmentFactory, Turn
from atommem.episode import Step
from atommem.observation import Observation


async def asked(
    environments: EnvironmentFactory, question: str, turn: Callable[[Observation], Awaitable[Step]]
) -> tuple[str | None, list[Step]]:
    """Ask until there is an answer, or the environment gives up; the answer (None: none was given) and all steps.

    Args:
        environments: What asks.
        question: As asked.
        turn: Takes a turn of the session with what is shown (`Session.turn`, or what keeps it as well).

    Raises:
        ConfigError: This environment asks no questions.
        ...: What `turn` raises.
    """
    task = environments.asking(question)
    await environments.prepare(task)
    environment = environments()
    observation: Observation | None = await environment.reset(task)
    steps: list[Step] = []
    while observation is not None:
        step = await turn(observation)
        steps.append(step)
        taken = Turn(step.text, step.actions, step.problems, step.operations)
        observation = (await environment.step(taken)).observation
    answers = (await environment.score()).answers
    return (answers[0] if answers else None), steps

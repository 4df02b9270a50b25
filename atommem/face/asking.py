"""One question, asked as the environment asks it, whoever takes the turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from atommem.environment import EnvironmentFactory, Turn
from atommem.episode import Step
from atommem.observation import Observation

Keep = Callable[[Step, bool, str | None], Awaitable[None]]


async def asked(
    environments: EnvironmentFactory,
    question: str,
    turn: Callable[[Observation], Awaitable[Step]],
    keep: Keep | None = None,
) -> tuple[str | None, list[Step]]:
    """Ask until there is an answer, or the environment gives up; the answer (None: none was given) and all steps.

    Args:
        environments: What asks.
        question: As asked.
        turn: Takes a turn of the session with what is shown (`Session.turn`).
        keep: Called with every step, whether it was the last one, and then with the answer.

    Raises:
        ConfigError: This environment asks no questions.
        ...: What `turn` and `keep` raise.
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
        if keep is not None:
            await keep(step, observation is None, answer)
        steps.append(step)
    return answer, steps
